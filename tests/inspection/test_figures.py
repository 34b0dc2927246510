"""Figures of a trace show its numbers."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from tests.errors import raises

from translume.errors import SettingsError
from translume.inspection.figures import (
    CHOSEN,
    plot_attention,
    plot_attribution,
    plot_distributions,
    plot_evidence,
    plot_gain,
    plot_lens,
)
from translume.inspection.tracing import DEFAULT_PARTS
from translume.inspection.values import Token

SOURCE = "price: $a$ & $b"


@pytest.fixture(scope="module")
def found(make_trace):
    return make_trace("hello you", show=(*DEFAULT_PARTS, "input-gradient"))


def image(figure, place=0):
    """The numbers of the heat map in a figure, NaN for missing cells."""
    return np.ma.filled(figure.axes[place].images[0].get_array(), np.nan)


def texts(labels):
    return [label.get_text() for label in labels]


def test_attention_shows_the_mean_over_heads_of_the_second_to_last_layer(found):
    figure = plot_attention(found)
    np.testing.assert_allclose(image(figure), np.array(found.attention.cross[1]).mean(0))
    axes = figure.axes[0]
    assert texts(axes.get_yticklabels()) == [token.text for token in found.target_tokens]
    assert texts(axes.get_xticklabels()) == [token.text for token in found.source_tokens]
    assert figure.get_suptitle() == "cross attention, layer 2 of 3, mean of 11 heads"


def test_any_layer_and_head_of_any_attention_can_be_drawn(found):
    figure = plot_attention(found, kind="decoder", layer=3, head=11)
    np.testing.assert_allclose(image(figure), np.array(found.attention.decoder[2][10]))
    assert texts(figure.axes[0].get_xticklabels())[0] == "start"
    figure = plot_attention(found, kind="encoder", layer=1, head="all")
    for head in range(11):
        np.testing.assert_allclose(image(figure, head), np.array(found.attention.encoder[0][head]))
    scales = {axes.images[0].get_clim() for axes in figure.axes if axes.images}
    assert scales == {(0.0, float(np.array(found.attention.encoder[0]).max()))}


def test_bars_of_each_step_end_with_the_tail_and_sum_to_one(found):
    axes = plot_distributions(found).axes[0]
    rows = {}
    for bar in axes.patches:
        rows.setdefault(round(bar.get_y() + bar.get_height() / 2, 6), []).append(bar)
    whole = [row for row in range(len(found.steps)) if row in rows]
    assert whole == list(range(len(found.steps)))
    for row, step in enumerate(found.steps):
        bars = rows[row]
        assert sum(bar.get_width() for bar in bars) == pytest.approx(1.0, abs=1e-5)
        assert all(one.get_x() + one.get_width() == pytest.approx(other.get_x()) for one, other in pairwise(bars))
        dark = [bar.get_width() for bar in bars if bar.get_facecolor() == to_rgba(CHOSEN)]
        assert dark == [pytest.approx(step.p_model)]


def test_a_target_token_outside_the_top_k_has_its_own_bar(make_trace):
    trace = make_trace("hello you", "zq", k=1, show=())
    assert trace.steps[0].rank > 1
    bars = [bar for bar in plot_distributions(trace).axes[0].patches if bar.get_y() + bar.get_height() / 2 == 0.0]
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


def test_gain_bars_equal_the_gains_and_mark_impossible_ones(found):
    bars = plot_gain(found).axes[0].patches
    assert [bar.get_width() for bar in bars] == pytest.approx([step.prior.gain for step in found.steps])
    impossible = replace(found.steps[0], prior=replace(found.steps[0].prior, gain=None))
    figure = plot_gain(replace(found, steps=(impossible, *found.steps[1:])))
    assert figure.axes[0].texts[0].get_text() == "impossible"


def test_the_colour_scale_of_attributions_is_symmetric(found):
    for each in found.attributions:
        figure = plot_attribution(found, each.method)
        np.testing.assert_allclose(image(figure), np.array(each.values))
        low, high = figure.axes[0].images[0].get_clim()
        assert (low, high) == (-np.abs(np.array(each.values)).max(), np.abs(np.array(each.values)).max())
    assert found.attributions[0].method in plot_attribution(found).get_suptitle()
    unknown = replace(found.attributions[0], values=((None,) * len(found.source_tokens),) * len(found.steps))
    assert np.isnan(image(plot_attribution(replace(found, attributions=(unknown,))))).all()


def test_a_trace_is_drawn_in_any_format_with_any_characters_in_tokens(make_trace, tmp_path):
    trace = make_trace(SOURCE, "$<b>$")
    for number, plot in enumerate((plot_attention, plot_distributions, plot_lens, plot_gain, plot_attribution)):
        figure = plot(trace)
        assert figure._repr_png_().startswith(b"\x89PNG")
        figure.savefig(tmp_path / f"{number}.svg")


def test_long_tokens_are_truncated(found):
    long = Token(id=5, text="x" * 40, begin=0, end=40)
    axes = plot_attention(replace(found, source_tokens=(long, *found.source_tokens[1:]))).axes[0]
    assert texts(axes.get_xticklabels())[0] == "x" * 17 + "…"


@pytest.mark.parametrize(
    ("plot", "part"),
    [(plot_attention, "attention"), (plot_lens, "lens"), (plot_gain, "prior"), (plot_attribution, "occlusion")],
)
def test_drawing_a_part_missing_from_the_trace_is_refused(make_trace, plot, part):
    with raises(SettingsError, f"{part}: not in the trace; request it with trace(…, show=('{part}',))"):
        plot(make_trace("abc", show=()))


@pytest.mark.parametrize(
    ("plot", "options", "message"),
    [
        (plot_attention, {"kind": "cros"}, "kind: found 'cros'; did you mean 'cross'?"),
        (plot_attention, {"layer": 4}, "layer: found 4, expected 1 to 3"),
        (plot_attention, {"head": 12}, "head: found 12, expected 1 to 11, 'mean' or 'all'"),
        (plot_attribution, {"method": "oclusion"}, "method: found 'oclusion'; did you mean 'occlusion'?"),
        (plot_attention, {"kind": "decoder", "layer": 1}, "layer: 1 has no decoder attention"),
    ],
)
def test_an_unknown_layer_head_or_method_is_refused_in_one_line(found, plot, options, message):
    without_self_attention = replace(found, attention=replace(found.attention, decoder=(None, None, None)))
    with raises(SettingsError, message):
        plot(without_self_attention, **options)


def test_a_figure_shows_the_evidence_for_each_class(class_trace):
    for method in (None, "input-gradient"):
        figure = plot_evidence(class_trace, method)
        values = next(each.values for each in class_trace.evidence if each.method == (method or "occlusion"))
        np.testing.assert_allclose(figure.axes[0].images[0].get_array(), np.array(values))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == [f"{each.label} {each.p:.3f}" for each in class_trace.classes[:3]]
    with raises(SettingsError, "method: found 'oclusion'; did you mean 'occlusion'?"):
        plot_evidence(class_trace, "oclusion")
    message = "evidence: not in the trace; request it with trace_classification(…, show=('occlusion',))"
    with raises(SettingsError, message):
        plot_evidence(replace(class_trace, evidence=()))
