"""Traces of translations and of classifications, as dataclasses that convert to JSON.

S: source tokens, t: target tokens, both with their end marks; H: attention heads. p is a probability and log_p its
logarithm in nats. A log_p of −inf (an impossible token) is null in JSON; a difference of two log_p is None (null) if
either is −inf.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from translume.inspection.json_values import Document

if TYPE_CHECKING:
    from matplotlib.figure import Figure


AttentionKind = Literal["cross", "decoder", "encoder"]
HeadChoice = int | Literal["mean", "all"]

PlotRegistry = Callable[[str], Callable[..., Any]]
"""Maps the name of a plot to the function that draws it; its first argument is the trace."""

_registered: list[PlotRegistry] = []


def register_plots(plots: PlotRegistry) -> None:
    """Set the functions that draw the plots of traces; `translume.drawing` does this when it is imported.

    So this package does not depend on matplotlib, and `trace.plot_attention()` works in every session that imported
    `translume.drawing`; the lazy names of `translume` do this.
    """
    _registered[:] = [plots]


def _function(name: str) -> Callable[..., Any]:
    if not _registered:
        raise RuntimeError(f"{name}: import translume.drawing first")
    return _registered[0](name)


def _draw(name: str, trace: object, **options: Any) -> "Figure":
    figure: Figure = _function(name)(trace, **options)
    return figure


class TracePlots:
    """Matplotlib figures of a trace. Notebooks display them; `savefig` writes them to a file.

    Each method raises SettingsError if the trace lacks the part that it plots.
    """

    __slots__ = ()

    def plot_attention(
        self, *, kind: AttentionKind = "cross", layer: int | None = None, head: HeadChoice = "mean"
    ) -> "Figure":
        """Plot attention weights as a heat map; rows attend to columns.

        layer: from 1; None for the last but one, whose cross-attention usually aligns best.
        head: a number from 1, "mean", or "all" for one small map per head.
        """
        return _draw("plot_attention", self, kind=kind, layer=layer, head=head)

    def plot_beliefs(self) -> "Figure":
        """Plot the likeliest tokens of every step as a stacked bar of length 1, all other tokens at its end."""
        return _draw("plot_beliefs", self)

    def plot_lens(self) -> "Figure":
        """Plot the likeliest token after each decoder layer (logit lens), shaded by p of the chosen token."""
        return _draw("plot_lens", self)

    def plot_gain(self) -> "Figure":
        """Plot the gain of each token, log p(y | x, prefix) − log p(y | prefix), in nats."""
        return _draw("plot_gain", self)

    def plot_attribution(self, method: str | None = None) -> "Figure":
        """Plot the attribution of target tokens to source tokens; method None: the first in the trace."""
        return _draw("plot_attribution", self, method=method)

    def _repr_html_(self) -> str | None:
        """Return the tokens coloured by probability, for notebooks; None if translume.drawing is not imported."""
        drawn: str | None = _function("notebook")(self) if _registered else None
        return drawn


class ClassTracePlots:
    """Matplotlib figures of a classification; see `TracePlots`."""

    __slots__ = ()

    def plot_evidence(self, method: str | None = None) -> "Figure":
        """Plot the evidence of each token for the first classes; method None: the first in the trace."""
        return _draw("plot_evidence", self, method=method)

    def _repr_html_(self) -> str | None:
        """Return the text coloured by evidence, for notebooks; None if translume.drawing is not imported."""
        drawn: str | None = _function("class_notebook")(self) if _registered else None
        return drawn


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
    For long sources of frames, `encoder` is empty, and `cross` has the mean of a layer's heads as its only head: more
    than `MOST_WEIGHTS` numbers are not kept.
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
    With `model.segment_pooling` a source token is a segment, the last one with the end mark.
    error: of integrated gradients, the largest |Σ_S values − (log p(y) − log p(y) at the baseline)|, which vanishes
    with infinitely many steps; None for the other methods.
    """

    method: Literal["occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients"]
    values: tuple[tuple[float | None, ...], ...]
    baseline: str
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """A source that is no text: L frames of F values, and the part of it that each target token belongs to.

    kind: of the source, "audio", "whisper", "image" or "features".  per_second: frames in a second; 0 for frames that
    are no time.  colors: values of a pixel of an image.
    levels: [L, F], the frames as whole numbers from 0, which stands for `low`, to 255, which stands for `high`.
    spans: the frames [begin, end) of each target token; begin = end for one without a part, such as the end mark.
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
    For frames, both are the path or a description, and `frames` has the source; `source_tokens` are its positions, and
    there are no `source_words`.
    target: the text of the target tokens.  origin: "search" if the model produced the target, "given" if the caller
    did.  finished_by: "eos" if the last token is the end mark, else "length".
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
    log_p: float
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
