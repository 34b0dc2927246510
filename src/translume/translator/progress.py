"""What the targets of lines are certain to begin with, told while they are still searched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from translume.decoding import Beam, SearchObserver, StablePrefix
from translume.text import Tokenizer
from translume.translator.plan import Plan, finish
from translume.translator.values import TextHypothesis

Tell = Callable[[str], None]
"""Is called with what a line's target begins with, whatever comes; each time with more than the time before."""


class Progress:
    """Tells of some of the lines that are translated together; of the others nothing is kept, and nothing costs more.

    What is told is text as `Translation.text` has it: whole characters of hypotheses' certain tokens, pieces joined as
    they will be, without white space at the end, which may still go.
    """

    def __init__(self, tokenizer: Tokenizer, plans: Sequence[Plan], tell: Mapping[int, Tell]) -> None:
        """tokenizer: of the target.  tell: by the number of a line among those of `plans`; others are not watched."""
        self._tokenizer = tokenizer
        self._lines = [_Line(plan, tell[plan.line.number]) if plan.line.number in tell else None for plan in plans]
        # Of each piece of all plans, in order: its line, and its place there.
        self._places = [
            (line, place) for line, plan in zip(self._lines, plans, strict=True) for place in range(len(plan.pieces))
        ]

    def watch(self, chosen: Sequence[int], *, ranked_anew: bool) -> SearchObserver | None:
        """What watches a search of the pieces `chosen`, by their places in all plans; None where none is to be told of.

        ranked_anew: whether the best target is chosen otherwise than by the search's scores.
        """
        sentences = [number for number, index in enumerate(chosen) if self._places[index][0] is not None]
        if not sentences:
            return None

        def tell(sentence: int, ids: Sequence[int]) -> None:
            self.certain(chosen[sentence], ids)

        return StablePrefix(tell, sentences, ranked_anew=ranked_anew)

    def certain(self, index: int, ids: Sequence[int]) -> None:
        """Know what the target of a piece, by its place in all plans, begins with."""
        self._know(index, self._tokenizer.beginning(ids), whole=False)

    def found(self, index: int, hypotheses: Sequence[TextHypothesis]) -> None:
        """Take the target of a piece, by its place in all plans, as the best of its hypotheses, for good."""
        if hypotheses:
            self._know(index, hypotheses[0].text, whole=True)

    def _know(self, index: int, text: str, *, whole: bool) -> None:
        line, place = self._places[index]
        if line is not None:
            line.know(place, text, whole=whole)


@dataclass(frozen=True, slots=True)
class WhileWanted:
    """Watches as `watch` does, and asks at each beam whether to go on."""

    go_on: Callable[[], None]
    watch: SearchObserver | None = None

    def __call__(self, beam: Beam) -> None:
        self.go_on()
        if self.watch is not None:
            self.watch(beam)


def while_wanted(watch: SearchObserver | None, go_on: Callable[[], None] | None) -> SearchObserver | None:
    """What watches as `watch` does, and asks at each beam whether to go on; None where there is nothing to do."""
    return watch if go_on is None else WhileWanted(go_on, watch)


class _Line:
    """What is known of a line's pieces. A piece that has no ids has nothing to wait for."""

    def __init__(self, plan: Plan, tell: Tell) -> None:
        self._plan, self._tell = plan, tell
        self._texts = ["" for _ in plan.pieces]
        self._whole = [not piece.ids for piece in plan.pieces]
        self._told = 0

    def know(self, place: int, text: str, *, whole: bool) -> None:
        """Keep what a piece's target begins with, or is; tell what the line's begins with where that is more now."""
        self._texts[place], self._whole[place] = text, whole
        known = next((number for number, done in enumerate(self._whole) if not done), len(self._whole) - 1)
        if place > known:
            return
        pieces = self._plan.pieces[: known + 1]
        found = [[_text(each)] if piece.ids else [] for piece, each in zip(pieces, self._texts, strict=False)]
        begun = finish(replace(self._plan, pieces=pieces), found, 1).text.rstrip()
        if len(begun) > self._told:
            self._told = len(begun)
            self._tell(begun)


def _text(text: str) -> TextHypothesis:
    return TextHypothesis(text=text, tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos")
