import math

import pytest

from translume.config import Config, TrainingSettings
from translume.training.optimisation import learning_rate


def settings_of(**training: object) -> TrainingSettings:
    return Config.build({"training": training}).training


@pytest.mark.parametrize(
    ("schedule", "update", "expected"),
    [
        ("inverse_sqrt", 1, 0.0005),
        ("inverse_sqrt", 4, 0.002),
        ("inverse_sqrt", 16, 0.001),
        ("constant", 2, 0.001),
        ("constant", 11, 0.002),
        ("cosine", 2, 0.001),
        ("cosine", 4, 0.002),
        ("cosine", 12, 0.001),
        ("cosine", 20, 0.0),
    ],
)
def test_learning_rates_computed_by_hand(schedule: str, update: int, expected: float) -> None:
    settings = settings_of(schedule=schedule, updates=20, learning_rate=0.002, warmup_updates=4)
    assert learning_rate(update, settings, 7) == pytest.approx(expected, abs=1e-12)


def test_noam_is_equation_three_of_vaswani_et_al() -> None:
    settings = settings_of(schedule="noam", learning_rate=1.0, warmup_updates=4000)
    assert learning_rate(1, settings, 512) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert learning_rate(4000, settings, 512) == pytest.approx(1 / math.sqrt(512 * 4000))
    assert learning_rate(16000, settings, 512) == pytest.approx(1 / math.sqrt(512 * 16000))


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "noam", "cosine", "constant"])
def test_schedules_without_warmup_start_with_a_finite_rate(schedule: str) -> None:
    settings = settings_of(schedule=schedule, updates=10, warmup_updates=0)
    rates = [learning_rate(update, settings, 7) for update in range(1, 11)]
    assert all(0 <= rate <= settings.learning_rate for rate in rates)
    assert rates == sorted(rates, reverse=True)
