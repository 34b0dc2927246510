"""What an inspection shows, as plain values: numbers, texts and tuples, ready for JSON; nothing here computes.

Legend: S tokens of the source, t tokens of the target, both with their end marks; H heads of an attention.
Everywhere p is a probability, log_p its logarithm in nats; a log_p of −inf (of an impossible token) is null in JSON.
Differences of two log_p are None (null) where either is −inf.
"""

from dataclasses import dataclass
from typing import Any, Literal

from translume.inspection.pictured import Pictured
from translume.inspection.plain import from_plain, plain

Row = tuple[float, ...]
Matrix = tuple[Row, ...]
"""Rows by columns; rows are target tokens, or the tokens that read, and columns what is read."""
Heads = tuple[Matrix, ...]
"""One matrix a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token: its id, how it is shown (`▁` where a word begins), and the characters [begin, end) of its text.

    An end mark and what else leaves no trace in the text is of no characters: begin = end. A character of several
    tokens (bytes) belongs to each of them. The space before a word belongs to the word's first token.
    """

    id: int
    text: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Tokens [first, last) that are one word, and the characters [begin, end) of it, without the space before.

    A word begins at a token that begins with a space or is a special one, and after a special one; where a script has
    no spaces (Han, Kana, Thai …) at every token that begins with a character of it or follows one. Nothing else cuts:
    "home." is one word. log_p is the sum over its tokens; None in a source, and where one of its tokens is impossible.
    """

    text: str
    first: int
    last: int
    begin: int
    end: int
    log_p: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A token that might have been chosen.

    p_model: before any rule.  p_used: after rules, temperature and truncation; None where nothing was used (a lens).
    """

    id: int
    text: str
    p_model: float
    p_used: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """The k likeliest tokens, likeliest first (ties by smaller id), and the mass of all others.

    tail is summed over the others, not taken as the rest to one: candidates and tail add up to one only because the
    belief does. Neither the candidates' numbers nor their order depend on k.
    """

    candidates: tuple[Candidate, ...]
    tail: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEffect:
    """A rule that spoke at a step.

    moved: how far it alone moves p_model, as total variation ½ Σ |q − p|, from 0 to 1, q being p with the rule's bias,
    renormalised; 1 where it forbids all that is possible.
    """

    name: str
    moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LensLayer:
    """What the head would say after decoder layer `layer` (from 1), through the decoder's last norm if it has one.

    log_p and rank are of the token that was chosen in the end. The last layer's belief is the model's own.
    """

    layer: int
    log_p: float
    rank: int
    entropy: float
    top: Top


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The same step with the source blanked, that is: nothing but its end mark.

    log_p: log p(y|prefix).  gain: log p(y|x, prefix) − log p(y|prefix), what the source says for the token (against it,
    below zero); None where either is −inf.
    """

    log_p: float
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One token of the target and the belief that it was chosen from.

    p_model, log_p_model: before any rule, of the whole vocabulary.  p_used, log_p_used: after rules, reshaping,
    temperature and truncation, renormalised; 0 where these forbid it (a given target need not keep to the rules).
    rules: those that changed the belief at this step.  top_model: the k best by p_model.  top_used: by p_used; it holds
    fewer than k where fewer are allowed.
    entropy: of p_model, nats.  rank: of the chosen among p_model, from 1, ties by smaller id.  margin: p_model of the
    chosen less the largest one of any other: above zero where the chosen is the likeliest.
    lens, prior: empty and None where they were not asked for.
    """

    p_model: float
    log_p_model: float
    p_used: float
    log_p_used: float
    rules: tuple[RuleEffect, ...]
    top_model: Top
    top_used: Top
    entropy: float
    rank: int
    margin: float
    lens: tuple[LensLayer, ...]
    prior: Prior | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention weights by layer; attention is what was read, and no explanation by itself.

    encoder: [S, S] a head.  decoder: [t, t] a head, of the tokens read (row t has read the start mark and the target's
    tokens before it: column 0 is the start mark, column j target token j − 1); None for a layer that has no
    self-attention.  cross: [t, S] a head: row t is the step that chose target token t.
    """

    encoder: tuple[Heads, ...]
    decoder: tuple[Heads | None, ...]
    cross: tuple[Heads, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Something of the head's own, [t, m]: a copy head's "gate" (probability of writing, not copying; m = 1) and its
    "copy_attention" (m = S), a mixture's "components", the "bands" of an adaptive softmax, the "classes" of a
    hierarchical one; see the head's page.
    """

    name: str
    values: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """How much each source token speaks for each target token, [t, S], by a method.

    "occlusion" (token removed), "occlusion-mask" (its memory is not read; its neighbours' still know of it),
    "occlusion-unknown" (the unknown token in its place): log p(y) less log p(y) without it, in nats, above zero where
    it helps; None where either is −inf.
    "input-gradient": Σ_d e_d ∂ log p(y)/∂e_d over the token's own vector e, its position left alone.
    "integrated-gradients": the same integrated on the way from `baseline` (Sundararajan et al. 2017, equation 1).
    error: the largest |Σ_S values − (log p(y) − log p(y) at the baseline)| of integrated gradients, which would be
    zero with infinitely many steps; None for the other methods.
    """

    method: Literal["occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients"]
    values: tuple[tuple[float | None, ...], ...]
    baseline: str
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the numbers were computed by.

    digest: SHA-256 of the weights' file, empty for weights that come from none.  norm: "pre" (the lens goes through
    the decoder's last norm) or "post" (there is none).  head: its kind.  normalised: whether its beliefs sum to one.
    vocabulary: V.  smoothing_floor: the ε/V' that label smoothing with ε over V' tokens asks for each of them even
    where a model is certain; None where the head spreads it otherwise, 0 without smoothing.
    temperature: p_used was raised to 1/temperature.  reshaped: "calibrated" or "unsmooth" where [decoding] asks for it.
    """

    digest: str
    dtype: str
    device: str
    norm: Literal["pre", "post"]
    head: str
    normalised: bool
    vocabulary: int
    smoothing_floor: float | None
    temperature: float
    reshaped: Literal["", "calibrated", "unsmooth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(Pictured):
    """One sentence's translation, step by step.

    source: the text as the model reads it (normalised by its tokenizer); offsets are of it.  given: as it was given.
    target: the text that the target's tokens spell.  origin: "search" where the model found the target, "given" where
    it was told.  finished_by: "eos" where the end mark is the last token, else "length".
    log_p: the sum of the steps' log_p_model.  steps: one for each of target_tokens.
    attention: None, terms and attributions: empty, where they were not asked for or there are none.
    """

    schema: Literal["trace/1"]
    facts: Facts
    given: str
    source: str
    target: str
    origin: Literal["search", "given"]
    finished_by: Literal["eos", "length"]
    log_p: float
    source_tokens: tuple[Token, ...]
    target_tokens: tuple[Token, ...]
    source_words: tuple[Word, ...]
    target_words: tuple[Word, ...]
    steps: tuple[Step, ...]
    attention: Attention | None
    terms: tuple[Term, ...]
    attributions: tuple[Attribution, ...]

    def to_dict(self) -> dict[str, Any]:
        """The trace as JSON knows it; `docs/trace.schema.json` describes it."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> "Trace":
        """The trace that `to_dict` wrote; DataError for anything else."""
        return from_plain(cls, content)
