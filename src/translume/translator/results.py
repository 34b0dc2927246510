"""What a translator returns: translations with hypotheses and alignments, and scores."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal

from translume.decoding import Hypothesis, ScoreTerms
from translume.json_values import JsonValue
from translume.text import Tokenizer

DIGITS = 4
"""Decimal places of weights in JSON."""


def parted_warnings(warnings: Iterable[str]) -> list[dict[str, str]]:
    """Return warnings, each `word: detail`, as JSON objects."""
    return [{"kind": kind, "detail": detail} for kind, _, detail in (each.partition(": ") for each in warnings)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Cross-attention of one target: the mean over the attention heads of the second to last decoder layer.

    Garg et al. (2019, section 4.1) found that this mean agrees best with human alignments; a decoder of one layer uses
    that layer. Attention shows where the decoder looked, not what mattered.
    weights: [T][S], the attention of each target token (with EOS) to each source token (EOS last);
    each row sums to one.  source_tokens: readable pieces.
    links: (source, target) for each target word, counted from 0 between spaces: the source word with the most attention
    of its tokens, without EOS. Empty if the source has no words.
    word_links: (source begin, source end, target begin, target end) in characters, for each target word or punctuation;
    words without spaces between them are separated as the tokens are. Empty if the tokenizer changes the source.
    """

    source_tokens: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    links: tuple[tuple[int, int], ...]
    word_links: tuple[tuple[int, int, int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The alignment as a JSON object."""
        return {
            "source_tokens": list(self.source_tokens),
            "weights": [[round(value, DIGITS) for value in row] for row in self.weights],
            "links": [list(link) for link in self.links],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TextHypothesis:
    """One target that a search found.

    tokens: readable pieces; ids: their numbers. EOS is the last one if `finished_by` is "eos". If it is "stop", they
    spell one of `decoding.stop_strings`, before which the text is cut.
    log_prob: nats, the sum of `token_log_probs`, which has one entry for each of `tokens`.
    score: used for ranking: log_prob with the penalties of [decoding], or its mean utility for `decoding.utility`,
    or the sum with CTC for `decoding.ctc_weight`.
    If a text was translated in several pieces, tokens has those of all pieces with their EOS, and log_prob and
    score are sums.
    terms: the terms of `score`; None if it is a mean utility, a sum with CTC or a sum over pieces.
    alignment: if `decoding.alignment` is set and the text was translated in one piece.
    """

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    log_prob: float
    score: float
    finished_by: Literal["eos", "length", "stop"]
    token_log_probs: tuple[float, ...] = ()
    terms: ScoreTerms | None = None
    alignment: Alignment | None = None

    @classmethod
    def from_hypothesis(cls, hypothesis: Hypothesis, tokenizer: Tokenizer) -> "TextHypothesis":
        """The hypothesis of a search as text.  tokenizer: of the target."""
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

    @classmethod
    def joined(cls, parts: Sequence["TextHypothesis"], *, text: str, log_prob: float, score: float) -> "TextHypothesis":
        """The hypothesis of a text that was translated in parts."""
        return cls(
            text=text,
            tokens=tuple(chain.from_iterable(part.tokens for part in parts)),
            ids=tuple(chain.from_iterable(part.ids for part in parts)),
            log_prob=log_prob,
            token_log_probs=tuple(chain.from_iterable(part.token_log_probs for part in parts)),
            score=score,
            finished_by="length" if any(part.finished_by == "length" for part in parts) else "eos",
        )

    def to_dict(self) -> dict[str, Any]:
        """The hypothesis as a JSON object; `terms` and `alignment` only if they are known."""
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
class Segment:
    """What is said in a part of a recording.  start, end: in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A translated text; `str()` is its target.

    hypotheses: best first; empty if the source is blank.
    warnings: deviations from the request, such as a text that was cut or a constraint that was not met.
    quality_warnings: signs that the target may be wrong. Both as `word: detail`; the words never change.
    segments: of a recording, if the target has times.  language: code of that of a recording, given or detected.
    """

    source: str
    text: str
    hypotheses: tuple[TextHypothesis, ...] = ()
    warnings: tuple[str, ...] = ()
    quality_warnings: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    language: str = ""

    @property
    def reached_limit(self) -> bool:
        """Whether the target ended at its length limit, in any of its pieces."""
        return bool(self.hypotheses) and self.hypotheses[0].finished_by == "length"

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """Return the target, its hypotheses, segments and warnings for notebooks."""
        from translume.notebook import as_table

        rows = [(each.text, each.log_prob, each.score, each.finished_by) for each in self.hypotheses]
        notes = (*self.warnings, *self.quality_warnings)
        times = as_table(("from (s)", "to (s)", "said"), [(each.start, each.end, each.text) for each in self.segments])
        return as_table(("hypothesis", "log p (nats)", "score", "ended by"), rows, self.text, notes) + times

    def to_dict(self) -> dict[str, Any]:
        """The translation as a JSON object, in which `warnings` has both kinds; `segments` and `language` if known."""
        return {
            "source": self.source,
            "text": self.text,
            "hypotheses": [hypothesis.to_dict() for hypothesis in self.hypotheses],
            "warnings": parted_warnings((*self.warnings, *self.quality_warnings)),
            **({"segments": [asdict(each) for each in self.segments]} if self.segments else {}),
            **({"language": self.language} if self.language else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScore(JsonValue):
    """The log-probability of a given target (forced decoding). In JSON, null stands for −∞.

    log_prob: nats, the sum of `token_log_probs`, which has one entry for each of `tokens`; the last is EOS.
    warnings: as those of a `Translation`, such as a source that was cut.
    """

    log_prob: float
    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]
    warnings: tuple[str, ...] = ()
