"""[model.head]: the output head, from hidden states to probabilities; one class for each kind."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, SerializeAsAny, model_validator

from translume.config.base import OfKind, as_tuple

Tie = Literal["all", "target", "embeddings", "none"]
Measure = Literal["nll", "objective"]


class HeadKind(OfKind):
    """Settings common to all heads."""

    table: ClassVar[str] = "model.head"
    part: ClassVar[str] = "head"
    usual: ClassVar[str] = "softmax"

    implementation: ClassVar[str]
    """The class of the head: "module:Class"."""
    predicts: ClassVar[Literal["tokens", "classes"]] = "tokens"
    """The events of the distribution: tokens of a target, or classes of a whole source."""
    reads_source: ClassVar[bool] = False
    """Whether the head reads the tokens of a source."""
    linear: ClassVar[str] = ""
    """The name in a model folder of its one linear map to the logits of a softmax; empty if it is not one."""
    measure: ClassVar[Measure] = "nll"
    """The quantity that validation reports: the nll, or the loss without smoothing if the head defines no nll."""
    tie: Tie

    @property
    def inapplicable_settings(self) -> Mapping[str, str]:
        """Settings of [training] that do not apply to the head's loss, with the reason; setting them is an error."""
        return {}


class LinearHead(HeadKind):
    """Settings common to heads with a linear map to the vocabulary."""

    tie: Tie = "all"
    """Weights to share: "all" (source embedding, target embedding and head), "target" (the last two), "embeddings"
    (the first two) or "none"."""
    bias: bool = True
    """Add a bias for each token, which starts at zero."""


class SoftmaxSettings(LinearHead):
    """[model.head] kind = "softmax": one linear map and a softmax."""

    implementation: ClassVar[str] = "translume.heads.softmax:SoftmaxHead"
    linear: ClassVar[str] = "head"
    kind: Literal["softmax"] = "softmax"


class CappedSettings(LinearHead):
    """[model.head] kind = "capped": a softmax over limited logits c·tanh(l / c), as in Gemma 2."""

    implementation: ClassVar[str] = "translume.heads.softmax:CappedHead"
    kind: Literal["capped"] = "capped"
    cap: float = Field(default=30.0, gt=0.0)
    """The limit c of the logits."""


class ProjectedSettings(LinearHead):
    """[model.head] kind = "projected": a linear map to a larger or smaller size before the vocabulary."""

    implementation: ClassVar[str] = "translume.heads.softmax:ProjectedHead"
    kind: Literal["projected"] = "projected"
    tie: Literal["none"] = "none"
    """The token vectors differ in size from the embeddings and cannot be shared."""
    size: int = Field(default=0, ge=0)
    """Size of the token vectors: larger than `width` to widen, smaller for low rank; 0 for twice `width`."""
    activation: Literal["tanh", "none"] = "tanh"
    """Activation after the map. With "none" the rank of the logits is at most `width`, whatever the size."""


class AdaptiveSettings(HeadKind):
    """[model.head] kind = "adaptive": bands of tokens by frequency, rare ones smaller (Grave et al. 2017)."""

    implementation: ClassVar[str] = "translume.heads.adaptive:AdaptiveHead"
    kind: Literal["adaptive"] = "adaptive"
    tie: Tie = "none"
    """Share each band with an embedding of the same bands (Baevski and Auli 2019): "all", "target" or "none"."""
    cutoffs: Annotated[tuple[int, ...], BeforeValidator(as_tuple)] = ()
    """Ends of the bands, as frequency ranks; empty: an eighth and a half of the vocabulary."""
    factor: int = Field(default=4, ge=1)
    """Ratio between the vector sizes of consecutive bands."""


class HierarchicalSettings(LinearHead):
    """[model.head] kind = "hierarchical": first a class, then a token in it (Goodman 2001)."""

    implementation: ClassVar[str] = "translume.heads.hierarchical:HierarchicalHead"
    kind: Literal["hierarchical"] = "hierarchical"
    bias: bool = True
    """Add a bias for each token and class, which starts at zero."""
    classes: int = Field(default=0, ge=0)
    """Number of classes; 0 for the square root of the vocabulary."""
    grouping: Literal["frequency", "neighbours"] = "frequency"
    """How tokens are grouped into classes: by similar frequency, or by similar neighbouring tokens in the targets."""


class SampledSettings(LinearHead):
    """[model.head] kind = "sampled": a softmax trained on sampled tokens (Jean et al. 2015), exact at decoding."""

    implementation: ClassVar[str] = "translume.heads.sampled:SampledHead"
    linear: ClassVar[str] = "head.softmax"
    kind: Literal["sampled"] = "sampled"
    samples: int = Field(default=1024, ge=1)
    """Tokens drawn for each batch in addition to the labels, by frequency (log-uniform over ranks)."""


class MixtureSettings(LinearHead):
    """[model.head] kind = "mixture": a mixture of softmaxes (Yang et al. 2018)."""

    implementation: ClassVar[str] = "translume.heads.mixture:MixtureHead"
    kind: Literal["mixture"] = "mixture"
    components: int = Field(default=3, ge=1)
    """Number of softmaxes."""


class CopySettings(LinearHead):
    """[model.head] kind = "copy": a softmax mixed with attention over the source's tokens (See et al. 2017)."""

    implementation: ClassVar[str] = "translume.heads.copy:CopyHead"
    reads_source: ClassVar[bool] = True
    linear: ClassVar[str] = "head.softmax"
    kind: Literal["copy"] = "copy"


class ShortlistSettings(LinearHead):
    """[model.head] kind = "shortlist": a softmax over candidate tokens for each source at decoding."""

    implementation: ClassVar[str] = "translume.heads.shortlist:ShortlistHead"
    reads_source: ClassVar[bool] = True
    kind: Literal["shortlist"] = "shortlist"
    selector: Literal["translations", "learned"] = "translations"
    """How candidates are chosen: "translations", a table of likely translations from the training pairs (IBM model 1).

    "learned" predicts from the encoder states which tokens the target may contain, and is trained with the model
    (Domhan et al. 2022).
    """
    frequent: int = Field(default=100, ge=0)
    """Number of most frequent tokens that are always candidates."""
    candidates: int = Field(default=100, ge=1)
    """Candidates for each source token in the table."""
    threshold: float = Field(default=0.001, ge=0.0, lt=1.0)
    """Minimum predicted probability that a candidate is in the target, for a learned selector; 0 selects all tokens."""
    rank: int = Field(default=64, ge=1)
    """Size of the vectors by which a learned selector compares states and tokens; at most `width`."""

    @model_validator(mode="after")
    def _settings_match_selector(self) -> Self:
        unread = ("candidates",) if self.selector == "learned" else ("threshold", "rank")
        reader = "translations" if self.selector == "learned" else "learned"
        for name in unread:
            value, usual = getattr(self, name), type(self).model_fields[name].default
            if value != usual:
                raise ValueError(f"{name} is {value} with selector '{self.selector}', expected selector '{reader}'")
        return self

    @property
    def inapplicable_settings(self) -> Mapping[str, str]:
        why = "model.head.kind = 'shortlist', which gives probability 0 to tokens outside the shortlist"
        return {"teacher": why}


class SigmoidSettings(LinearHead):
    """[model.head] kind = "sigmoid": an independent decision for every token (Stahlberg and Kumar 2022)."""

    implementation: ClassVar[str] = "translume.heads.sigmoid:SigmoidHead"
    measure: ClassVar[Measure] = "objective"
    kind: Literal["sigmoid"] = "sigmoid"
    negatives: float = Field(default=1.0, gt=0.0)
    """Weight α of the tokens other than the label in the loss."""

    @property
    def inapplicable_settings(self) -> Mapping[str, str]:
        why = "model.head.kind = 'sigmoid', whose decisions are not a distribution"
        return dict.fromkeys(("z_loss", "confidence_penalty", "r_drop", "teacher"), why)


class EntmaxSettings(LinearHead):
    """[model.head] kind = "entmax": a sparse softmax that gives most tokens probability 0 (Peters et al. 2019)."""

    implementation: ClassVar[str] = "translume.heads.entmax:EntmaxHead"
    measure: ClassVar[Measure] = "objective"
    kind: Literal["entmax"] = "entmax"
    alpha: float = Field(default=1.5, gt=1.0, le=2.0)
    """1.5 as in Peters et al.; 2 is sparsemax; values near 1 approach the softmax."""

    @property
    def inapplicable_settings(self) -> Mapping[str, str]:
        return {
            "z_loss": "model.head.kind = 'entmax', which has no log Σ exp",
            "r_drop": "model.head.kind = 'entmax', whose divergence is infinite where supports differ",
            "teacher": "model.head.kind = 'entmax', which gives probability 0 to most tokens that a teacher does not",
        }


class ClassifySettings(HeadKind):
    """[model.head] kind = "classify": the class or classes of a whole source, from one vector; no decoder."""

    implementation: ClassVar[str] = "translume.heads.classify:ClassifyHead"
    predicts: ClassVar[Literal["tokens", "classes"]] = "classes"
    kind: Literal["classify"] = "classify"
    tie: Literal["none"] = "none"
    """Classes are not tokens: no embedding can be shared."""
    bias: bool = True
    """Add a bias for each class, which starts at zero."""
    pooling: Literal["mean", "max", "first", "attention", "ngrams"] = "mean"
    """How the encoder states become one vector; "attention" is a learned weighted mean.

    "ngrams" is the convolutional network of Kim (2014): the maximum response of each filter over all n-grams. With
    `model.encoder_layers` = 0 and positions "none" it is the whole network, which learns from few texts.
    """
    ngrams: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(as_tuple)] = Field(
        (3, 4, 5), min_length=1
    )
    """Lengths in tokens of the filters of "ngrams"."""
    filters: int = Field(default=100, ge=1)
    """Number of filters of each length."""
    labels: Literal["one", "several"] = "one"
    """Each text has "one" class (a softmax) or "several", separated by `data.label_separator` (a decision each)."""
    class_weights: Literal["none", "balanced"] = "none"
    """"balanced" weights texts so that all classes count equally, whatever their number in the training data."""

    @model_validator(mode="after")
    def _filters_need_ngrams(self) -> Self:
        if self.pooling != "ngrams":
            for name in ("ngrams", "filters"):
                value, usual = getattr(self, name), type(self).model_fields[name].default
                if value != usual:
                    raise ValueError(f"{name} is {value} with pooling '{self.pooling}', expected pooling 'ngrams'")
        return self

    @property
    def inapplicable_settings(self) -> Mapping[str, str]:
        if self.labels == "one":
            return {}
        why = "model.head.labels = 'several', whose decisions are not a distribution over classes"
        return dict.fromkeys(("label_smoothing", "z_loss", "confidence_penalty", "r_drop", "teacher"), why)


HEADS: dict[str, type[HeadKind]] = {
    "softmax": SoftmaxSettings,
    "capped": CappedSettings,
    "projected": ProjectedSettings,
    "sampled": SampledSettings,
    "shortlist": ShortlistSettings,
    "sigmoid": SigmoidSettings,
    "entmax": EntmaxSettings,
    "adaptive": AdaptiveSettings,
    "hierarchical": HierarchicalSettings,
    "mixture": MixtureSettings,
    "copy": CopySettings,
    "classify": ClassifySettings,
}
"""The settings of every kind of head."""
HeadSettings = Annotated[SerializeAsAny[HeadKind], PlainValidator(HeadKind.choose)]
"""The settings of one head, of the class of its `kind`."""
