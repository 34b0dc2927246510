"""Trace a classification: the predicted distribution over classes, and the evidence of each token."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from translume.checkpoint import ClassifierCheckpoint
from translume.errors import TranslationError, suggest_keywords
from translume.inspection.attribution import (
    DECIMALS,
    MASKED,
    differences,
    embedded,
    encode_embedded,
    input_times_gradient,
    integrate,
    occluded_sources,
    rows_per_pass,
)
from translume.inspection.inputs import check_parts, special_tokens, tokens_of, words_of
from translume.inspection.passes import layout_of
from translume.inspection.values import Attribution, ClassFacts, ClassProbability, ClassTrace, Method
from translume.lazy import Tensor, no_grad, torch
from translume.translator import Classifier
from translume.translator.classifier import LABEL_THRESHOLD

if TYPE_CHECKING:
    from translume.model.classifier import Classifier as Network

ClassPart = Literal["pooling"] | Method
DEFAULT_PARTS: tuple[ClassPart, ...] = ("pooling", "occlusion", "input-gradient")
"""Parts of a trace by default."""
ATTRIBUTION_METHODS: tuple[Method, ...] = (
    "occlusion", "input-gradient", "occlusion-mask", "occlusion-unknown", "integrated-gradients",
)  # fmt: skip
"""Parts that attribute the prediction of classes to tokens."""
PARTS: tuple[ClassPart, ...] = ("pooling", *ATTRIBUTION_METHODS)


@suggest_keywords
def trace_classification(
    classifier: Classifier, text: str, *, k: int = 3, show: Collection[ClassPart] = DEFAULT_PARTS
) -> ClassTrace:
    """Return the predicted distribution over classes for one text, and the evidence of each token.

    k: how many of the likeliest classes get evidence; no other number depends on it.
    show: further parts to compute; "integrated-gradients" requires captum (translume[inspect]).
    Long texts are cut as in `classify`. Raises TranslationError for a blank text, the errors of `classify`, and
    SettingsError for unknown parts.
    """
    check_parts(k, show, PARTS)
    if not text.strip():
        raise TranslationError("text: found a blank text, expected a text to classify")
    ids, places, warnings = classifier.reading(text)
    checkpoint = classifier.checkpoint
    tokenizer = checkpoint.source_tokenizer
    source = torch.tensor([*ids, tokenizer.specials.eos], device=next(checkpoint.model.parameters()).device)
    with no_grad():
        classified = _ClassifiedText.at(
            checkpoint.model, source, min(k, len(checkpoint.labels)), several=checkpoint.labels.several
        )
        evidence = tuple(
            classified.evidence(method, tokenizer.specials.unk) for method in ATTRIBUTION_METHODS if method in show
        )
        weights = classified.pooling() if "pooling" in show else None
    spans = tokenizer.spans_in(text)
    tokens = tokens_of(tokenizer, source.tolist(), [spans[place] for place in places])
    normalised = tokenizer.normalise(text)
    probabilities = classified.probabilities(checkpoint.labels.names)
    return ClassTrace(
        schema="class/1",
        facts=_facts(checkpoint),
        given=text,
        source=normalised,
        warnings=warnings,
        source_tokens=tokens,
        source_words=words_of(normalised, tokens, special_tokens(tokenizer)),
        classes=probabilities,
        margin=_margin([each.p for each in probabilities], several=checkpoint.labels.several),
        entropy=classified.entropy(),
        pooling=weights,
        evidence=evidence,
    )


def _margin(chances: list[float], *, several: bool) -> float:
    return min(abs(p - LABEL_THRESHOLD) for p in chances) if several else chances[0] - chances[1]


def _facts(checkpoint: ClassifierCheckpoint) -> ClassFacts:
    weight = next(checkpoint.model.parameters())
    return ClassFacts(
        digest=checkpoint.digest,
        dtype=str(weight.dtype).removeprefix("torch."),
        device=str(weight.device),
        norm=checkpoint.config.model.norm,
        pooling=checkpoint.model.pooling.way,
        several=checkpoint.labels.several,
    )


@dataclass(frozen=True, slots=True)
class _ClassifiedText:
    """A text's ids [S] with EOS and log p [C] of all classes, fp64; first: the c classes to explain."""

    model: "Network"
    source: Tensor
    log_probs: Tensor
    first: Tensor
    several: bool

    @classmethod
    def at(cls, model: "Network", source: Tensor, count: int, *, several: bool) -> "_ClassifiedText":
        log_probs = _log_probs(model, source[None])[0]
        order = log_probs.sort(descending=True, stable=True).indices
        return cls(model, source, log_probs, order[:count], several)

    def probabilities(self, names: tuple[str, ...]) -> tuple[ClassProbability, ...]:
        chances = self.log_probs.exp().tolist()
        order = self.log_probs.sort(descending=True, stable=True).indices.tolist()
        return tuple(
            ClassProbability(
                label=names[each],
                p=chances[each],
                log_p=float(self.log_probs[each]),
                given=chances[each] > LABEL_THRESHOLD if self.several else place == 0,
            )
            for place, each in enumerate(order)
        )

    def entropy(self) -> float:
        chances = self.log_probs.exp()
        if self.several:
            return float((torch.special.entr(chances) + torch.special.entr(1 - chances)).sum())
        return float(torch.special.entr(chances).sum())

    def pooling(self) -> tuple[float, ...]:
        mask = torch.ones_like(self.source[None], dtype=torch.bool)
        weights = self.model.pooling.weights(self.model.encoder(self.source[None], mask), mask)
        return tuple(weights[0].double().round(decimals=DECIMALS).tolist())

    def evidence(self, method: Method, unknown: int | None) -> Attribution:
        """Return the evidence for the first classes by one method."""
        if method in ("input-gradient", "integrated-gradients"):
            attribute = input_times_gradient if method == "input-gradient" else integrate
            source, absent = embedded(self.model.encoder, self.source)
            rows = rows_per_pass(self.model, len(source), gradients=True)
            return attribute(self._scores(), source, absent, self.first, rows)
        if method == "occlusion-mask":
            without, baseline = self._masked(), MASKED
        else:
            sources, _, baseline = occluded_sources(self.model.encoder, self.source, method, unknown)
            without = _log_probs(self.model, sources)
        gains = differences(self.log_probs[self.first], without.index_select(1, self.first))
        return Attribution(method=method, values=gains, baseline=baseline, error=None)

    def _masked(self) -> Tensor:
        """Return log p [S, C] without the state of each token in turn."""
        size = len(self.source)
        memory = self.model.encoder(self.source[None], torch.ones_like(self.source[None], dtype=torch.bool))
        others, rows = ~torch.eye(size, dtype=torch.bool, device=self.source.device), rows_per_pass(self.model, size)
        pooled = torch.cat(
            [self.model.pooling(memory.expand(len(part), -1, -1), part) for part in torch.split(others, rows)]
        )
        return self.model.head.next_token(pooled, None).log_probs().double()

    def _scores(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function of embedded texts [R, S, D] and classes [R], which returns log p [R] of these classes."""

        def scores(vectors: Tensor, classes: Tensor) -> Tensor:
            mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
            layout = layout_of(mask)
            memory = layout.unpack(encode_embedded(self.model.encoder, vectors.flatten(0, 1), layout))
            return self.model.head.score(self.model.pooling(memory, mask), classes, None)

        return scores


def _log_probs(model: "Network", sources: Tensor) -> Tensor:
    """Return log-probabilities [R, C], fp64, of all classes for texts [R, S'] without padding."""
    parts = torch.split(sources, rows_per_pass(model, sources.size(1)))
    beliefs = [model.belief(part, torch.ones_like(part, dtype=torch.bool)) for part in parts]
    return torch.cat([belief.log_probs().double() for belief in beliefs])
