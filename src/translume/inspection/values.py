"""The values that inspection computes: traces, search records, answers to what-if questions and corpus statistics.

They are dataclasses that convert to JSON; docs/trace.schema.json and docs/corpus.schema.json are their schemas.
S: source tokens, t: target tokens, both with their EOS; H: attention heads. p is a probability, log_p its logarithm in
nats, nll is −log p. A log_p of −inf (an impossible token) is null in JSON; a difference of two log_p is None (null) if
either is −inf.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from translume.evaluation import Reliability
from translume.inspection.pages import HtmlPage, html_page
from translume.json_values import JsonValue, LogProb, schema_of

Row = tuple[float, ...]
Matrix = tuple[Row, ...]
"""Rows are target tokens, or the tokens that attend; columns are the tokens attended to."""
Heads = tuple[Matrix, ...]
"""One matrix per head."""
Contributions = tuple[tuple[float | None, ...], ...]
"""Rows are outputs, columns source tokens; None for an unknown value, such as a difference of two impossible ones."""
AttentionKind = Literal["cross", "decoder", "encoder"]
Method = Literal["occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients"]
Fate = Literal["continued", "best", "finished", "length", "outscored", "stopped", "forbidden"]
Verdict = Literal["", "same", "search error", "model error", "forbidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token: its id, its display text (`▁` begins a word), and its characters [begin, end) in the text.

    Tokens without text, such as EOS, have begin = end. If several tokens spell one character (bytes), each
    of them spans it. The space before a word belongs to the word's first token.
    In a source of frames a token is a position of the encoder: the id is 0, the text says where it begins, in seconds
    or columns of pixels, and [begin, end) are frames. With `model.segment_pooling` a source's token is a segment; its
    id is that of the first token.
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

    def __str__(self) -> str:
        """Return the candidates with their probabilities, and the mass of all other tokens."""
        return ", ".join([*(f"{each.text} {each.p_model:.3f}" for each in self.candidates), f"others {self.tail:.3f}"])


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
    log_p: LogProb
    rank: int
    entropy: float
    top: Top


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The same step with an empty source (only its EOS).

    log_p: log p(y|prefix).  gain: log p(y|x, prefix) − log p(y|prefix): positive if the source makes the token more
    likely, negative if less; None if either is −inf.
    """

    log_p: LogProb
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
    log_p_model: LogProb
    p_used: float
    log_p_used: LogProb
    rules: tuple[RuleEffect, ...]
    top_model: Top
    top_used: Top
    entropy: float
    rank: int
    margin: float
    lens: tuple[LensLayer, ...]
    prior: Prior | None

    @property
    def gain(self) -> float | None:
        """The gain over an empty source; None if it was not requested, or is undefined."""
        return None if self.prior is None else self.prior.gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention weights by layer. Attention alone does not explain a prediction.

    encoder: [S, S] per head.  decoder: [t, t] per head; column 0 is BOS, column j target token j − 1; None
    for a layer without self-attention.  cross: [t, S] per head; row t is the step that chose target token t.
    For long sides, `encoder` is empty, and `decoder` and `cross` have the mean of a layer's heads as its only head:
    more than `MAX_WEIGHTS` numbers are not kept.
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

    In a `ClassTrace`, of each token to each of the first c classes, [c, S].

    "occlusion" (token removed), "occlusion-mask" (its memory state masked, or left out of the
    pooling; its neighbours' states still depend on it), "occlusion-unknown" (replaced by the unknown token): log p(y)
    minus log p(y) without the token, in nats; positive if the token helps; None if either is −inf.
    "input-gradient": Σ_d e_d ∂ log p(y)/∂e_d over the token's embedding e, without its position.
    "integrated-gradients": the same, integrated on the path from `baseline` (Sundararajan et al. 2017, equation 1).
    With `model.segment_pooling` a source token is a segment, the last one with EOS.
    error: of integrated gradients, the largest |Σ_S values − (log p(y) − log p(y) at the baseline)|, which vanishes
    with infinitely many steps; None for the other methods.
    """

    method: Method
    values: Contributions
    baseline: str
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """A non-text source: L frames of F values, and the part of it that each target token belongs to.

    kind: of the source, "audio", "whisper", "waveform", "image" or "features".  per_second: frames in a second; 0 for
    frames that are not in time.  colors: values of a pixel of an image.
    levels: [L, F], the frames as integers from 0, which stands for `low`, to 255, which stands for `high`.
    spans: the frames [begin, end) of each target token; begin = end for one without a part, such as EOS.
    aligned_by: "ctc": the most likely alignment by the model's CTC output (Graves et al. 2006). "attention": the
    position with the most cross-attention, the mean of the heads of the last layer but one. "": no spans are known.
    """

    kind: str
    per_second: float
    colors: int
    low: float
    high: float
    levels: tuple[tuple[int, ...], ...]
    spans: tuple[tuple[int, ...], ...]
    aligned_by: Literal["", "ctc", "attention"]

    @property
    def unit(self) -> str:
        """What positions of the source are counted in."""
        return "seconds" if self.per_second else "pixels" if self.kind == "image" else "frames"

    @property
    def size(self) -> str:
        """The size of the source in words."""
        length, values = len(self.levels), len(self.levels[0]) if self.levels else 0
        if self.kind == "image":
            return f"{length:,} × {values // self.colors:,} pixels"
        seconds = f"{length / self.per_second:.2f} seconds, " if self.per_second else ""
        return f"{seconds}{length:,} frames of {values:,} values"

    def place_of(self, frame: float) -> float:
        """Return where a frame is, in `unit`."""
        return frame / self.per_second if self.per_second else frame

    def pixels(self) -> NDArray[np.uint8]:
        """Return [F, L], the last value of a frame on top as in a spectrogram; for an image [height, width(, 3)]."""
        levels = np.array(self.levels, np.uint8)
        if self.kind != "image":
            return levels.T[::-1]
        pixels = levels.reshape(len(levels), -1, self.colors).transpose(1, 0, 2)
        return pixels if self.colors > 1 else pixels[..., 0]


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
    norm: Literal["pre", "post", "both"]
    head: str
    normalised: bool
    vocabulary: int
    smoothing_floor: float | None
    temperature: float
    reshaped: Literal["", "calibrated", "unsmooth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(JsonValue, HtmlPage):
    """The translation of one sentence, step by step.

    source: the text as the model reads it, normalised by its tokenizer; offsets refer to it.  given: the original text.
    For frames, both are the path or a description, and `frames` has the source; `source_tokens` are its positions, and
    there are no `source_words`.
    target: the text of the target tokens.  origin: "search" if the model produced the target, "given" if the caller
    did.  finished_by: "eos" if the last token is EOS, else "length".
    log_p: the sum of log_p_model over the steps.  steps: one per target token.
    attention is None, terms and attributions are empty if not requested or not available.
    warnings: such as a source that was cut; `source_tokens` are then those that were read.
    """

    schema: Literal["trace/1"]
    facts: Facts
    given: str
    source: str
    target: str
    origin: Literal["search", "given"]
    finished_by: Literal["eos", "length"]
    log_p: LogProb
    source_tokens: tuple[Token, ...]
    target_tokens: tuple[Token, ...]
    source_words: tuple[Word, ...]
    target_words: tuple[Word, ...]
    steps: tuple[Step, ...]
    attention: Attention | None
    terms: tuple[Term, ...]
    attributions: tuple[Attribution, ...]
    frames: Frames | None = None
    warnings: tuple[str, ...] = ()

    def cross_attention(self) -> tuple[NDArray[np.float64], int] | None:
        """Return the cross-attention [t, S], the mean of a layer's heads, and the number of that layer, from 1.

        It is the last layer but one, which usually aligns best. None without attention.
        S: without positions after the end of a source of frames.
        """
        if self.attention is None or not self.attention.cross:
            return None
        number = max(1, len(self.attention.cross) - 1)
        weights = np.array(self.attention.cross[number - 1]).mean(0)
        return (weights if self.frames is None else weights[:, : self.positions()]), number

    def positions(self) -> int:
        """Return the number of positions of a source of frames that are not after its end."""
        return sum(token.end > token.begin for token in self.source_tokens)

    def to_page(
        self, *, beam: "BeamRecord | None" = None, alternatives: "Mapping[int, Mapping[int, Forced]] | None" = None
    ) -> str:
        """Return an HTML page of the trace.

        beam: the search record to show.  alternatives: the results of forcing other tokens, by step and by token id.
        """
        forced = {
            step: {id_: {"text": each.after.text, "log_p": each.after.log_prob} for id_, each in tokens.items()}
            for step, tokens in (alternatives or {}).items()
        }
        return html_page("trace", {"trace": self, "beam": beam, "alternatives": forced})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStep:
    """The predicted distribution before one token y.

    p, log_p: of y.  top: the k likeliest tokens.  entropy: in nats.  rank: of y, from 1, ties by smaller id.  margin: p
    of y minus the largest other p.  lens: the predictions after each layer; empty if not computed.
    """

    p: float
    log_p: LogProb
    top: Top
    entropy: float
    rank: int
    margin: float
    lens: tuple[LensLayer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTrace(JsonValue, HtmlPage):
    """The predicted distributions of a language model along a text, whose last token is EOS.

    log_p: of the whole text, in nats, as `Generator.score` returns it.  steps: one for each of `tokens`.
    attention: for each layer and head [t, t]; column 0 is BOS, column j token j − 1; None for a layer
    without self-attention; None in place of all layers if not computed.  facts: of the model.
    """

    schema: Literal["text/1"]
    digest: str
    given: str
    text: str
    log_p: LogProb
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    steps: tuple[TextStep, ...]
    attention: tuple[Heads | None, ...] | None
    facts: Facts

    def to_page(self) -> str:
        """Return an HTML page of the text: that of a translation without a source and without rules."""
        values = self.to_dict()
        unused: dict[str, Any] = {"rules": [], "prior": None, "top_used": {"candidates": []}}
        for step in values["steps"]:
            for each in step["top"]["candidates"]:
                each["p_used"] = each["p_model"]
            step |= {"p_model": step["p"], "log_p_model": step["log_p"], "p_used": step["p"], "top_model": step["top"]}
            step |= unused
        target = {"target_tokens": values["tokens"], "target_words": values["words"]}
        source: dict[str, list[Any]] = {"source_tokens": [], "source_words": [], "attributions": []}
        attention = values["attention"] and {"decoder": values["attention"]}
        trace = {**values, **target, **source, "attention": attention}
        return html_page("trace", {"trace": trace, "beam": None, "alternatives": {}}, title="Inside a text")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassProbability:
    """A class with its probability; given: whether the classifier assigned it to the text."""

    label: str
    p: float
    log_p: LogProb
    given: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFacts:
    """The model that the numbers were computed with; several: whether it is a multi-label classifier."""

    digest: str
    dtype: str
    device: str
    norm: Literal["pre", "post", "both"]
    pooling: Literal["mean", "max", "first", "attention", "ngrams"]
    several: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTrace(JsonValue, HtmlPage):
    """The predicted distribution over classes for one text, and the evidence of each token.

    source: the text as the model reads it; offsets refer to it.  given: the original text.
    source_tokens: the tokens read, with EOS; `warnings` say if the text was cut.
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
    classes: tuple[ClassProbability, ...]
    margin: float
    entropy: float
    pooling: tuple[float, ...] | None
    evidence: tuple[Attribution, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The assigned classes, likeliest first."""
        return tuple(each.label for each in self.classes if each.given)

    def shown(self, token: Token) -> str:
        """Return the display text of a token: its characters (of unknown tokens too), else its piece."""
        return self.source[token.begin : token.end].strip() or token.text

    def to_page(self) -> str:
        """Return an HTML page of the classes and the evidence of each token."""
        return html_page("class", {"trace": self})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A hypothesis at some length: its parent's tokens and one more.

    id: its index in `nodes`.  parent: the id of the hypothesis it continues, None for a first token.  length: tokens.
    token, text: the last token.  log_p: log p_model of that token.  log_prob: of all tokens.  total: log_prob plus the
    terms of rules, reshaping, a language model or the strategy.  divisor, coverage, score: score = total / divisor +
    coverage, the final score if the hypothesis ended here; coverage and score are None for a hypothesis that never
    entered the beam of a search with a coverage penalty. Hypotheses of equal length are ranked by total.
    place: its position in the beam, from 0, best first; None if it never entered the beam.
    fate: "continued": it has a child that entered the beam or finished. "best": finished, and the result. "finished":
    with EOS or at the limit, but another hypothesis is the result. "length": the result, cut at the limit.
    "outscored": it, or all its continuations, had a lower total than others. "stopped": it was in the beam when the
    search ended because others had finished. "forbidden": rules left it no possible continuation.
    """

    id: int
    parent: int | None
    length: int
    token: int
    text: str
    log_p: LogProb
    log_prob: LogProb
    total: LogProb
    divisor: float
    coverage: float | None
    score: float | None
    place: int | None
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A whole target and its score; the terms are those of a `Node`.

    score: None, and total −inf, if rules forbid the target.  node: its node in the record; None if the search never
    reached its end.
    """

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    log_prob: LogProb
    total: LogProb
    score: float | None
    finished_by: Literal["eos", "length"]
    node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamRecord(JsonValue):
    """The search of one sentence.

    strategy, width: of the search.  length_penalty, length_penalty_form: the penalty's exponent and form.
    finished: the finished hypotheses, best first; the first is the result.  greedy: the result of greedy search.
    beat_greedy: whether the result scores above it.
    reference: a given target scored with the same model, rules and penalties; None if none was given.
    verdict: "" without a reference; "same" if the result is the reference; "search error" if the reference scores above
    the result, so that the search missed it; "model error" if the model prefers its own result; "forbidden" if rules
    forbid the reference.
    """

    schema: Literal["beam/1"]
    source: str
    strategy: str
    width: int
    length_penalty: float
    length_penalty_form: str
    nodes: tuple[Node, ...]
    finished: tuple[Target, ...]
    greedy: Target
    beat_greedy: bool
    reference: Target | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A whole target.  log_prob: the sum of token_log_probs, in nats.  score: the score by which a search ranks it."""

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    token_log_probs: tuple[LogProb, ...]
    log_prob: LogProb
    score: float
    finished_by: Literal["eos", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A token at a fork: its probability by p_model, log-probability in nats and rank from 1."""

    id: int
    text: str
    p_model: float
    log_p_model: LogProb
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where two targets diverge: after `step` common tokens, one continues with `chosen`, the other with `wanted`."""

    step: int
    chosen: Choice
    wanted: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced(JsonValue):
    """The effect of forcing another token at one step of a target.

    before: the original target.  after: the best target that begins with the tokens before the fork and the forced
    tokens; the first forced token is `fork.wanted`.
    """

    schema: Literal["forced/1"]
    source: str
    before: Outcome
    fork: Fork
    after: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot(JsonValue):
    """Why a text was not the translation.

    found: the search's result.  fork: the first difference between it and the given text; None if there is none.
    continued: the best target with the given text's token at the fork; None without a fork, or if rules forbid it.
    wanted: the given text with the scores that the search would give it; None if rules forbid it.
    """

    schema: Literal["why-not/1"]
    source: str
    text: str
    found: Outcome
    fork: Fork | None
    continued: Outcome | None
    wanted: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(JsonValue):
    """The effect of editing the source.

    before, after: the translations of the original and the edited source.  step: the number of tokens that both share
    at the beginning; None if they are equal.
    moves: for each token of `before`, its log-probability given the edited source minus that given the original, in
    nats; None if either is −inf.
    """

    schema: Literal["edited/1"]
    source: str
    edited: str
    before: Outcome
    after: Outcome
    step: int | None
    moves: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView(JsonValue):
    """One pair of the corpus; lines count from 1.

    log_p: of the target with EOS, given the source.  tokens: of the target, with EOS.
    gain: (log p(y|x) − log p(y)) / tokens, where p(y) is the probability after an empty source. About zero or negative
    for a target that is unrelated to its source; None if either is −∞.
    worst: the target token with the lowest probability; worst_log_p: its log p.
    """

    line: int
    source: str
    target: str
    log_p: LogProb
    tokens: int
    gain: float | None
    worst: str
    worst_log_p: LogProb


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCount:
    """Reference tokens with a rank of at most `most`, and above the previous group's; None: no upper bound."""

    most: int | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceView:
    """Reference tokens at one position, from 1, with means in nats.

    and_later: whether the tokens at all later positions are included, as at the last one, 30.  entropy: of the
    predicted distributions; None if the head gives no distribution.  nll: None in the same case, and if a token is
    impossible.
    """

    place: int
    tokens: int
    entropy: float | None
    nll: float | None
    and_later: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BandView:
    """Tokens of similar frequency, from `least` to `most` occurrences (None: no upper bound), without EOS.

    types: distinct reference tokens in this band.  tokens: their occurrences in the references.  nll: their mean nll.
    first: the fraction that was the likeliest token. Both are None without tokens (nll also as in PlaceView).
    reliability: of the steps whose likeliest token is in this band. Banding by the reference's token would make a
    well-calibrated model look overconfident on rare tokens. None without steps.
    """

    least: int
    most: int | None
    types: int
    tokens: int
    nll: float | None
    first: float | None
    reliability: Reliability | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverPredicted:
    """A token that occurs `tokens` times in the references but was never the likeliest one at any step."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A part of a reference to which two models give different log p.

    before: the reference up to the part.  text: the part; empty for EOS.
    """

    line: int
    source: str
    before: str
    text: str
    log_p: LogProb
    other_log_p: LogProb


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How one model continues where two translations diverge.

    text: its own continuation (empty: EOS).  log_p: by this model.  of_other: this model's log p of the other
    model's continuation.
    """

    text: str
    log_p: LogProb
    of_other: LogProb


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where the translations of two models diverge: the shared beginning, and how each model continues."""

    line: int
    source: str
    shared: str
    text: str
    other_text: str
    own: Continuation
    other: Continuation


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusComparison:
    """Two models compared on one corpus: on its references, and on the models' own translations.

    unit: "token" if both models split targets into the same tokens; else "piece": the text between two positions where
    both tokenizers split, whose log p is the sum over the tokens of either model.
    log_p, other_log_p: of all references.  better, worse: pairs whose reference is more, less probable under the first
    model.  gaps: the parts of references with the largest differences.
    same: pairs with equal translations.  partings: the divergences of the other pairs for which the two models disagree
    most, by the sum of both models' differences in log p.
    """

    unit: Literal["token", "piece"]
    pairs: int
    log_p: LogProb
    other_log_p: LogProb
    better: int
    worse: int
    gaps: tuple[Gap, ...]
    same: int
    partings: tuple[Divergence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusLens(JsonValue, HtmlPage):
    """Statistics of a model's predictions on a parallel corpus, under forced decoding.

    too_long: pairs left out because a side exceeds the model's length; first_too_long: the line of the first one.
    truncated: pairs whose source was cut, as in training.
    normalised: whether the head gives a distribution.  nll: per token; None if not normalised or if a token is
    impossible.  impossible: reference tokens of probability 0.
    reliability: of the likeliest token of every step.  end: of p(end) at every step, right if the reference ends there.
    frequency: whether bands count tokens in the training targets or in this corpus.
    suspects: pairs with the smallest gain, smallest first, impossible ones before; likely misaligned.
    hardest: pairs with the lowest log p per token.
    types: distinct reference tokens.  never_types: those that were never the likeliest token; never_tokens: their
    occurrences; never_predicted: the most frequent ones first.
    """

    schema: Literal["corpus/2"]
    pairs: int
    too_long: int
    first_too_long: int | None
    truncated: int
    tokens: int
    normalised: bool
    nll: float | None
    impossible: int
    reliability: Reliability
    end: Reliability
    frequency: Literal["training", "corpus"]
    bands: tuple[BandView, ...]
    ranks: tuple[RankCount, ...]
    places: tuple[PlaceView, ...]
    suspects: tuple[PairView, ...]
    hardest: tuple[PairView, ...]
    types: int
    never_types: int
    never_tokens: int
    never_predicted: tuple[NeverPredicted, ...]
    comparison: CorpusComparison | None

    def to_page(self, *, title: str = "") -> str:
        """Return an HTML page of the statistics; title: such as the model and its files."""
        return html_page("corpus", {"lens": self, "title": title})


SCHEMAS: dict[str, tuple[str, tuple[type[JsonValue], ...]]] = {
    "trace.schema.json": (
        "Results of Translume's inspection", (Trace, BeamRecord, Forced, WhyNot, Edited, ClassTrace),
    ),
    "corpus.schema.json": ("Results of Translume's corpus lens", (CorpusLens,)),
}  # fmt: skip
"""The title and the types of the schemas in docs/; the field `schema` of each type names it and its version."""


def schema_text(name: str) -> str:
    """Return one of SCHEMAS as JSON text."""
    title, kinds = SCHEMAS[name]
    return json.dumps(schema_of(*kinds, title=title), ensure_ascii=False, indent=1) + "\n"
