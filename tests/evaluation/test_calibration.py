"""Calibration: bins worked by hand, known temperatures recovered, and independence of chunk sizes."""

import copy
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.inspection.conftest import build, kinds

from translume.belief import Logits
from translume.config import heads
from translume.errors import DataError, SettingsError
from translume.evaluation import Calibration, fit_temperature, measure_calibration
from translume.evaluation.calibration import Bins, best_temperature, reliability_of
from translume.translator import Translator

END = 2
seeds = st.integers(0, 10**6)


class Unnormalised(Logits):
    """Probabilities taken as given; they need not sum to one."""

    normalised = False

    def __init__(self, probabilities):
        super().__init__(probabilities.log())

    def _normaliser(self):
        zero = torch.zeros(self.rows, 1)
        return zero, zero


def draw(seed, count=4001, size=13, sharpness=2.0, temperature=1.0):
    """Logits in fp64, and labels drawn from their softmax at `temperature`."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, size, generator=generator, dtype=torch.float64) * sharpness
    labels = (logits / temperature).softmax(-1).multinomial(1, generator=generator)[:, 0]
    return logits, labels


def in_chunks(logits, labels, rows):
    starts = range(0, len(logits), rows)
    return [(Logits(logits[start : start + rows]), labels[start : start + rows]) for start in starts]


def expected(logits, truth):
    """Predicted distributions `logits`, with each label as often as `truth` [n, V] says, in hundredths."""
    counts = (truth * 100).round().long()
    rows = torch.arange(len(logits)).repeat_interleave(counts.sum(-1))
    labels = torch.cat([torch.arange(truth.size(1)).repeat_interleave(row) for row in counts])
    return [(Logits(logits[rows]), labels)]


def test_bins_worked_by_hand():
    bins = Bins(5)
    confidence = torch.tensor([0.0, 0.2, 0.3, 0.3, 0.4], dtype=torch.float64)  # 0.2 is still in the first bin
    bins.add(confidence, torch.tensor([True, False, False, False, True]))
    bins.add(torch.tensor([1.0, 0.9]), torch.tensor([True, False]))
    found = bins.reliability()
    assert [(each.low, each.high, each.count) for each in found.bins] == [
        (0.0, 0.2, 2), (0.2, 0.4, 3), (0.4, 0.6, 0), (0.6, 0.8, 0), (0.8, 1.0, 2)
    ]  # fmt: skip
    assert [each.accuracy for each in found.bins] == pytest.approx([1 / 2, 1 / 3, None, None, 1 / 2])
    assert [each.confidence for each in found.bins] == pytest.approx([0.1, 1 / 3, None, None, 0.95])
    assert (found.count, found.confidence, found.accuracy) == pytest.approx((7, 3.1 / 7, 3 / 7))
    # Of 7: two with confidence 0.1 and accuracy one half, three with equal confidence and accuracy, two with
    # confidence 0.95.
    assert found.ece == pytest.approx((2 * 0.4 + 3 * 0.0 + 2 * 0.45) / 7)


def test_equal_confidence_and_accuracy_give_a_calibration_error_of_zero():
    truth = torch.tensor([[0.7, 0.2, 0.1], [0.25, 0.35, 0.4], [0.5, 0.0, 0.5], [0.02, 0.9, 0.08]], dtype=torch.float64)
    found = reliability_of(expected(truth.log(), truth), END)
    assert found.tokens.ece == pytest.approx(0.0, abs=1e-12)
    assert found.end.ece == pytest.approx(0.0, abs=1e-12)
    assert (found.tokens.count, found.end.count) == (400, 400)
    assert found.tokens.accuracy == pytest.approx((0.7 + 0.4 + 0.5 + 0.9) / 4)
    assert found.end.accuracy == pytest.approx((0.1 + 0.4 + 0.5 + 0.08) / 4)
    entropy = -(truth * truth.log().nan_to_num(neginf=0.0)).sum(-1).mean()
    assert found.nll == pytest.approx(float(entropy))
    assert (found.impossible, found.normalised) == (0, True)


def test_confidence_above_accuracy_by_a_tenth_gives_an_error_of_a_tenth():
    said = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    true = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    found = reliability_of(expected(said.log(), true), END)
    assert found.tokens.ece == pytest.approx(0.1)
    assert found.end.ece == pytest.approx(0.1)
    assert (found.end.confidence, found.end.accuracy) == pytest.approx((0.1, 0.2))


@settings(deadline=None, max_examples=15)
@given(seeds, st.integers(1, 400))
def test_values_do_not_depend_on_chunk_sizes(seed, rows):
    logits, labels = draw(seed, count=401)
    whole = reliability_of(in_chunks(logits, labels, 401), END)
    parts = reliability_of(in_chunks(logits, labels, rows), END)
    assert flat(parts) == pytest.approx(flat(whole), abs=1e-12)


def flat(found):
    values = [found.nll, found.impossible]
    for side in (found.tokens, found.end):
        values += [side.ece, side.count, side.confidence, side.accuracy]
        for each in side.bins:
            values += [each.count, each.confidence or 0.0, each.accuracy or 0.0]
    return values


@pytest.mark.parametrize("planted", [0.31, 0.9, 1.0, 1.7, 6.5])
def test_a_known_temperature_is_recovered(planted):
    # To avoid sampling noise, each label of a row occurs in proportion to its probability, in ten-thousandths.
    logits, _ = draw(1, count=23, size=7, sharpness=3.0)
    shares = ((logits / planted).softmax(-1) * 1e4).round()
    rows = torch.arange(23).repeat_interleave(shares.sum(-1).long())
    labels = torch.cat([torch.arange(7).repeat_interleave(row.long()) for row in shares])
    wanted = best_temperature(lambda: in_chunks(logits[rows], labels, 70_001))
    assert wanted.value == pytest.approx(planted, abs=1e-3)
    assert wanted.tokens == len(labels)
    assert wanted.nll <= wanted.nll_before
    tempered = reliability_of(in_chunks(logits[rows], labels, 70_001), END, temperature=wanted.value)
    assert tempered.nll == pytest.approx(wanted.nll, abs=1e-9)
    assert tempered.tokens.ece < 1e-4
    assert tempered.temperature == wanted.value


@settings(deadline=None, max_examples=10)
@given(seeds, st.floats(0.3, 5.0), st.integers(100, 5000))
def test_no_other_temperature_has_a_smaller_nll(seed, temperature, rows):
    logits, labels = draw(seed, count=503, temperature=temperature)
    found = best_temperature(lambda: in_chunks(logits, labels, rows))

    def nll(at):
        return float(torch.nn.functional.cross_entropy(logits / at, labels))

    assert found.nll == pytest.approx(nll(found.value), abs=1e-9)
    assert found.nll_before == pytest.approx(nll(1.0), abs=1e-12)
    assert all(found.nll <= nll(found.value * factor) + 1e-12 for factor in (0.999, 1.001, 0.5, 2.0))


@pytest.mark.parametrize(
    ("logits", "labels", "temperature"),
    [([[2.0, 1.0, 0.0]], [0], 0.05), ([[0.0] * 5] * 3, [0, 1, 4], 1.0)],
    ids=["a model that is always right", "a uniform model"],
)
def test_temperatures_of_extreme_models(logits, labels, temperature):
    judged = [(Logits(torch.tensor(logits).double()), torch.tensor(labels))]
    assert best_temperature(lambda: judged).value == pytest.approx(temperature, rel=1e-3)


def test_impossible_tokens_are_counted_and_leave_no_nll():
    logits = torch.tensor([[0.0, -math.inf, 1.0], [2.0, 0.0, 1.0]]).double()
    labels = torch.tensor([1, 2])
    found = reliability_of([(Logits(logits), labels)], END)
    assert (found.impossible, found.nll) == (1, None)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["impossible"] == 1
    fitted = best_temperature(lambda: [(Logits(logits), labels)])
    alone = best_temperature(lambda: [(Logits(logits[1:]), labels[1:])])
    assert (fitted.tokens, fitted.value) == (1, pytest.approx(alone.value))
    with pytest.raises(DataError) as caught:
        best_temperature(lambda: [(Logits(logits[:1]), labels[:1])])
    assert str(caught.value) == "temperature: no token of the references is possible, expected at least one"


def test_unnormalised_scores_are_marked_and_not_fitted():
    judged = [(Unnormalised(torch.tensor([[0.9, 0.8, 0.3], [0.2, 0.1, 0.6]])), torch.tensor([0, 1]))]
    found = reliability_of(judged, END)
    assert (found.normalised, found.nll) == (False, None)
    assert found.tokens.confidence == pytest.approx(0.75)
    assert str(found).splitlines()[0] == (
        "ECE|of:tokens|confidence:max p|bins:15|forced:yes|T:1|distribution:no"
        " = 0.3500 (confidence 0.7500, right 0.5000 of 2)"
    )
    with pytest.raises(SettingsError) as caught:
        best_temperature(lambda: judged, name="the output head 'sigmoid'")
    assert str(caught.value) == (
        "temperature: the output head 'sigmoid' gives no distribution, expected one whose probabilities sum to one"
    )


def test_an_empty_measurement_is_refused():
    with pytest.raises(DataError) as caught:
        reliability_of([], END)
    assert str(caught.value) == "calibration: found no tokens, expected at least one"


def test_a_calibration_converts_to_json():
    logits, labels = draw(3, count=29)
    found = reliability_of(in_chunks(logits, labels, 29), END)
    assert isinstance(found, Calibration)
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert sorted(values) == ["end", "impossible", "nll", "normalised", "temperature", "tokens"]
    assert len(values["tokens"]["bins"]) == 15
    assert sum(each["count"] for each in values["end"]["bins"]) == values["end"]["count"] == 29
    assert len(str(found).splitlines()) == 2


def build_translator(kind):
    """A translator with random weights in fp64, where batches and chunks change only the last digits."""
    checkpoint = build(kind, encoder_layers=1, decoder_layers=1).checkpoint
    return Translator(replace(checkpoint, model=copy.deepcopy(checkpoint.model).double()))


@pytest.fixture(scope="module")
def translator():
    return build_translator(heads.SoftmaxSettings)


SOURCES = ["abc.", "a", "", "jihgfe dc ba kl.", "kl kl kl", "b a d"]
REFERENCES = ["cba", "", "b", "lk ab cd.", "a.a.a.a", "d a b l"]


def test_every_reference_token_is_counted_once(translator):
    found = measure_calibration(translator, SOURCES, REFERENCES)
    scores = list(translator.score_all(zip(SOURCES, REFERENCES, strict=True)))
    tokens = sum(len(each.tokens) for each in scores)
    assert found.tokens.count == found.end.count == tokens
    assert round(found.end.accuracy * tokens) == len(SOURCES)
    assert found.nll == pytest.approx(-sum(each.log_prob for each in scores) / tokens, rel=1e-6)


@pytest.mark.parametrize(("rows", "max_tokens"), [(1, 4096), (3, 20), (1000, 1)])
def test_batches_and_chunks_change_nothing(translator, rows, max_tokens):
    whole = measure_calibration(translator, SOURCES, REFERENCES)
    config = translator.config.change(f"decoding.max_tokens={max_tokens}")
    other = Translator(replace(translator.checkpoint, config=config))
    judged = list(other.beliefs(zip(SOURCES, REFERENCES, strict=True), rows=rows))
    assert max(labels.numel() for _, labels in judged) <= rows
    end = translator.checkpoint.target_tokenizer.specials.eos
    assert flat(reliability_of(judged, end)) == pytest.approx(flat(whole), abs=1e-9)


def test_a_fitted_temperature_lowers_the_nll_and_progress_is_reported(translator):
    seen = []
    found = fit_temperature(translator, SOURCES, REFERENCES, progress=seen.append)
    before = measure_calibration(translator, SOURCES, REFERENCES)
    after = measure_calibration(translator, SOURCES, REFERENCES, temperature=found.value)
    assert found.nll_before == pytest.approx(before.nll, rel=1e-9)
    assert found.nll == pytest.approx(after.nll, rel=1e-9)
    assert found.nll < found.nll_before
    assert sum(seen) % before.tokens.count == 0


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.model_fields["kind"].default)
def test_every_head_can_be_measured(kind):
    translator = build_translator(kind)
    pairs = list(zip(SOURCES, REFERENCES, strict=True))
    end = translator.checkpoint.target_tokenizer.specials.eos
    found = measure_calibration(translator, SOURCES, REFERENCES)
    parts = reliability_of(translator.beliefs(pairs, rows=3), end)
    assert found.normalised is translator.checkpoint.model.head.normalised
    assert (found.tokens.count, found.impossible) == (parts.tokens.count, parts.impossible)
    assert (parts.tokens.ece, parts.end.ece) == pytest.approx((found.tokens.ece, found.end.ece), abs=1e-9)
    if found.normalised:
        fitted = fit_temperature(translator, SOURCES, REFERENCES)
        assert fitted.tokens == found.tokens.count - found.impossible
        assert fitted.nll <= fitted.nll_before


def test_lists_of_different_lengths_are_refused():
    for measure in (measure_calibration, fit_temperature):
        with pytest.raises(DataError) as caught:
            measure(SimpleNamespace(), ["a", "b"], ["c"])
        assert str(caught.value) == "evaluate: 2 sources but 1 references, expected equally many"
