"""Figures show the numbers of a trace, and a trace draws itself."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import translume
from translume.drawing import plot_attention, plot_attribution, plot_beliefs, plot_gain, plot_lens
from translume.errors import SettingsError
from translume.inspection.values import Token

SOURCE = "price: $a$ & $b"


@pytest.fixture(scope="module")
def found(make_trace):
    return make_trace("hello you", show=(*translume.inspection.tracing.DEFAULT_PARTS, "input-gradient"))


def image(figure, place=0):
    """The numbers of the heat map in a figure, NaN where there is none."""
    return np.ma.filled(figure.axes[place].images[0].get_array(), np.nan)


def texts(labels):
    return [label.get_text() for label in labels]


def test_attention_is_the_mean_of_the_heads_of_the_last_layer_but_one(found):
    figure = plot_attention(found)
    np.testing.assert_allclose(image(figure), np.array(found.attention.cross[1]).mean(0))
    axes = figure.axes[0]
    assert texts(axes.get_yticklabels()) == [token.text for token in found.target_tokens]
    assert texts(axes.get_xticklabels()) == [token.text for token in found.source_tokens]
    assert figure.get_suptitle() == "cross attention, layer 2 of 3, mean of 11 heads"


def test_any_layer_and_head_of_any_attention_is_drawn(found):
    figure = plot_attention(found, kind="decoder", layer=3, head=11)
    np.testing.assert_allclose(image(figure), np.array(found.attention.decoder[2][10]))
    assert texts(figure.axes[0].get_xticklabels())[0] == "start"
    figure = plot_attention(found, kind="encoder", layer=1, head="all")
    for head in range(11):
        np.testing.assert_allclose(image(figure, head), np.array(found.attention.encoder[0][head]))
    scales = {axes.images[0].get_clim() for axes in figure.axes if axes.images}
    assert scales == {(0.0, float(np.array(found.attention.encoder[0]).max()))}


def test_beliefs_are_bars_that_end_with_all_others_and_come_to_one(found):
    axes = plot_beliefs(found).axes[0]
    rows = {}
    for bar in axes.patches:
        rows.setdefault(round(bar.get_y() + bar.get_height() / 2, 6), []).append(bar)
    whole = [row for row in range(len(found.steps)) if row in rows]
    assert whole == list(range(len(found.steps)))
    for row, step in enumerate(found.steps):
        bars = rows[row]
        assert sum(bar.get_width() for bar in bars) == pytest.approx(1.0, abs=1e-5)
        assert all(one.get_x() + one.get_width() == pytest.approx(other.get_x()) for one, other in pairwise(bars))
        dark = [bar.get_width() for bar in bars if bar.get_facecolor()[:3] == (37 / 255, 99 / 255, 168 / 255)]
        assert dark == [pytest.approx(step.p_model)]


def test_a_token_that_is_not_among_the_likeliest_has_its_part(make_trace):
    trace = make_trace("hello you", "zq", k=1, show=())
    assert trace.steps[0].rank > 1
    bars = [bar for bar in plot_beliefs(trace).axes[0].patches if bar.get_y() + bar.get_height() / 2 == 0.0]
    assert [bar.get_width() for bar in bars] == pytest.approx(
        [trace.steps[0].top_model.candidates[0].p_model, trace.steps[0].p_model,
         trace.steps[0].top_model.tail - trace.steps[0].p_model]
    )  # fmt: skip


def test_the_lens_names_the_likeliest_token_of_each_layer(found):
    figure = plot_lens(found)
    axes = figure.axes[0]
    shown = {(int(t.get_position()[1]), int(t.get_position()[0])): t for t in axes.texts}
    chances = image(figure)
    for row, step in enumerate(found.steps):
        for column, layer in enumerate(step.lens):
            text = shown[row, column]
            assert text.get_text() == layer.top.candidates[0].text
            assert (text.get_fontweight() == "bold") == (layer.top.candidates[0].id == found.target_tokens[row].id)
            assert chances[row, column] == pytest.approx(np.exp(layer.log_p))


def test_gains_point_to_where_the_source_asks(found):
    bars = plot_gain(found).axes[0].patches
    assert [bar.get_width() for bar in bars] == pytest.approx([step.prior.gain for step in found.steps])
    impossible = replace(found.steps[0], prior=replace(found.steps[0].prior, gain=None))
    figure = plot_gain(replace(found, steps=(impossible, *found.steps[1:])))
    assert figure.axes[0].texts[0].get_text() == "impossible"


def test_attribution_is_drawn_on_a_scale_that_is_the_same_for_and_against(found):
    for each in found.attributions:
        figure = plot_attribution(found, each.method)
        np.testing.assert_allclose(image(figure), np.array(each.values))
        low, high = figure.axes[0].images[0].get_clim()
        assert (low, high) == (-np.abs(np.array(each.values)).max(), np.abs(np.array(each.values)).max())
    assert found.attributions[0].method in plot_attribution(found).get_suptitle()
    unknown = replace(found.attributions[0], values=((None,) * len(found.source_tokens),) * len(found.steps))
    assert np.isnan(image(plot_attribution(replace(found, attributions=(unknown,))))).all()


def test_a_trace_draws_itself_into_any_format_whatever_its_tokens_hold(make_trace, tmp_path):
    trace = make_trace(SOURCE, "$<b>$")
    figures = [trace.plot_attention(), trace.plot_beliefs(), trace.plot_lens(), trace.plot_gain()]
    for number, figure in enumerate([*figures, trace.plot_attribution("occlusion")]):
        assert figure._repr_png_().startswith(b"\x89PNG")
        figure.savefig(tmp_path / f"{number}.svg")


def test_long_tokens_are_cut(found):
    long = Token(id=5, text="x" * 40, begin=0, end=40)
    axes = plot_attention(replace(found, source_tokens=(long, *found.source_tokens[1:]))).axes[0]
    assert texts(axes.get_xticklabels())[0] == "x" * 17 + "…"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda trace: trace.plot_attention(),
            "attention: not in the trace; request it with trace(…, show=('attention',))",
        ),
        (lambda trace: trace.plot_lens(), "lens: not in the trace; request it with trace(…, show=('lens',))"),
        (lambda trace: trace.plot_gain(), "prior: not in the trace; request it with trace(…, show=('prior',))"),
        (
            lambda trace: trace.plot_attribution(),
            "occlusion: not in the trace; request it with trace(…, show=('occlusion',))",
        ),
    ],
)
def test_what_a_trace_does_not_hold_is_not_drawn(make_trace, draw, message):
    with pytest.raises(SettingsError) as error:
        draw(make_trace("abc", show=()))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda trace: trace.plot_attention(kind="cros"), "kind: found 'cros'; did you mean 'cross'?"),
        (lambda trace: trace.plot_attention(layer=4), "layer: found 4, expected 1 to 3"),
        (lambda trace: trace.plot_attention(head=12), "head: found 12, expected 1 to 11, 'mean' or 'all'"),
        (lambda trace: trace.plot_attribution("oclusion"), "method: found 'oclusion'; did you mean 'occlusion'?"),
    ],
)
def test_what_there_is_not_is_refused_in_one_line(found, draw, message):
    with pytest.raises(SettingsError) as error:
        draw(found)
    assert str(error.value) == message


def test_a_layer_without_self_attention_has_no_picture(found):
    bare = replace(found, attention=replace(found.attention, decoder=(None, None, None)))
    with pytest.raises(SettingsError) as error:
        bare.plot_attention(kind="decoder", layer=1)
    assert str(error.value) == "layer: 1 has no decoder attention"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_values_alone_say_what_would_draw_them_and_the_face_gives_such_as_can_be_drawn():
    done = run(
        "import sys\n"
        "from translume.inspection.values import TracePlots\n"
        "assert TracePlots()._repr_html_() is None\n"
        "try:\n    TracePlots().plot_gain()\n"
        "except RuntimeError as error:\n    print(error)\n"
        "import translume\n"
        "trace = translume.Trace\n"
        "assert 'matplotlib' not in sys.modules, 'it waits until something is drawn'\n"
        "from translume.inspection.values import _function\n"
        "print(_function('plot_lens').__module__)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    said = "plot_gain: import translume.drawing first\ntranslume.drawing.figures\n"
    assert done.stdout == said, done.stderr
