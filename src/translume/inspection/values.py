"""Traces of translations and of classifications, as dataclasses that convert to JSON.

S: source tokens, t: target tokens, both with their end marks; H: attention heads. p is a probability and log_p its
logarithm in nats. A log_p of −inf (an impossible token) is null in JSON; a difference of two log_p is None (null) if
either is −inf.
"""

from dataclasses import dataclass
from typing import Literal

from translume.inspection.plain import Document
from translume.inspection.plots import ClassTracePlots, TracePlots

Row = tuple[float, ...]
Matrix = tuple[Row, ...]
"""Rows are target tokens, or the tokens that attend; columns are the tokens attended to."""
Heads = tuple[Matrix, ...]
"""One matrix per head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token: its id, its display text (`▁` begins a word), and its characters [begin, end) in the text.

    Tokens without text, such as the end mark, have begin = end. If several tokens spell one character (bytes), each
    of them spans it. The space before a word belongs to the word's first token.
    """

    id: int
    text: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word: its tokens [first, last) and its characters [begin, end), without the space before it.

    A word begins at a token that starts with a space, at a special token and after one. In scripts without spaces (Han,
    Kana, Thai, …) every token begins a word. Punctuation does not: "home." is one word. log_p is the sum over the
    word's tokens; None in a source, and if a token is impossible.
    """

    text: str
    first: int
    last: int
    begin: int
    end: int
    log_p: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A token that could be chosen at a step.

    p_model: before any rule.  p_used: after rules, temperature and truncation; None in a logit lens.
    """

    id: int
    text: str
    p_model: float
    p_used: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """The k likeliest tokens, likeliest first (ties by smaller id), and the probability mass of all others.

    tail is summed over the other tokens, not computed as 1 minus the candidates. Neither the candidates' numbers nor
    their order depend on k.
    """

    candidates: tuple[Candidate, ...]
    tail: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEffect:
    """The effect of one decoding rule at a step.

    moved: how far the rule alone moves p_model: the total variation ½ Σ |q − p|, from 0 to 1, where q is p with the
    rule's bias, renormalised. 1 if the rule forbids every possible token.
    """

    name: str
    moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LensLayer:
    """The distribution that the head predicts from the state after decoder layer `layer` (from 1): the logit lens.

    The decoder's last norm is applied first, if there is one. log_p and rank are of the chosen token. The last layer's
    distribution is the model's own.
    """

    layer: int
    log_p: float
    rank: int
    entropy: float
    top: Top


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The same step with an empty source (only its end mark).

    log_p: log p(y|prefix).  gain: log p(y|x, prefix) − log p(y|prefix): positive if the source makes the token more
    likely, negative if less; None if either is −inf.
    """

    log_p: float
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One target token and the predicted distribution it was chosen from.

    p_model, log_p_model: over the whole vocabulary, before any rule.  p_used, log_p_used: after rules, reshaping,
    temperature and truncation, renormalised; 0 if these forbid the token (a given target need not follow the rules).
    rules: the rules that changed the distribution at this step.  top_model: the k best by p_model.  top_used: the k
    best by p_used, fewer if fewer are allowed.
    entropy: of p_model, in nats.  rank: of the chosen token by p_model, from 1, ties by smaller id.  margin: p_model of
    the chosen token minus the largest p_model of any other token; positive if the chosen one is the likeliest.
    lens, prior: empty and None if not requested.
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
    """Attention weights by layer. Attention alone does not explain a prediction.

    encoder: [S, S] per head.  decoder: [t, t] per head; column 0 is the start mark, column j target token j − 1; None
    for a layer without self-attention.  cross: [t, S] per head; row t is the step that chose target token t.
    """

    encoder: tuple[Heads, ...]
    decoder: tuple[Heads | None, ...]
    cross: tuple[Heads, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """An internal quantity of the output head, [t, m]; docs/heads.md describes them.

    Copy head: "gate" (probability of generating rather than copying; m = 1) and "copy_attention" (m = S). Mixture:
    "components". Adaptive softmax: "bands". Hierarchical softmax: "classes".
    """

    name: str
    values: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The contribution of each source token to each target token, [t, S], by one method.

    "occlusion" (token removed), "occlusion-mask" (its memory state masked; its neighbours' states still depend on it),
    "occlusion-unknown" (replaced by the unknown token): log p(y) minus log p(y) without the token, in nats; positive if
    the token helps; None if either is −inf.
    "input-gradient": Σ_d e_d ∂ log p(y)/∂e_d over the token's embedding e, without its position.
    "integrated-gradients": the same, integrated on the path from `baseline` (Sundararajan et al. 2017, equation 1).
    error: of integrated gradients, the largest |Σ_S values − (log p(y) − log p(y) at the baseline)|, which vanishes
    with infinitely many steps; None for the other methods.
    """

    method: Literal["occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients"]
    values: tuple[tuple[float | None, ...], ...]
    baseline: str
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The model and the settings that the numbers were computed with.

    digest: SHA-256 of the weights' file, empty for weights without a file.  norm: "pre" (the logit lens applies the
    decoder's last norm) or "post" (there is none).  head: its kind.  normalised: whether its probabilities sum to one.
    vocabulary: V.  smoothing_floor: ε/V', the probability that label smoothing with ε over V' tokens trains every one
    of them to have; None if the head spreads it differently, 0 without smoothing.
    temperature: p_used was raised to 1/temperature.  reshaped: "calibrated" or "unsmooth" if [decoding] sets it.
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
class Trace(Document, TracePlots):
    """The translation of one sentence, step by step.

    source: the text as the model reads it, normalised by its tokenizer; offsets refer to it.  given: the original text.
    target: the text of the target tokens.  origin: "search" if the model produced the target, "given" if the caller
    did.  finished_by: "eos" if the last token is the end mark, else "length".
    log_p: the sum of log_p_model over the steps.  steps: one per target token.
    attention is None, terms and attributions are empty if not requested or not available.
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


EvidenceMethod = Literal["occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBelief:
    """A class with its probability; given: whether the classifier assigned it to the text."""

    label: str
    p: float
    log_p: float
    given: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The contribution of each token to each of the first c classes, [c, S], by one method of `Attribution`.

    "occlusion-mask": the token's state is left out of the pooling; the other states still depend on it.
    error: of integrated gradients; None for the other methods.
    """

    method: EvidenceMethod
    values: tuple[tuple[float | None, ...], ...]
    baseline: str
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFacts:
    """The model that the numbers were computed with; several: whether it is a multi-label classifier."""

    digest: str
    dtype: str
    device: str
    norm: Literal["pre", "post"]
    pooling: Literal["mean", "max", "first", "attention", "ngrams"]
    several: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTrace(Document, ClassTracePlots):
    """The predicted distribution over classes for one text, and the evidence of each token.

    source: the text as the model reads it; offsets refer to it.  given: the original text.
    source_tokens: the tokens read, with the end mark; `warnings` say if the text was cut.
    classes: all classes, likeliest first. Their p sum to one, except for multi-label classifiers.
    margin: p of the first class minus p of the second; multi-label: the smallest |p − ½| of any class.
    entropy: of the distribution, in nats; multi-label: the sum over the classes' decisions.
    pooling: the weight of each token's state in the text's vector; the weights sum to one. For "max" and "ngrams", the
    fraction of components taken from the token (see `Pooling.weights`). None if not requested.
    evidence: by method, for the first c of `classes`.
    """

    schema: Literal["class/1"]
    facts: ClassFacts
    given: str
    source: str
    warnings: tuple[str, ...]
    source_tokens: tuple[Token, ...]
    source_words: tuple[Word, ...]
    classes: tuple[ClassBelief, ...]
    margin: float
    entropy: float
    pooling: tuple[float, ...] | None
    evidence: tuple[Evidence, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The assigned classes, likeliest first."""
        return tuple(each.label for each in self.classes if each.given)

    def shown(self, token: Token) -> str:
        """Return the display text of a token: its characters (of unknown tokens too), else its piece."""
        return self.source[token.begin : token.end].strip() or token.text
