"""What the scheduler is asked to do with a model: translate texts, score pairs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from translume.config import DecodingSettings
from translume.decoding import strategy_from
from translume.errors import TranslumeError
from translume.serving.request_error import RequestError
from translume.translator import TargetScore, Translation, Translator
from translume.translator.batching import SHORTEST, WIDE
from translume.translator.plan import Line, LineError, Piece, Plan, finish, plan_line

_BREAKS = re.compile(r"([\r\n]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraphs:
    """A text as its lines. gaps: the white space before each of them and after the last, one more than `lines`."""

    lines: tuple[str, ...]
    gaps: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Paragraphs":
        """The lines of a text that are not blank; a text without a line break is one line, just as it is."""
        if not _BREAKS.search(text):
            return cls(lines=(text,), gaps=("", ""))
        lines, gaps, gap = [], [], ""
        for part in _BREAKS.split(text):
            line = part.strip()
            if not line:
                gap += part
                continue
            begin = part.index(line)
            lines.append(line)
            gaps.append(gap + part[:begin])
            gap = part[begin + len(line) :]
        return cls(lines=tuple(lines), gaps=(*gaps, gap))

    def join(self, text: str, found: Sequence[Translation], nbest: int) -> Translation:
        """The translation of `text` from those of its lines, with the white space that was between them."""
        if len(self.lines) == 1 and self.gaps == ("", ""):
            return found[0]
        pieces = tuple(Piece(ids=(), spacing=gap) for gap in self.gaps[1:])
        warnings = tuple(warning for each in found for warning in each.warnings)
        plan = Plan(line=Line(number=0, text=text), pieces=pieces, warnings=warnings)
        if not found:
            return Translation(source=text, text="")
        whole = finish(plan, [each.hypotheses for each in found], nbest)
        first, last = self.gaps[0], self.gaps[-1]
        hypotheses = tuple(replace(each, text=f"{first}{each.text}{last}") for each in whole.hypotheses)
        return replace(whole, text=hypotheses[0].text if hypotheses else "", hypotheses=hypotheses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A line of a text.  first: whether the text begins with it, for only there a prefix is wanted."""

    text: str
    first: bool = True


@dataclass(frozen=True, slots=True)
class Translating:
    """Translates lines with settings that the model takes."""

    translator: Translator
    settings: DecodingSettings

    def size(self, item: Part) -> int:
        """Source tokens with end marks, more where many targets are searched.

        Raises RequestError (422) where a sentence is longer than the model reads.
        """
        tokenizer = self.translator.checkpoint.source_tokenizer
        limit = self.translator.config.model.max_positions - 1
        line = Line(number=0, text=item.text)
        try:
            plan = plan_line(line, tokenizer.encode(item.text), tokenizer, limit, self.settings.max_length_action)
        except LineError as error:
            raise _refused(error) from None
        tokens = sum(max(len(piece.ids) + 1, SHORTEST) for piece in plan.pieces)
        return tokens * max(strategy_from(self.settings).width, WIDE) // WIDE

    def run(self, items: Sequence[Part]) -> list[Translation | TranslumeError]:
        """A Translation a line, or the RequestError of one that cannot be translated."""
        if not self.settings.prefix:
            return self._lines([item.text for item in items], self.settings)
        later = self.settings.model_copy(update={"prefix": ""})
        first = iter(self._lines([item.text for item in items if item.first], self.settings))
        rest = iter(self._lines([item.text for item in items if not item.first], later))
        return [next(first) if item.first else next(rest) for item in items]

    def _lines(self, texts: Sequence[str], settings: DecodingSettings) -> list[Translation | TranslumeError]:
        lines = [Line(number=number, text=text) for number, text in enumerate(texts, start=1)]
        done: list[Translation | TranslumeError] = []
        while len(done) < len(lines):
            try:
                done.extend(self.translator.translate_lines(lines[len(done) :], settings))
            except LineError as error:
                # `extend` has kept what came before it.
                done.append(_refused(error))
        return done


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores pairs of a source and a target: forced decoding."""

    translator: Translator

    def size(self, item: tuple[str, str]) -> int:
        """Tokens of the longer side with its end mark; RequestError (422) where that is more than the model reads."""
        checkpoint = self.translator.checkpoint
        limit = checkpoint.config.model.max_positions
        longest = 0
        for side, text, tokenizer in zip(
            ("source", "target"), item, (checkpoint.source_tokenizer, checkpoint.target_tokenizer), strict=True
        ):
            tokens = len(tokenizer.encode(text)) + 1
            if tokens > limit:
                raise RequestError(
                    422,
                    f"the {side} has {tokens:,} tokens with its end mark, wanted at most {limit:,}",
                    code="text_too_long",
                    field=side,
                )
            longest = max(longest, tokens)
        return longest

    def run(self, items: Sequence[tuple[str, str]]) -> list[TargetScore]:
        """A score a pair."""
        return list(self.translator.score_all(items))


def _refused(error: LineError) -> RequestError:
    """What a client hears of a line that cannot be translated: a too long sentence, or a search that found nothing."""
    reason, cure, _ = str(error).removeprefix(f"{error.line.place}: ").partition("; decoding.max_length_action")
    if cure:
        return RequestError(
            422, f'{reason}; "max_length_action": "truncate" cuts it', code="text_too_long", field="text"
        )
    return RequestError(422, reason, code="cannot_translate", field="text")
