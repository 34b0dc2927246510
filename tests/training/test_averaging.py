from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.config import TrainingSettings
from translume.training.optimisation import MovingAverage, mean, snapshot
from translume.training.resume import Begun, State, add_candidate, averaged_with, describe_kept_weights
from translume.training.validation import Quality, clearly_better, improves, margin_of_labels, margin_of_texts


def state_of(update: int, candidates: list[int]) -> State:
    begun = Begun(
        source_tokenizer="",
        target_tokenizer="",
        data="",
        precision="fp32",
        threads=1,
        torch="",
        source_model="",
    )
    return State(begun=begun, update=update, candidates=candidates)


@given(values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=7))
def test_the_mean_is_that_of_all_members(values: list[float]) -> None:
    found = mean([{"w": torch.tensor([value])} for value in values])
    assert found["w"].dtype == torch.float32
    assert found["w"].item() == pytest.approx(sum(values) / len(values), rel=1e-6, abs=1e-9)


def test_a_snapshot_does_not_move_with_the_weights() -> None:
    weights = {"w": torch.ones(3)}
    kept = snapshot(weights)
    weights["w"].add_(1.0)
    assert kept["w"].tolist() == [1.0, 1.0, 1.0]


def test_a_moving_average_worked_out_by_hand() -> None:
    weights = {"w": torch.tensor([0.0])}
    average = MovingAverage(0.5, weights)
    weights["w"].fill_(11.0)
    average.add(weights, 1)  # decay min(0.5, 2/11)
    assert average.values["w"].item() == pytest.approx(9.0)
    average.add(weights, 100)  # decay 0.5
    assert average.values["w"].item() == pytest.approx(10.0)
    assert weights["w"].item() == 11.0


def test_candidates_are_the_last_checkpoints_if_averaging_is_enabled() -> None:
    state = state_of(0, [])
    for state.update in (3, 6, 9, 12):
        add_candidate(state, TrainingSettings(average_last=2, keep=3))
    assert state.candidates == [6, 9, 12]
    assert averaged_with(state, TrainingSettings(average_last=2)) == [9]
    add_candidate(state, TrainingSettings(average_last=1, keep=3))
    assert state.candidates == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"average_last": 3}, "the mean of the weights after updates 6, 9, 10"),
        ({"average_last": 3, "ema": 0.9}, "the mean of the moving average of the weights after updates 6, 9, 10"),
        ({"metric": "bleu", "average_last": 1}, "the weights after update 8, the best by bleu"),
    ],
)
def test_kept_weights_are_described(settings: dict[str, object], expected: str) -> None:
    state = state_of(10, [3, 6, 9])
    state.best_update = 8
    assert describe_kept_weights(state, TrainingSettings.model_validate(settings)) == expected


def test_best_weights_better_than_the_mean_are_described_until_it_is_forgotten() -> None:
    state, settings = state_of(10, [3, 6, 9]), TrainingSettings(average_last=3)
    state.best_update, state.best_nll, state.mean_nll, state.keeps_best = 8, 2.5, 3.5, True
    best = "the weights after update 8, the best by nll"
    assert describe_kept_weights(state, settings) == f"{best} and better than the mean of the last 3"
    assert describe_kept_weights(state, TrainingSettings(average_last=5)).endswith("better than the mean of the last 4")
    state.candidates = []
    assert describe_kept_weights(state, settings) == f"{best} and better than the last"
    state.candidates = [3, 6, 9]
    assert state.kept_quality(settings) == (2.5, {})
    state.forget_mean()
    assert describe_kept_weights(state, settings) == "the mean of the weights after updates 6, 9, 10"
    assert state.kept_quality(settings) == (None, {})


TEXTS, LABELS = margin_of_texts, margin_of_labels


@pytest.mark.parametrize(("metric", "margin", "best", "mean", "kept"), [
    ("bleu", TEXTS(1000), 43.8, 40.7, False),  # 100 / √1000 = 3.16
    ("bleu", TEXTS(1000), 43.9, 40.7, True),
    ("bleu", TEXTS(90_000), 41.1, 40.7, False),  # less than 1 % better
    ("bleu", TEXTS(90_000), 41.3, 40.7, True),
    ("rougeL", TEXTS(39), 44.0, 28.0, False),  # 100 / √39 = 16.01
    ("rougeL", TEXTS(39), 44.1, 28.0, True),
    ("accuracy", LABELS(39), 35.0, 28.0, False),  # 300 / 39 = 7.7
    ("accuracy", LABELS(39), 36.0, 28.0, True),
    ("accuracy", LABELS(39), 5 / 0.39, 2 / 0.39, False),  # three more texts
    ("accuracy", LABELS(39), 6 / 0.39, 2 / 0.39, True),
    ("nll", TEXTS(39), 1.99, 2.0, False),
    ("nll", TEXTS(39), 1.97, 2.0, True),  # a mean over tokens, of which there are more than pairs
    ("perplexity", 0.0, 19.7, 20.0, True),
    ("bleu", TEXTS(1000), 41.0, float("nan"), True),
])  # fmt: skip
def test_the_best_weights_are_kept_only_if_they_clearly_beat_the_mean(
    metric: str, margin: float, best: float, mean: float, kept: bool
) -> None:
    quality = Quality(nll=mean, metrics={metric: mean}, task_margin=margin)
    assert clearly_better(metric not in ("nll", "perplexity"), best, quality, metric) == kept


@pytest.mark.parametrize("margin", [margin_of_texts, margin_of_labels])
@given(best=st.floats(0, 100), mean=st.floats(0, 100), texts=st.integers(1, 2000))
def test_more_texts_never_turn_a_clear_lead_into_chance(
    margin: Callable[[int], float], best: float, mean: float, texts: int
) -> None:
    few, more = (Quality(nll=1.0, metrics={"bleu": mean}, task_margin=margin(count)) for count in (texts, texts + 1))
    assert not clearly_better(True, best, few, "bleu") or clearly_better(True, best, more, "bleu")


@given(value=st.floats(0, 100), other=st.floats(0, 100), nll=st.floats(0, 9), lower=st.floats(0, 9))
def test_of_equal_metrics_the_lower_nll_is_better(value: float, other: float, nll: float, lower: float) -> None:
    """Exact match is 0 in the first validations of many tasks, and smoothed BLEU hardly more."""
    first, second = (Quality(nll=each, metrics={"bleu": bleu}) for each, bleu in ((5.3, 5e-4), (4.8, 7e-7)))
    assert improves(True, "bleu", second, first)
    best = Quality(nll=nll, metrics={"exact_match": value})
    assert improves(True, "exact_match", Quality(nll=lower, metrics={"exact_match": value}), best) == (lower < nll)
    differs = Quality(nll=lower, metrics={"exact_match": other})
    alike = f"{other:.2f}" == f"{value:.2f}"
    assert improves(True, "exact_match", differs, best) == (lower < nll if alike else other > value)
    assert not improves(True, "exact_match", Quality(nll=lower, metrics={"exact_match": float("nan")}), best)
    assert improves(True, "exact_match", best, None)
