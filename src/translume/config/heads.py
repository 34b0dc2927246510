"""[model.head]: the output head, from hidden states to probabilities; one class a kind."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from translume.config.base import Settings

Tie = Literal["all", "target", "none"]
Measure = Literal["nll", "objective"]


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class HeadKind(Settings):
    """What the settings of every kind of head have."""

    table: ClassVar[str] = "model.head"

    implementation: ClassVar[str]
    """Where the head is: "module:Class"."""
    predicts: ClassVar[Literal["tokens", "classes"]] = "tokens"
    """What the probabilities are over: tokens of a target, or classes of a whole source."""
    measure: ClassVar[Measure] = "nll"
    """What validation tells: the nll, or the objective without smoothing of a head whose beliefs give no nll."""
    kind: str
    tie: Tie

    @property
    def meaningless(self) -> Mapping[str, str]:
        """Settings of [training] that the head's loss can make nothing of, and why; asking for them is an error."""
        return {}


class LinearHead(HeadKind):
    """What those have that are a linear map to the vocabulary."""

    tie: Tie = "all"
    """Share weights: "all" source embedding, target embedding and head; "target" the last two; "none"."""
    bias: bool = True
    """Add a bias for each token, which starts at zero."""


class SoftmaxSettings(LinearHead):
    """[model.head] kind = "softmax": one linear map and a softmax."""

    implementation: ClassVar[str] = "translume.heads.softmax:SoftmaxHead"
    kind: Literal["softmax"] = "softmax"


class ProjectedSettings(LinearHead):
    """[model.head] kind = "projected": a linear map to another size before the vocabulary, wider or of low rank."""

    implementation: ClassVar[str] = "translume.heads.projected:ProjectedHead"
    kind: Literal["projected"] = "projected"
    tie: Literal["none"] = "none"
    """The vocabulary's vectors have a size of their own, so that no embedding can be shared."""
    size: int = Field(default=0, ge=0)
    """Size of the vocabulary's vectors: more than `width` widens, less is of low rank; 0 for twice `width`."""
    activation: Literal["tanh", "none"] = "tanh"
    """After the map; "none" leaves a map of at most rank `width`, whatever the size."""


class AdaptiveSettings(HeadKind):
    """[model.head] kind = "adaptive": bands of tokens by frequency, rare ones smaller (Grave et al. 2017)."""

    implementation: ClassVar[str] = "translume.heads.adaptive:AdaptiveHead"
    kind: Literal["adaptive"] = "adaptive"
    tie: Tie = "none"
    """Share each band with an embedding of the same bands (Baevski and Auli 2019): "all", "target" or "none"."""
    cutoffs: Annotated[tuple[int, ...], BeforeValidator(_as_tuple)] = ()
    """Where bands end, in tokens by frequency; empty: an eighth and a half of the vocabulary."""
    factor: int = Field(default=4, ge=1)
    """Each band's vectors are this many times smaller than those of the band before."""


class HierarchicalSettings(LinearHead):
    """[model.head] kind = "hierarchical": first a class, then a token in it (Goodman 2001)."""

    implementation: ClassVar[str] = "translume.heads.hierarchical:HierarchicalHead"
    kind: Literal["hierarchical"] = "hierarchical"
    bias: bool = True
    """Add a bias for each token and class, which starts at zero."""
    classes: int = Field(default=0, ge=0)
    """How many classes; 0 for the square root of the vocabulary."""
    grouping: Literal["frequency", "neighbours"] = "frequency"
    """What stands in a class: tokens of like frequency, or tokens that stand between like tokens in the targets."""


class SampledSettings(LinearHead):
    """[model.head] kind = "sampled": a softmax trained on some sampled tokens (Jean et al. 2015); whole at decoding."""

    implementation: ClassVar[str] = "translume.heads.sampled:SampledHead"
    kind: Literal["sampled"] = "sampled"
    samples: int = Field(default=1024, ge=1)
    """Tokens drawn for each batch, by frequency (log-uniform over ranks), beside the labels."""


class MixtureSettings(LinearHead):
    """[model.head] kind = "mixture": a mixture of softmaxes (Yang et al. 2018)."""

    implementation: ClassVar[str] = "translume.heads.mixture:MixtureHead"
    kind: Literal["mixture"] = "mixture"
    components: int = Field(default=3, ge=1)
    """How many softmaxes."""


class CopySettings(LinearHead):
    """[model.head] kind = "copy": a softmax mixed with attention over the source's tokens (See et al. 2017)."""

    implementation: ClassVar[str] = "translume.heads.copy:CopyHead"
    kind: Literal["copy"] = "copy"


class ShortlistSettings(LinearHead):
    """[model.head] kind = "shortlist": a softmax that decodes among candidates for the source alone."""

    implementation: ClassVar[str] = "translume.heads.shortlist:ShortlistHead"
    kind: Literal["shortlist"] = "shortlist"
    selector: Literal["translations", "learned"] = "translations"
    """Who names candidates: "translations" is a table of likely ones learned from the training pairs (IBM model 1).

    "learned" tells from the encoder's states which tokens the target may hold, and is trained with the model (Domhan et
    al. 2022).
    """
    frequent: int = Field(default=100, ge=0)
    """The most frequent tokens are always candidates."""
    candidates: int = Field(default=100, ge=1)
    """Candidates for each source token, of the table."""
    threshold: float = Field(default=0.001, ge=0.0, lt=1.0)
    """A learned selector's candidates are in the target with at least this probability; 0 lists all tokens."""
    rank: int = Field(default=64, ge=1)
    """Size of what a learned selector makes of states and of tokens, to compare them; `width` at most."""

    @model_validator(mode="after")
    def _settings_have_their_selector(self) -> Self:
        others = ("candidates",) if self.selector == "learned" else ("threshold", "rank")
        wanted = "translations" if self.selector == "learned" else "learned"
        for name in others:
            found, usual = getattr(self, name), type(self).model_fields[name].default
            if found != usual:
                raise ValueError(f"{name} is {found} with selector '{self.selector}', wanted selector '{wanted}'")
        return self

    @property
    def meaningless(self) -> Mapping[str, str]:
        why = (
            "model.head.kind = 'shortlist', which holds what is on no list for impossible, whatever a teacher believes"
        )
        return {"teacher": why}


class SigmoidSettings(LinearHead):
    """[model.head] kind = "sigmoid": yes or no for every token, no distribution (Stahlberg and Kumar 2022)."""

    implementation: ClassVar[str] = "translume.heads.sigmoid:SigmoidHead"
    measure: ClassVar[Measure] = "objective"
    kind: Literal["sigmoid"] = "sigmoid"
    negatives: float = Field(default=1.0, gt=0.0)
    """Weight of the tokens that are not the label in the loss, α."""

    @property
    def meaningless(self) -> Mapping[str, str]:
        why = "model.head.kind = 'sigmoid', whose decisions are no distribution"
        return dict.fromkeys(("z_loss", "confidence_penalty", "r_drop", "teacher"), why)


class EntmaxSettings(LinearHead):
    """[model.head] kind = "entmax": a sparse softmax that gives most tokens no probability (Peters et al. 2019)."""

    implementation: ClassVar[str] = "translume.heads.entmax:EntmaxHead"
    measure: ClassVar[Measure] = "objective"
    kind: Literal["entmax"] = "entmax"
    alpha: float = Field(default=1.5, gt=1.0, le=2.0)
    """1.5 is as Peters et al. have it; 2 is sparsemax, and towards 1 comes the softmax."""

    @property
    def meaningless(self) -> Mapping[str, str]:
        return {
            "z_loss": "model.head.kind = 'entmax', which has no log Σ exp",
            "r_drop": "model.head.kind = 'entmax', whose beliefs are infinitely far apart where their supports differ",
            "teacher": "model.head.kind = 'entmax', which holds most of what a teacher believes for impossible",
        }


class ClassifySettings(HeadKind):
    """[model.head] kind = "classify": one vector of a whole source, and its class or classes; no decoder."""

    implementation: ClassVar[str] = "translume.heads.classify:ClassifyHead"
    predicts: ClassVar[Literal["tokens", "classes"]] = "classes"
    kind: Literal["classify"] = "classify"
    tie: Literal["none"] = "none"
    """Classes are no tokens, so that no embedding can be shared."""
    bias: bool = True
    """Add a bias for each class, which starts at zero."""
    pooling: Literal["mean", "max", "first", "attention", "ngrams"] = "mean"
    """How the encoder's states become one vector; "attention" is a learnt weighted mean.

    "ngrams" is the convolutional network of Kim (2014): what each filter answers best to, of all runs of tokens. With
    `model.encoder_layers` = 0 and no positions it is all there is; it learns from few texts.
    """
    ngrams: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_as_tuple)] = Field(
        (3, 4, 5), min_length=1
    )
    """How many tokens filters of "ngrams" look at."""
    filters: int = Field(default=100, ge=1)
    """Filters of each of these lengths."""
    labels: Literal["one", "several"] = "one"
    """Each text has one class (a softmax), or some, parted by `data.label_separator` (a yes or no each)."""
    class_weights: Literal["none", "balanced"] = "none"
    """"balanced" weighs texts of each class as if all classes had as many in the training data."""

    @model_validator(mode="after")
    def _filters_have_a_pooling(self) -> Self:
        if self.pooling != "ngrams":
            for name in ("ngrams", "filters"):
                found, usual = getattr(self, name), type(self).model_fields[name].default
                if found != usual:
                    raise ValueError(f"{name} is {found} with pooling '{self.pooling}', wanted pooling 'ngrams'")
        return self

    @property
    def meaningless(self) -> Mapping[str, str]:
        if self.labels == "one":
            return {}
        why = "model.head.labels = 'several', whose decisions are no distribution over classes"
        return dict.fromkeys(("label_smoothing", "z_loss", "confidence_penalty", "r_drop", "teacher"), why)


def _softmax_unless_named(value: object) -> object:
    return {"kind": "softmax", **value} if isinstance(value, dict) else value


HeadSettings = Annotated[
    SoftmaxSettings
    | ProjectedSettings
    | SampledSettings
    | ShortlistSettings
    | SigmoidSettings
    | EntmaxSettings
    | AdaptiveSettings
    | HierarchicalSettings
    | MixtureSettings
    | CopySettings
    | ClassifySettings,
    Field(discriminator="kind"),
    BeforeValidator(_softmax_unless_named),
]
"""Every kind of head, told apart by `kind`; a new one is a class above and its name in this union."""


def head_kinds() -> dict[str, type[HeadKind]]:
    """Return the settings class of every kind of head, in the order of the union."""
    union = get_args(HeadSettings)[0]
    members: tuple[type[HeadKind], ...] = get_args(union) or (union,)
    return {str(member.model_fields["kind"].default): member for member in members}
