"""Lines that share one search: each enters while others run, and is given back when it is done."""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from translume.config import DecodingSettings
from translume.decoding import CompleteSearch, Hypothesis, SearchError, runs_searches
from translume.errors import TranslumeError
from translume.lazy import inference_mode
from translume.translator.assembly import ProgressCallback, ProgressReporter, SearchedPiece, build_translations
from translume.translator.planning import Line, LineError, LinePlan, Piece
from translume.translator.results import Translation
from translume.translator.search import SearchPlan, prepare_search
from translume.translator.translator import Translator
from translume.translator.workers import outcomes

STEPS = 4
"""Steps of a search between which lines enter and leave, and their certain beginnings are reported."""

Key = TypeVar("Key", bound=Hashable)


class _UnneededError(Exception):
    """No line of a search is needed any more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Entered(Generic[Key]):
    """A line in the search.  searched: hypotheses and warnings of each piece, None until it is done."""

    key: Key
    plan: LinePlan
    progress: ProgressReporter | None
    searched: list[SearchedPiece | None]


class Cohort(Generic[Key]):
    """Translates lines with certain settings. Results do not depend on when a line enters, nor on the others.

    Lines that the compiled search does not support are translated by the decoding loop, all at once.
    """

    def __init__(self, translator: Translator, settings: DecodingSettings) -> None:
        self._translator, self._settings, self._how = translator, settings, SearchPlan.from_settings(settings)
        self._stepper = translator.models.stepper(attentive=self._how.needs_attention)
        self._searches = runs_searches(self._stepper)
        self._search: CompleteSearch | None = None
        self._pieces: dict[int, tuple[_Entered[Key], int]] = {}  # by their numbers in the search: a line, a place there
        self._apart: dict[Key, tuple[Line, ProgressCallback | None]] = {}  # not in the search
        self._done: dict[Key, Translation | TranslumeError] = {}

    def __len__(self) -> int:
        """The number of lines that are not given back yet."""
        return len({id(line) for line, _ in self._pieces.values()}) + len(self._apart) + len(self._done)

    @inference_mode()
    def enter(self, lines: Mapping[Key, Line], on_progress: Mapping[Key, ProgressCallback]) -> None:
        """Add lines under keys that no other line has.

        on_progress: called with the part of the translation that is final; see `ProgressReporter`.
        """
        entered = []
        for (key, line), plan in zip(lines.items(), self._plans(list(lines.values())), strict=True):
            callback = on_progress.get(key)
            if isinstance(plan, LineError):
                self._done[key] = plan
                continue
            data = self._translator.config.data
            windowed = data.source.window or data.context.used
            if not self._searches or windowed or any(piece.constraints for piece in plan.pieces):
                self._apart[key] = line, callback
                continue
            tokenizer = self._translator.checkpoint.target_tokenizer
            progress = ProgressReporter(tokenizer, [plan], {line.number: callback}) if callback is not None else None
            searched: list[SearchedPiece | None] = [None if piece.ids else ([], ()) for piece in plan.pieces]
            entered.append(_Entered(key=key, plan=plan, progress=progress, searched=searched))
        places = [(line, place) for line in entered for place, done in enumerate(line.searched) if done is None]
        if places and not self._begin(places):
            self._apart |= {line.key: (line.plan.line, on_progress.get(line.key)) for line, _ in places}
        for each in entered:
            self._complete(each)

    def _plans(self, lines: list[Line]) -> list[LinePlan | LineError]:
        """The plan of each line, or the reason why there is none."""
        try:
            return [*self._translator.plans(lines, self._settings)]
        except LineError as error:
            return [error] if len(lines) == 1 else [outcome for line in lines for outcome in self._plans([line])]

    def _begin(self, places: list[tuple[_Entered[Key], int]]) -> bool:
        """Let pieces enter the search; return False if it does not support them."""
        pieces = [line.plan.pieces[place] for line, place in places]
        checkpoint, fusion = self._translator.checkpoint, self._translator.fusion
        prepared = prepare_search(checkpoint, pieces, self._how.decoding, self._stepper, fusion)
        begun = prepared.begin_search(self._search)
        if begun is None and self._search is not None and not self._pieces:
            begun = prepared.begin_search()
        if begun is None:
            return False
        self._search, numbers = begun
        self._pieces |= dict(zip(numbers, places, strict=True))
        return True

    def close(self) -> None:
        """Let later searches use its memory. All lines must have been given back."""
        if self._search is not None and not self._pieces:
            self._search.close()
            self._search = None

    def remove(self, key: Key) -> None:
        """Remove a line that is no longer needed; nothing is given back for it."""
        for number in [number for number, (line, _) in self._pieces.items() if line.key == key]:
            assert self._search is not None
            self._search.remove(number)
            del self._pieces[number]
        self._apart.pop(key, None)
        self._done.pop(key, None)

    @inference_mode()
    def run(self, unneeded: Callable[[], Collection[Key]] = tuple) -> dict[Key, Translation | TranslumeError]:
        """Take some steps; return the results of the lines that are done, a LineError for one that has none.

        unneeded: keys of lines to `remove`. The decoding loop ends when all of its lines are among them.
        """
        for key in unneeded():
            self.remove(key)
        if self._apart:
            self._done |= self._loop(unneeded)
        if self._search is not None and self._pieces:
            for number in self._search.run(STEPS):
                line, place = self._pieces.pop(number)
                self._end(line, place, self._search.hypotheses(number))
            self._report(self._search)
        done, self._done = self._done, {}
        return done

    def _report(self, search: CompleteSearch) -> None:
        for number, (line, place) in self._pieces.items():
            if line.progress is not None:
                line.progress.begin(place, search.stable_prefix(number, every=self._how.reranked))

    def _end(self, line: _Entered[Key], place: int, hypotheses: list[Hypothesis] | None) -> None:
        """Keep the hypotheses of a piece; None if the search failed."""
        if hypotheses is None:
            hypotheses = self._search_again(line, line.plan.pieces[place])
            if hypotheses is None:
                return
        (ranked,) = self._how.rank([hypotheses], [line.plan.pieces[place]], self._translator.checkpoint)
        if line.progress is not None:
            line.progress.complete(place, ranked)
        line.searched[place] = ranked, ()
        self._complete(line)

    def _search_again(self, line: _Entered[Key], piece: Piece) -> list[Hypothesis] | None:
        """Search by the decoding loop; if it raises an error, that is the line's result."""
        try:
            checkpoint, fusion = self._translator.checkpoint, self._translator.fusion
            return prepare_search(checkpoint, [piece], self._how.decoding, self._stepper, fusion).run()[0]
        except SearchError as error:
            self.remove(line.key)
            self._done[line.key] = LineError(line.plan.line, f"token {error.token}: {error.reason}")
            return None

    def _complete(self, line: _Entered[Key]) -> None:
        """Build the translation of a line all of whose pieces are done."""
        searched = [each for each in line.searched if each is not None]
        if len(searched) == len(line.searched):
            checkpoint, engine = self._translator.checkpoint, self._translator.engine
            self._done[line.key] = build_translations(checkpoint, [line.plan], searched, self._settings, engine)[0]

    def _loop(self, unneeded: Callable[[], Collection[Key]]) -> dict[Key, Translation | TranslumeError]:
        """Translate the lines that are not in the search by the decoding loop."""
        apart, self._apart = self._apart, {}

        def check_cancelled() -> None:
            if apart.keys() <= set(unneeded()):
                raise _UnneededError

        numbered = [replace(line, number=number) for number, (line, _) in enumerate(apart.values())]
        on_progress = {number: report for number, (_, report) in enumerate(apart.values()) if report is not None}
        try:
            results = outcomes(
                lambda model, lines, how: model.translate_lines(lines, how, on_progress, check_cancelled),
                self._settings,
                self._translator,
                numbered,
            )
            return dict(zip(apart, results, strict=True))
        except _UnneededError:
            return {}
