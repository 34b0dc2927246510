"""The kinds of work of the scheduler: translate lines, score pairs, classify texts, continue prompts."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from translume.config import Config, DecodingSettings
from translume.config.languages import Direction
from translume.decoding import strategy_from
from translume.errors import TranslumeError
from translume.serving.api.errors import RequestError
from translume.serving.scheduler import WholeBatch
from translume.sources import Frames
from translume.text.sentences import sentences_of
from translume.translator import Classification, Classifier, Generation, Generator, TargetScore, Translation, Translator
from translume.translator.assembly import ProgressCallback, join_pieces
from translume.translator.cohort import Cohort
from translume.translator.constraints import build_constraint, constrained_beam_width, constraint_cost
from translume.translator.planning import (
    FULL_BATCH_WIDTH,
    MIN_COUNTED_TOKENS,
    Line,
    LineError,
    LinePlan,
    Piece,
    Reading,
    plan_lines,
)
from translume.translator.search import TOKEN_CACHE_BYTES, CancelCheck, target_limit

FRAMES_PER_CHARACTER = 4
"""Frames of a recording or image that count as one character: 25 a second of speech, which has about 15."""

_BREAKS = re.compile(r"([\r\n]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraphs:
    """The lines or sentences of a text.  gaps: the white space before each, and after the last.

    names: of each for error messages, such as "line 2, sentence 1"; empty if there is only one.
    """

    lines: tuple[str, ...]
    gaps: tuple[str, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def from_text(cls, text: str, language: str | None = None) -> "Paragraphs":
        """Split a text into its lines that are not blank or, with a language, into their sentences.

        language: a code; empty if it is unknown.  A text of one line, or of one sentence, is kept unchanged; a
        blank one has no lines.
        """
        parts = _BREAKS.split(text)
        split = [(part, [part] if language is None else sentences_of(part, language)) for part in parts]
        if len(split) == 1 and len(split[0][1]) == 1 and text.strip():
            return cls(lines=(text,), gaps=("", ""), names=("",))
        several = sum(bool(part.strip()) for part in parts) > 1
        lines, gaps, names, gap, number = [], [], [], "", 0
        for part, sentences in split:
            if not part.strip():
                gap += part
                continue
            number += 1
            for place, sentence in enumerate(sentences, start=1):
                line = sentence.strip()
                begin = sentence.index(line)
                lines.append(line)
                gaps.append(gap + sentence[:begin])
                gap = sentence[begin + len(line) :]
                names.append(", ".join([f"line {number}"] * several + [f"sentence {place}"] * (len(sentences) > 1)))
        return cls(lines=tuple(lines), gaps=(*gaps, gap), names=tuple(names))

    def join(self, text: str, translations: Sequence[Translation], nbest: int) -> Translation:
        """Join the translations of the lines to that of `text`, with the white space of the source between them."""
        if len(self.lines) == 1 and self.gaps == ("", ""):
            return translations[0]
        pieces = tuple(
            Piece(ids=(), text=line, spacing=gap, kept=bool(each.text) and not each.hypotheses)
            for line, gap, each in zip(self.lines, self.gaps[1:], translations, strict=True)
        )
        warnings = tuple(warning for each in translations for warning in each.warnings)
        plan = LinePlan(line=Line(number=0, text=text), pieces=pieces, warnings=warnings)
        if not translations:
            return Translation(source=text, text=self.gaps[0])
        whole = join_pieces(plan, [each.hypotheses for each in translations], nbest)
        first, last = self.gaps[0], self.gaps[-1]
        hypotheses = tuple(replace(each, text=f"{first}{each.text}{last}") for each in whole.hypotheses)
        return replace(
            whole,
            text=hypotheses[0].text if hypotheses else f"{first}{whole.text}{last}",
            hypotheses=hypotheses,
            quality_warnings=tuple(one for each in translations for one in each.quality_warnings),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Line):
    """A line of a text.  first: whether it is the text's first line; only that one gets a forced prefix.

    on_prefix: called during the search with the stable prefix of the target, in the scheduler's thread.
    """

    number: int = 0
    first: bool = True
    on_prefix: ProgressCallback | None = field(default=None, compare=False, repr=False)

    @property
    def frames(self) -> Frames | None:
        """The frames of a recording, image or array; None for a text."""
        return self.given if isinstance(self.given, Frames) else None

    @property
    def characters(self) -> int:
        """The characters that it counts for: those of the text, or the frames of another source / 4."""
        return len(self.text) if self.frames is None else math.ceil(len(self.frames.values) / FRAMES_PER_CHARACTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCost:
    """What translating a line may cost.

    size: tokens that it counts for in a batch.  target_tokens: the most that its search may make, over all hypotheses.
    usual_target_tokens: the same with the model's own settings.
    """

    size: int
    target_tokens: int
    usual_target_tokens: int


@dataclass(frozen=True, slots=True)
class Translating:
    """Translates lines with certain settings, which the model supports."""

    translator: Translator
    settings: DecodingSettings

    def shared(self, items: Sequence[Part]) -> list[tuple["Translating", Part]]:
        """Return each item with the work whose batches it shares.

        The languages move from the settings into the items, so that all directions share batches, and the forced
        prefix is only for the first line of a text.
        """
        first, direction = self.settings, None
        if first.from_ or first.to:
            direction = Direction(source=first.from_, target=first.to)
            first = first.model_copy(update={"from_": "", "to": ""})
            items = [replace(item, direction=direction) for item in items]
        of_first = Translating(self.translator, first)
        later = of_first
        if first.prefix:
            later = Translating(self.translator, first.model_copy(update={"prefix": ""}))
        return [(of_first if item.first else later, item) for item in items]

    def size(self, item: Part) -> int:
        """Return the source tokens with end tokens, multiplied for a wide beam and for a target limit above the usual.

        More where the keys and values of a large model need more memory than a batch of so many tokens may have.
        Raises RequestError (422) for a sentence that is longer than the model's maximum.
        """
        return self.cost(item).size

    def cost(self, item: Part) -> LineCost:
        """Return what translating a line may cost. Raises RequestError (422) like `size`."""
        checkpoint, own = self.translator.checkpoint, self.translator.config.decoding
        reads, writes = checkpoint.source_tokenizer, checkpoint.target_tokenizer
        try:
            plan = plan_lines([item], reads, self.translator.reading(self.settings, item.direction))[0]
        except LineError as error:
            raise _refused(error) from None
        width, held, prefix = strategy_from(self.settings).width, 0, 0
        if item.constraints:
            constraints = [
                each for phrase in item.constraints if (each := build_constraint([phrase], writes)) is not None
            ]
            held = constraint_cost(constraints, writes)
            width = max(width, constrained_beam_width(held, self.settings))
        if self.settings.prefix and item.first:
            prefix = len(writes.encode(self.settings.prefix))
        context = sum(len(reads.encode(one)) + len(writes.encode(other)) + 2 for one, other in item.before)
        size, made, usual, held_bytes, engine = 0, 0, 0, 0, self.translator.engine
        for piece in (each for each in plan.pieces for _ in range(_windows(each, checkpoint.config))):
            length = len(piece.ids)
            limit = target_limit(checkpoint, length, prefix if piece.first else 0, self.settings, held)
            usual_limit = target_limit(checkpoint, length, 0, own)
            size += math.ceil(max(length + 1 + context, MIN_COUNTED_TOKENS) * max(1.0, limit / usual_limit))
            made += limit
            usual += usual_limit
            held_bytes += 0 if engine is None else engine.cache_bytes(length + 1 + context, limit, width)
        return LineCost(
            size=max(
                size * max(width, FULL_BATCH_WIDTH) // FULL_BATCH_WIDTH, math.ceil(held_bytes / TOKEN_CACHE_BYTES)
            ),
            # A constraint that is not met is left out, and the sentence searched again.
            target_tokens=made * width * (1 + len(item.constraints)),
            usual_target_tokens=usual * strategy_from(own).width,
        )

    def begin(self) -> "LineBatch":
        """Return an empty batch of lines."""
        return LineBatch(Cohort(self.translator, self.settings))


class LineBatch:
    """Lines that share one search."""

    def __init__(self, cohort: Cohort[int]) -> None:
        self._cohort = cohort
        self.remove, self.close = cohort.remove, cohort.close

    def enter(self, items: Mapping[int, Part]) -> None:
        """Add lines."""
        lines = {number: replace(item, number=number) for number, item in items.items()}
        self._cohort.enter(lines, {n: item.on_prefix for n, item in items.items() if item.on_prefix is not None})

    def run(self, unneeded: Callable[[], Collection[int]]) -> Mapping[int, Translation | TranslumeError]:
        """Return the lines that are done: a Translation, or a RequestError for one that cannot be translated."""
        done = self._cohort.run(unneeded)
        return {n: _refused(result) if isinstance(result, LineError) else result for n, result in done.items()}


class _Whole(ABC):
    """Work whose items are all done after one run."""

    __slots__ = ()

    def begin(self) -> WholeBatch:
        """Return an empty batch."""
        return WholeBatch(self._results)

    @abstractmethod
    def _results(self, items: Sequence[Any], check_cancelled: CancelCheck) -> Sequence[Any]:
        """Return the results in the order of the items."""


@dataclass(frozen=True, slots=True)
class Scoring(_Whole):
    """Scores pairs of a source and a target by forced decoding.  to, from_: of the model's languages, if several."""

    translator: Translator
    to: str = ""
    from_: str = ""

    def size(self, item: tuple[str, str]) -> int:
        """Return the tokens of the longer side with its end token. Raises RequestError (422) if they are too many."""
        checkpoint = self.translator.checkpoint
        limit = checkpoint.config.model.max_positions
        direction = Direction(source=self.from_, target=self.to)
        reading = Reading.from_settings(checkpoint, checkpoint.config.decoding, direction)
        longest = 0
        for side, text, tokenizer in zip(
            ("source", "target"), item, (checkpoint.source_tokenizer, checkpoint.target_tokenizer), strict=True
        ):
            tokens = len(tokenizer.encode(text)) + 1
            if side == "source" and reading.cuts_lines:
                tokens = min(tokens, limit)
            if tokens > limit:
                raise RequestError(
                    422,
                    f"the {side} has {tokens:,} tokens with EOS, expected at most {limit:,}",
                    code="text_too_long",
                    field=side,
                )
            longest = max(longest, tokens)
        return longest

    def _results(self, items: Sequence[tuple[str, str]], _: CancelCheck) -> list[TargetScore]:
        return list(self.translator.score_all(items, to=self.to or None, from_=self.from_ or None))


@dataclass(frozen=True, slots=True)
class Classifying(_Whole):
    """Classifies texts."""

    classifier: Classifier

    def size(self, item: str) -> int:
        """Return the number of tokens that are read, with the end token."""
        longest = self.classifier.config.model.max_positions
        return min(len(self.classifier.checkpoint.source_tokenizer.encode(item)) + 1, longest)

    def _results(self, items: Sequence[str], _: CancelCheck) -> list[Classification | TranslumeError]:
        """Return a Classification for each text, or a RequestError for a text that is too long."""
        done: list[Classification | TranslumeError] = []
        while len(done) < len(items):
            try:
                done.extend(self.classifier.classify_all(items[len(done) :]))
            except LineError as error:
                # `extend` has kept the results before the error.
                reason = error.reason.partition("; decoding.")[0]
                done.append(RequestError(422, reason, code="text_too_long", field="text"))
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt of a request.  on_text: called with the text that is final, each time with more than before."""

    text: str
    on_text: ProgressCallback | None = None


@dataclass(frozen=True, slots=True)
class Generating(_Whole):
    """Continues prompts with certain settings, for any number of requests."""

    generator: Generator
    settings: DecodingSettings

    def size(self, item: Prompt) -> int:
        """Return the tokens of the prompt and of the texts after it. Raises RequestError (422) if it is too long."""
        checkpoint = self.generator.checkpoint
        context = checkpoint.config.data.block_length
        tokens = len(checkpoint.source_tokenizer.encode(item.text))
        if tokens >= context:
            raise RequestError(
                422,
                f"the prompt has {tokens:,} tokens, expected at most {context - 1:,}",
                code="text_too_long",
                field="prompt",
            )
        return (tokens + (self.settings.max_length or context - tokens)) * strategy_from(self.settings).width

    def _results(self, items: Sequence[Prompt], check_cancelled: CancelCheck) -> list[Generation]:
        on_text = {place: item.on_text for place, item in enumerate(items) if item.on_text is not None}
        prompts = [item.text for item in items]
        texts = self.generator.generate_all(
            prompts, settings=self.settings, on_text=on_text, check_cancelled=check_cancelled
        )
        return list(texts)


@dataclass(frozen=True, slots=True, eq=False)
class Inspecting(_Whole):
    """A task of its own, which shares no batch.  task: gets a function that raises if its result is not needed."""

    task: Callable[[CancelCheck], Any]

    def size(self, _: object) -> int:
        """Return 1."""
        return 1

    def _results(self, _: Sequence[Any], check_cancelled: CancelCheck) -> list[Any]:
        return [self.task(check_cancelled)]


def _windows(piece: Piece, config: Config) -> int:
    """Return the number of searches for a piece: of a recording that a model reads in windows, one for each."""
    window = config.data.source.window
    return math.ceil(len(piece.frames) / window) if window and piece.frames is not None else 1


def _refused(error: LineError) -> RequestError:
    """Return the client's error for a line that cannot be translated: too long, or without a finished hypothesis."""
    reason, cure, _ = error.reason.partition("; decoding.max_length_action")
    if cure:
        return RequestError(
            422, f'{reason}; "max_length_action": "truncate" cuts it', code="text_too_long", field="text"
        )
    return RequestError(422, reason, code="cannot_translate", field="text")
