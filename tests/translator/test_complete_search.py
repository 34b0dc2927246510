"""A stepper that can run whole searches does so unless beams are observed; otherwise the decoding loop searches."""

from collections.abc import Callable
from typing import Any

import pytest

from translume.config import DecodingSettings
from translume.decoding import Hypothesis, ScoreTerms
from translume.translator import Translator
from translume.translator.planning import Piece
from translume.translator.search import prepare_search

FOUND = [[Hypothesis(tokens=(5, 2), log_prob=-1.0, log_probs=(-0.25, -0.75), score=-0.5,
                     terms=ScoreTerms(total=-1.0, divisor=2.0), finished_by="eos")]]  # fmt: skip
PIECES = [Piece(text="abc", ids=(5, 6, 7), first=True)]
GREEDY = DecodingSettings(strategy="greedy", max_length=3)


class FakeSearcher:
    """A searcher that takes `takes` steps; if `found` is None, it leaves the search to the loop."""

    def __init__(self, model: Any, found: list[list[Hypothesis]] | None = FOUND, takes: int = 3) -> None:
        self.start, self.step = model.start, model.step
        self._found, self._left, self.asked = found, takes, []

    def complete_search(self, state: Any, **words: Any) -> tuple["FakeSearcher", range]:
        self.words = words
        return self, range(1)

    @property
    def live(self) -> int:
        return int(self._left > 0)

    def run(self, steps: int) -> list[int]:
        self.asked.append(steps)
        self._left -= steps
        return [] if self.live else [0]

    def hypotheses(self, number: int) -> list[Hypothesis] | None:
        return None if self._found is None else self._found[number]

    def close(self) -> None:
        assert not self.live


@pytest.fixture(scope="module")
def plain(make: Callable[..., Translator]) -> Translator:
    return make()


def searched(plain: Translator, stepper: FakeSearcher | None, settings: DecodingSettings = GREEDY, **words: Any) -> Any:
    return prepare_search(plain.checkpoint, PIECES, settings, stepper).run(**words)


def test_the_searchers_hypotheses_are_returned_and_python_gets_control_every_eight_steps(plain):
    stepper = FakeSearcher(plain.checkpoint.model, takes=19)
    assert searched(plain, stepper) == FOUND
    assert stepper.asked == [8, 8, 8]
    assert (stepper.words["prompts"].tolist(), stepper.words["eos"]) == ([[1]], 2)
    assert stepper.words["limits"].tolist() == [3]


def test_a_cancel_check_is_called_every_eight_steps(plain):
    stepper, asked = FakeSearcher(plain.checkpoint.model, takes=19), []
    assert searched(plain, stepper, check_cancelled=lambda: asked.append(len(stepper.asked))) == FOUND
    assert (stepper.asked, asked) == ([8, 8, 8], [1, 2, 3])

    def enough() -> None:
        raise KeyError("enough")

    stepper = FakeSearcher(plain.checkpoint.model)
    with pytest.raises(KeyError):
        searched(plain, stepper, check_cancelled=enough)
    assert stepper.asked == [8]


def test_the_loop_searches_if_the_searcher_returns_none(plain):
    assert searched(plain, FakeSearcher(plain.checkpoint.model, found=None)) == searched(plain, None)


def test_a_search_with_a_wrapped_step_is_left_to_the_loop(plain):
    settings, stepper = GREEDY.model_copy(update={"unsmooth": 0.1}), FakeSearcher(plain.checkpoint.model)
    assert searched(plain, stepper, settings) == searched(plain, None, settings)
    assert stepper.asked == []


def test_observers_receive_the_beams_of_the_loop(plain):
    for check in (None, lambda: None):
        stepper, beams = FakeSearcher(plain.checkpoint.model), []
        assert searched(plain, stepper, observer=beams.append, check_cancelled=check) == searched(plain, None)
        assert stepper.asked == []
        assert beams
