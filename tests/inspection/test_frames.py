"""Traces of models whose sources are recordings, images and arrays."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from tests.errors import raises
from tests.sources.conftest import untrained

import translume
from translume.checkpoint import save_model
from translume.cli import main
from translume.errors import SettingsError, TranslationError
from translume.inspection import Trace, edit_source, force_token, record_beam, why_not
from translume.inspection.figures import plot_attention, plot_attribution
from translume.inspection.terminal import trace_lines
from translume.inspection.tracing import ctc_alignment
from translume.sources import frame_reader
from translume.translator import Translator

NOISE = np.random.default_rng(5)
GIVEN = {
    "audio": (NOISE.normal(size=5000) / 9).astype(np.float32),
    "features": NOISE.normal(size=(31, 5)).astype(np.float32),
    "image": NOISE.integers(0, 256, (8, 33), np.uint8),
}
"""A source of each kind: of 31, 31 and 33 frames, which are 8, 8 and 9 positions."""


@pytest.fixture(scope="module")
def translators() -> dict[str, Translator]:
    return {kind: untrained(kind, given=each) for kind, each in GIVEN.items()}


@pytest.fixture(scope="module")
def image_trace(translators: dict[str, Translator]) -> Trace:
    return translume.trace(translators["image"], GIVEN["image"], "one two three one")


@pytest.mark.parametrize("kind", GIVEN)
def test_log_p_and_attention_are_those_of_the_model(translators: dict[str, Translator], kind: str) -> None:
    translator = translators[kind]
    found = translume.trace(translator, GIVEN[kind], "one two three one")
    best = translator.translate(GIVEN[kind]).hypotheses[0]
    assert translume.trace(translator, GIVEN[kind], best).log_p == pytest.approx(best.log_prob, abs=1e-4)
    assert translume.trace(translator, GIVEN[kind]).target_tokens[0].id == best.ids[0]
    model, reader = translator.checkpoint.model, frame_reader(translator.config.data.source)
    source = torch.from_numpy(reader.read(GIVEN[kind]))[None]
    state = model.start_with_attention(source, torch.ones(source.shape[:2], dtype=torch.bool))
    prefix = [translator.checkpoint.target_tokenizer.specials.bos, *(token.id for token in found.target_tokens)]
    for step in range(len(found.steps)):
        belief, state = model.step(torch.tensor([prefix[: step + 1]]), state)
        expected = belief.log_prob_of(torch.tensor([[prefix[step + 1]]])).item()
        assert found.steps[step].log_p_model == pytest.approx(expected, abs=1e-4)
        cross = np.array(found.attention.cross[-1])[:, step]  # of the last layer, [H, S]
        np.testing.assert_allclose(cross.mean(0), state.attention[0].detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "texts", "last"),
    [
        ("audio", ("0.00", "0.04", "0.28"), (28, 31)),
        ("features", ("0", "4", "28"), (28, 31)),
        ("image", ("0", "4", "32"), (32, 33)),
    ],
)
def test_source_tokens_are_positions_of_the_encoder(
    translators: dict[str, Translator], kind: str, texts: tuple[str, str, str], last: tuple[int, int]
) -> None:
    found = translume.trace(translators[kind], GIVEN[kind], "one", show=("attention",))
    tokens = found.source_tokens
    assert (tokens[0].text, tokens[1].text, tokens[-1].text) == texts
    assert [(each.begin, each.end) for each in tokens[:2]] == [(0, 4), (4, 8)]
    assert (tokens[-1].begin, tokens[-1].end) == last
    assert len(found.attention.cross[0][0][0]) == len(tokens)
    assert found.source == found.given == found.given
    assert found.source_words == ()


def test_levels_are_the_frames_and_the_pixels(translators: dict[str, Translator]) -> None:
    found = translume.trace(translators["image"], GIVEN["image"], "one", show=()).frames
    assert found is not None
    np.testing.assert_array_equal(np.array(found.levels), GIVEN["image"].T)
    assert (found.low, found.high, found.per_second, found.colors) == (0.0, 1.0, 0.0, 1)
    sound = translume.trace(translators["audio"], GIVEN["audio"], "one", show=()).frames
    assert sound is not None
    energies = frame_reader(translators["audio"].config.data.source).read(GIVEN["audio"])
    shown = np.array(sound.levels) / 255 * (sound.high - sound.low) + sound.low
    np.testing.assert_allclose(shown, energies, atol=(sound.high - sound.low) / 500)
    assert sound.per_second == 100


def test_the_prior_reads_the_mean_frame_in_place_of_each(translators: dict[str, Translator]) -> None:
    translator = translators["features"]
    found = translume.trace(translator, GIVEN["features"], "one two", show=("prior",))
    mean = np.tile(GIVEN["features"].mean(0), (31, 1))
    blank = translume.trace(translator, mean, "one two", show=())
    for step, other in zip(found.steps, blank.steps, strict=True):
        assert step.prior.log_p == pytest.approx(other.log_p_model, abs=1e-4)


def best_path(log_probs: np.ndarray, target: tuple[int, ...], blank: int) -> tuple[int, ...]:
    """Return the most likely labels of all positions that stand for `target`, by trying all."""
    paths = itertools.product({blank, *target}, repeat=len(log_probs))
    fitting = [path for path in paths if tuple(k for k, _ in itertools.groupby(path) if k != blank) == target]
    return max(fitting, key=lambda path: log_probs[range(len(path)), path].sum())


@pytest.mark.parametrize("target", [(1,), (1, 2), (2, 2), (1, 2, 1), (2, 2, 2)])
def test_the_ctc_alignment_is_the_most_likely_of_all(target: tuple[int, ...]) -> None:
    log_probs = np.random.default_rng(len(target)).normal(size=(6, 3))
    log_probs -= np.log(np.exp(log_probs).sum(1, keepdims=True))
    path, expected = best_path(log_probs, target, 0), []
    for label, places in itertools.groupby(range(6), lambda place: path[place]):
        group = list(places)
        expected += [(group[0], group[-1] + 1)] if label else []
    assert ctc_alignment(log_probs, target, 0) == expected


def test_a_target_without_an_alignment_has_none() -> None:
    assert ctc_alignment(np.zeros((2, 3)), (1, 1), 0) is None  # two equal tokens need a blank between them
    assert ctc_alignment(np.zeros((3, 3)), (1, 1), 0) == [(0, 1), (2, 3)]
    assert ctc_alignment(np.zeros((2, 3)), (), 0) == []


def test_parts_of_tokens_are_frames_by_ctc_or_by_attention(image_trace: Trace) -> None:
    frames = image_trace.frames
    assert frames.aligned_by == "ctc"
    assert all(begin % 4 == 0 and (end % 4 == 0 or end == 33) for begin, end in frames.spans[:-1])
    assert [*frames.spans[:-1]] == sorted(frames.spans[:-1])
    assert frames.spans[-1] == (0, 0)  # EOS
    plain = translume.trace(untrained("image", ctc=False), GIVEN["image"], "one two")
    assert plain.frames.aligned_by == "attention"
    peaks = np.array(plain.attention.cross[1]).mean(0).argmax(1)
    assert plain.frames.spans[:2] == tuple((4 * peak, min(4 * peak + 4, 33)) for peak in peaks[:2])
    unknown = translume.trace(untrained("image", ctc=False), GIVEN["image"], "one two", show=())
    assert (unknown.frames.aligned_by, set(unknown.frames.spans)) == ("", {(0, 0)})


def test_masking_a_position_and_gradients_are_attributions_over_frames(translators: dict[str, Translator]) -> None:
    show = ("occlusion-mask", "input-gradient")
    found = translume.trace(translators["features"], GIVEN["features"], "one two", show=show)
    assert [each.method for each in found.attributions] == ["occlusion-mask", "input-gradient"]
    assert {len(row) for each in found.attributions for row in each.values} == {8}
    assert translume.trace(translators["features"], GIVEN["features"], "one").attributions[0].method == show[0]
    message = (
        "show: found 'occlusion', expected 'occlusion-mask', 'input-gradient' or 'integrated-gradients' "
        "with data.source = 'features'"
    )
    with raises(SettingsError, message):
        translume.trace(translators["features"], GIVEN["features"], "one", show=("occlusion",))


def test_input_times_gradient_is_the_directional_derivative(translators: dict[str, Translator]) -> None:
    translator = translators["features"]
    found = translume.trace(translator, GIVEN["features"], "one two", show=("input-gradient",))
    embedding, scale = translator.checkpoint.model.encoder.embedding, 1e-3
    own = [step.log_p_model for step in found.steps]
    kept = embedding.weight.data.clone(), embedding.bias.data.clone()
    try:  # a little less of all vectors, without their positions
        embedding.weight.data.mul_(1 - scale)
        embedding.bias.data.mul_(1 - scale)
        less = [step.log_p_model for step in translume.trace(translator, GIVEN["features"], "one two", show=()).steps]
    finally:
        embedding.weight.data, embedding.bias.data = kept
    sums = [sum(row) for row in found.attributions[0].values]
    np.testing.assert_allclose(sums, (np.array(own) - less) / scale, rtol=0.05, atol=0.02)


def test_questions_and_the_search_take_paths_and_arrays(translators: dict[str, Translator], tmp_path: Path) -> None:
    translator = translators["image"]
    path = tmp_path / "x.png"
    Image.fromarray(GIVEN["image"]).save(path)
    best = translator.translate(str(path)).hypotheses[0]
    assert record_beam(translator, path).finished[0].ids == best.ids
    assert record_beam(translator, path).source == str(path)
    forced = force_token(translator, GIVEN["image"], 0, "seven")
    assert (forced.source, forced.after.tokens[0]) == ("<ndarray 8 × 33>", "▁seven")
    assert why_not(translator, path, "one two").wanted.log_prob == pytest.approx(
        translator.score(str(path), "one two").log_prob, abs=1e-4
    )
    other = GIVEN["image"][:, ::-1].copy()
    edited = edit_source(translator, path, other)
    assert edited.after.text == translator.translate(other).text


def test_a_trace_is_written_as_json_and_read_without_frames_of_earlier_versions(image_trace: Trace) -> None:
    content = json.loads(json.dumps(image_trace.to_dict()))
    assert Trace.from_dict(content) == image_trace
    del content["frames"]
    assert Trace.from_dict(content).frames is None


def test_an_empty_source_is_refused(translators: dict[str, Translator]) -> None:
    with raises(TranslationError, "source: <ndarray 0>: found no frames, expected at least one"):
        translume.trace(translators["audio"], np.zeros(0, np.float32))


def test_the_terminal_shows_the_source_and_the_attention_below_it(image_trace: Trace) -> None:
    lines = [line.plain for line in trace_lines(image_trace)]
    assert lines[0] == "source  <ndarray 8 × 33>: 33 × 8 pixels"
    begin = lines.index("image, in pixels; the part of each token by CTC")
    picture = lines[begin + 1 : begin + 5]
    assert all(set(line) <= set(" ░▒▓█") and len(line) <= 30 + 33 for line in picture)
    assert lines[begin + 5].strip() == "╵0        ╵10       ╵20       ╵30"
    row = lines[begin + 7]
    first, last = image_trace.frames.spans[0]
    assert row.startswith(f"▁one          {f'{first}–{last - 1}':14}  ")
    assert all(mark in "─░▒▓█" for mark in row.ljust(63)[30 + first : 30 + last])


def test_figures_have_the_source_above_the_weights(image_trace: Trace) -> None:
    figure = plot_attention(image_trace)
    upper, lower = figure.axes[:2]
    np.testing.assert_array_equal(upper.images[0].get_array(), GIVEN["image"])
    np.testing.assert_allclose(lower.images[0].get_array(), np.array(image_trace.attention.cross[1]).mean(0))
    assert lower.images[0].get_extent() == [0, 36, 4.5, -0.5]
    assert lower.get_xlim() == (0, 33)  # the last position is cut
    assert [label.get_text() for label in lower.get_yticklabels()] == ["▁one", "▁two", "▁three", "▁one", "</s>"]
    assert plot_attribution(image_trace).axes[1].images[0].get_array().shape == (5, 9)
    assert plot_attention(image_trace, kind="encoder").axes[1].images[0].get_array().shape == (9, 9)


def test_the_page_draws_the_source_and_a_click_chooses_a_row(open_page, image_trace: Trace) -> None:
    tab = open_page(image_trace.to_page())
    assert tab.locator("#source canvas").count() == tab.locator("#attention canvas").count() == 1
    canvas = tab.locator("#attention canvas")
    canvas.click(position={"x": 200, "y": canvas.bounding_box()["height"] - 22 - 9})  # the last row
    assert tab.get_attribute("#target [data-step='4']", "aria-selected") == "true"
    tab.click("#target [data-step='0']")
    begin, end = image_trace.frames.spans[0]
    assert f"columns {begin}–{end - 1}" in tab.inner_text("#facts")
    tab.select_option("#kind", "encoder")
    assert tab.locator("#attention canvas").count() == 1
    tab.select_option("#shade", "occlusion-mask")
    narrow = open_page(image_trace.to_page(), 400)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_command_inspects_the_path_of_a_file(translators: dict[str, Translator], tmp_path: Path) -> None:
    checkpoint = translators["image"].checkpoint
    save_model(tmp_path / "model", checkpoint)
    Image.fromarray(GIVEN["image"]).save(tmp_path / "x.png")
    (tmp_path / "empty.png").touch()
    run = CliRunner().invoke
    shown = run(main, ["inspect", str(tmp_path / "model"), str(tmp_path / "x.png"), "--json", "--threads", "1"])
    assert json.loads(shown.stdout)["trace"]["frames"]["levels"] == GIVEN["image"].T.tolist()
    page = ["--html", str(tmp_path / "x.html"), "--attribution", "input-gradient"]
    assert run(main, ["inspect", str(tmp_path / "model"), str(tmp_path / "x.png"), *page]).exit_code == 0
    broken = run(main, ["inspect", str(tmp_path / "model"), str(tmp_path / "empty.png")])
    assert broken.stderr == f"Error: {tmp_path}/empty.png: empty file, expected an image\n"
    (tmp_path / "pairs.tsv").write_text("x.png\tone two\n")
    lens = run(main, ["inspect", "corpus", str(tmp_path / "model"), str(tmp_path / "pairs.tsv")])
    assert lens.stdout.startswith("1 pairs, 3 target tokens")
