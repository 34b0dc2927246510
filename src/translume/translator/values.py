"""What a translator gives back."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from translume.decoding import Hypothesis, ScoreTerms
from translume.text import Tokenizer
from translume.translator.alignment import Alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class TextHypothesis:
    """One target that a search found.

    tokens: pieces as people read them; ids: their numbers; the end mark is the last one if `finished_by` is "eos".
    log_prob: nats, the sum of `token_log_probs`, one for each of `tokens`.  score: what it was ranked by, such as its
    mean utility where `decoding.utility` asks for one.
    Of a text that was translated in parts, tokens follow one another, each part with its end mark, and log_prob and
    score are sums over the parts.
    terms: what `score` was made of; None where it is a mean utility or a sum over parts.
    alignment: what it comes from in the source, where `decoding.alignment` asks for it and the text was not parted.
    """

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    log_prob: float
    score: float
    finished_by: Literal["eos", "length"]
    token_log_probs: tuple[float, ...] = ()
    terms: ScoreTerms | None = None
    alignment: Alignment | None = None

    @classmethod
    def of(cls, hypothesis: Hypothesis, tokenizer: Tokenizer) -> "TextHypothesis":
        """What a search found, as `tokenizer`, the target's, reads it."""
        return cls(
            text=tokenizer.decode(hypothesis.tokens),
            tokens=tuple(tokenizer.tokens(hypothesis.tokens)),
            ids=hypothesis.tokens,
            log_prob=hypothesis.log_prob,
            token_log_probs=hypothesis.log_probs,
            score=hypothesis.score,
            terms=hypothesis.terms,
            finished_by=hypothesis.finished_by,
        )

    def to_dict(self) -> dict[str, Any]:
        """The hypothesis as JSON knows it; `terms` and `alignment` only where they are known."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "log_prob": self.log_prob,
            "token_log_probs": list(self.token_log_probs),
            "score": self.score,
            "finished_by": self.finished_by,
            **({} if self.terms is None else {"terms": asdict(self.terms)}),
            **({} if self.alignment is None else {"alignment": self.alignment.to_dict()}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A translated text; `str()` is its target.

    hypotheses: best first; empty where the source is blank, for then nothing was searched.
    warnings: what was done that was not asked for, such as cutting the text, or was asked for and not done.
    remarks: what looks wrong about the target. Both as `word: detail`; the words do not change.
    """

    source: str
    text: str
    hypotheses: tuple[TextHypothesis, ...] = ()
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The translation as JSON knows it; remarks are warnings there."""
        return {
            "source": self.source,
            "text": self.text,
            "hypotheses": [hypothesis.to_dict() for hypothesis in self.hypotheses],
            "warnings": [
                {"kind": kind, "detail": detail}
                for kind, _, detail in (each.partition(": ") for each in (*self.warnings, *self.remarks))
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScore:
    """What a model thinks of a given target: forced decoding.

    log_prob: nats, the sum of `token_log_probs`, one for each of `tokens`, the end mark being the last.
    """

    log_prob: float
    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON knows it: null where a token has no probability at all, since JSON has no infinity."""
        return {
            "log_prob": self.log_prob if math.isfinite(self.log_prob) else None,
            "tokens": list(self.tokens),
            "token_log_probs": [value if math.isfinite(value) else None for value in self.token_log_probs],
        }
