"""Lines that come one after another: who comes enters the search that is running, who is done leaves it at once."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import torch

from translume.config import DecodingSettings
from translume.decoding import Certainty, SearchError, Stepper, Watch, advance
from translume.errors import TranslumeError
from translume.translator.batching import SHORTEST, WIDE
from translume.translator.constraining import relaxed
from translume.translator.constraining import width as constrained_width
from translume.translator.finishing import Found, finished
from translume.translator.plan import Line, LineError, Piece, Plan
from translume.translator.progress import Progress, Tell
from translume.translator.rules import explained
from translume.translator.searching import Cohort, prepare
from translume.translator.translator import Translator
from translume.translator.values import Translation
from translume.translator.wanted import Wanted

REMEMBERED = 16
"""Settings whose checks are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """A line that is to be translated, and how; known by itself, so that two may have the same number.

    tell: is told what its target begins with while it is searched; see `Progress`.
    """

    line: Line
    settings: DecodingSettings
    tell: Tell | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """When others may enter a search that is running, rather than begin when it is done.

    Not at once: what is saved by reading the weights for all of them is little, and each waits for the others' steps.
    But nobody shall wait for the longest of many, or for a single long one.

    cohorts: most that are searched at a time.  share: others may enter when of every cohort at most so much is left,
    or it has taken this many `steps`.
    """

    cohorts: int = 4
    share: float = 0.25
    steps: int = 32

    def __post_init__(self) -> None:
        if self.cohorts < 1:
            raise ValueError(f"cohorts is {self.cohorts}, wanted at least 1")

    def lets_in(self, left: int, began: int, steps: int) -> bool:
        """Whether others may enter beside a cohort of which so many are left."""
        return left <= self.share * began or steps >= self.steps


More = Callable[[int], Sequence[Entry]]
"""Is asked for entries that have come meanwhile, and told how many tokens there is room for."""
Done = tuple[Entry, Translation | TranslumeError]


def translate_entering(
    translator: Translator, more: More, *, max_tokens: int | None = None, joining: Joining | None = None
) -> Iterator[Done]:
    """Each entry and its translation as soon as it is done, or the error it ended in, which concerns no other one.

    more: is asked whenever nothing is searched, and between two steps while others may enter (`joining`). What it gives
    begins at once, as a cohort: with its own count of steps, beside those that are under way. What does not fit waits
    here, and nobody is asked meanwhile. Where it gives nothing while nothing is searched, this ends; to wait is the
    caller's part.
    What an entry's `tell` raises ends all of them.
    max_tokens: most that is searched at a time, counted as batches are; None for [decoding].max_tokens of the model.

    A translation is the one that `translate` gives, whatever is beside it and whenever it came.
    """
    crowd = _Crowd(translator, max_tokens or translator.config.decoding.max_tokens, joining or Joining())
    while True:
        room = crowd.room
        came = more(room) if room else ()
        if crowd.empty and not came:
            return
        crowd.take(came)
        crowd.begin()
        crowd.step()
        yield from crowd.leaving()


@dataclass(slots=True, eq=False)
class _Entered:
    """A line that is being translated. found: of each piece; left: how many are not done yet.

    over: whether it has its translation, or its error.
    """

    entry: Entry
    plan: Plan
    wanted: Wanted
    progress: Progress
    found: list[Found]
    left: int
    over: bool = False


@dataclass(slots=True, eq=False)
class _Part:
    """A piece of it, by its place there. kept: hypotheses it keeps for its constraints, 0 for none."""

    of: _Entered
    place: int
    piece: Piece
    kept: int
    warnings: list[str] = field(default_factory=list)

    @property
    def like(self) -> tuple[Wanted, int]:
        """What those that begin together have in common."""
        return self.of.wanted, self.kept

    def tokens(self, longest: int = 0) -> int:
        """What it counts for in a batch beside one of `longest` tokens."""
        length = max(len(self.piece.ids) + 1, longest, SHORTEST)
        return length * max(self.kept or self.of.wanted.width, WIDE) // WIDE


@dataclass(slots=True, eq=False)
class _Company:
    """Parts that began together.

    left: of them, by their places, those that are not done.  held: how many there is memory for.  each: tokens that
    one of them counts for.
    """

    parts: list[_Part]
    cohort: Cohort
    left: set[int]
    held: int
    each: int

    def compact(self) -> None:
        """Give back the memory of those that are done, where that is at least half of it."""
        if 2 * len(self.left) <= self.held:
            self.cohort.search.compact()
            self.held = len(self.left)

    @property
    def tokens(self) -> int:
        """What those that are left count for."""
        return len(self.left) * self.each


class _Crowd:
    """All that waits, is searched, and is done but not given back yet."""

    def __init__(self, translator: Translator, budget: int, joining: Joining) -> None:
        """budget: most tokens that are searched at a time."""
        self._budget, self._joining = budget, joining
        self._translator = translator
        self._waiting: list[_Part] = []
        self._companies: list[_Company] = []
        self._done: list[Done] = []
        self._wanted: deque[Wanted] = deque(maxlen=REMEMBERED)
        self._steppers: dict[bool, Stepper] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing is searched."""
        return not self._waiting and not self._companies

    @property
    def room(self) -> int:
        """Tokens that may come; 0 where nobody shall be asked."""
        return 0 if self._waiting else max(0, self._free())

    def take(self, entries: Sequence[Entry]) -> None:
        """Have them wait for their turn, in their order."""
        for entry, wanted, plan in self._planned(entries):
            tell = {} if entry.tell is None else {entry.line.number: entry.tell}
            one = _Entered(
                entry=entry,
                plan=plan,
                wanted=wanted,
                progress=Progress(self._translator.checkpoint.target_tokenizer, [plan], tell),
                found=[([], ()) for _ in plan.pieces],
                left=sum(bool(piece.ids) for piece in plan.pieces),
            )
            if one.left == 0:
                self._finish(one)
            for place, piece in enumerate(plan.pieces):
                if piece.ids:
                    self._waiting.append(_Part(of=one, place=place, piece=piece, kept=self._kept(piece, wanted)))

    def _planned(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Wanted, Plan]]:
        """Those of them that can be translated, with their plans; the others are done."""
        together: dict[Wanted, list[int]] = {}
        plans: dict[int, tuple[Wanted, Plan | TranslumeError]] = {}
        for number, entry in enumerate(entries):
            try:
                together.setdefault(self._known(entry.settings), []).append(number)
            except TranslumeError as error:
                self._done.append((entry, error))
        for wanted, numbers in together.items():
            found = self._plans([entries[number].line for number in numbers], wanted.settings)
            plans |= {number: (wanted, plan) for number, plan in zip(numbers, found, strict=True)}
        for number, (wanted, plan) in sorted(plans.items(), key=itemgetter(0)):
            if isinstance(plan, Plan):
                yield entries[number], wanted, plan
            else:
                self._done.append((entries[number], plan))

    def _plans(self, lines: Sequence[Line], settings: DecodingSettings) -> list[Plan | TranslumeError]:
        """A plan for each line, or why it has none."""
        try:
            return [*self._translator.plans(lines, settings)]
        except TranslumeError as error:
            if len(lines) == 1:
                return [error]
        return [plan for line in lines for plan in self._plans([line], settings)]

    @torch.inference_mode()
    def begin(self) -> None:
        """Let those that wait begin, as far as there is room, the first first and with it those that are like it."""
        while self._waiting and (free := self._free()) > 0:
            first = self._waiting[0]
            chosen: list[_Part] = []
            longest = 0
            for part in self._waiting:
                if part.like == first.like:
                    longer = max(longest, len(part.piece.ids) + 1)
                    if (len(chosen) + 1) * part.tokens(longer) > free and (chosen or self._companies):
                        break
                    chosen.append(part)
                    longest = longer
            if not chosen:
                return
            begun = set(map(id, chosen))
            self._waiting = [part for part in self._waiting if id(part) not in begun]
            for company in self._companies:
                company.compact()
            try:
                cohort = self._cohort(chosen)
            except TranslumeError as error:  # a file that rules name may be gone since they were checked
                for part in chosen:
                    self._refuse(part.of, error)
                continue
            count, each = len(chosen), first.tokens(longest)
            self._companies.append(_Company(chosen, cohort, set(range(count)), held=count, each=each))

    def step(self) -> None:
        """One step of all that is searched."""
        beams = advance([company.cohort.search for company in self._companies])
        for company, beam in zip(self._companies, beams, strict=True):
            if isinstance(beam, SearchError):
                self._break(company, beam)
                continue
            company.cohort.see(beam)
            if company.cohort.search.leaving:
                for place in beam.sentences[beam.finished].tolist():
                    company.left.remove(place)
                    try:
                        self._found(company, place)
                    except TranslumeError as error:
                        self._refuse(company.parts[place].of, error)
        self._companies = [company for company in self._companies if company.left]

    def leaving(self) -> Iterator[Done]:
        """What is done, once."""
        done, self._done = self._done, []
        yield from done

    def _free(self) -> int:
        """Tokens that may begin now."""
        companies, joining = self._companies, self._joining
        if len(companies) >= joining.cohorts:
            return 0
        if not all(joining.lets_in(len(each.left), len(each.parts), each.cohort.search.length) for each in companies):
            return 0
        return self._budget - sum(each.tokens for each in companies)

    def _known(self, settings: DecodingSettings) -> Wanted:
        """What settings want; SettingsError where they do not fit the translator."""
        for each in self._wanted:
            if each.settings is settings or each.settings == settings:
                return each
        self._translator.check(settings)
        self._wanted.append(Wanted.of(settings))
        return self._wanted[-1]

    def _kept(self, piece: Piece, wanted: Wanted) -> int:
        return constrained_width(piece, self._translator.checkpoint, wanted.settings) if piece.constraints else 0

    def _cohort(self, parts: Sequence[_Part]) -> Cohort:
        """The search of parts that are like one another."""
        translator, wanted = self._translator, parts[0].of.wanted
        if wanted.attentive not in self._steppers:
            self._steppers[wanted.attentive] = translator.models.stepper(attentive=wanted.attentive)
        prepared = prepare(
            translator.checkpoint,
            [part.piece for part in parts],
            wanted.search,
            self._steppers[wanted.attentive],
            translator.fusion,
            translator.table,
        )
        return Cohort(prepared, len(parts), self._watch(parts))

    def _watch(self, parts: Sequence[_Part]) -> Watch | None:
        """What tells of those parts that somebody wants to hear of, unless they may have to be searched again."""
        sentences = [
            number
            for number, part in enumerate(parts)
            if part.of.entry.tell is not None and not part.kept and not part.of.over
        ]
        if not sentences:
            return None

        def tell(sentence: int, ids: Sequence[int]) -> None:
            parts[sentence].of.progress.certain(parts[sentence].place, ids)

        return Certainty(tell, sentences, ranked_anew=parts[0].of.wanted.ranked)

    def _found(self, company: _Company, place: int) -> None:
        """Take what was found for a part, or have it searched again without what no target can hold."""
        part, checkpoint = company.parts[place], self._translator.checkpoint
        one = part.of
        if one.over:
            return
        hypotheses = company.cohort.found(place)
        left = relaxed(part.piece, hypotheses, checkpoint, one.wanted.search) if part.piece.constraints else None
        if left is not None:
            part.piece, warning = left
            part.warnings.append(warning)
            part.kept = self._kept(part.piece, one.wanted)
            self._waiting.insert(0, part)
            return
        best = one.wanted.best(hypotheses, checkpoint.target_tokenizer)
        one.found[part.place] = (best, tuple(part.warnings))
        one.progress.found(part.place, best)
        one.left -= 1
        if one.left == 0:
            self._finish(one)

    def _refuse(self, one: _Entered, error: TranslumeError) -> None:
        """End a line in an error; what of it waits does not begin."""
        if not one.over:
            one.over = True
            self._done.append((one.entry, error))
        self._waiting = [part for part in self._waiting if not part.of.over]

    def _finish(self, one: _Entered) -> None:
        (translation,) = finished(self._translator.checkpoint, [one.plan], one.found, one.wanted.settings)
        one.over = True
        self._done.append((one.entry, translation))

    def _break(self, company: _Company, error: SearchError) -> None:
        """One of a company cannot be translated: its line ends in an error, and the others begin again without it."""
        one = company.parts[error.sentence].of
        told = explained(error, self._translator.checkpoint, one.wanted.search)
        self._refuse(one, LineError(one.plan.line, f"token {told.token}: {told.reason}"))
        again = [company.parts[place] for place in sorted(company.left)]
        company.left.clear()
        self._waiting = [part for part in (*again, *self._waiting) if not part.of.over]
