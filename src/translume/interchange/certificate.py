"""What a model must have in common with its export or original: settings, log-probabilities of random sentences."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint import Checkpoint, load_checkpoint, save_model, tensor_file, unique_tensors
from translume.checkpoint.loading import WEIGHTS
from translume.checkpoint.weights import quantized
from translume.config import ModelSettings
from translume.config.base import Settings
from translume.config.model import MODERN
from translume.engine import Engine, EngineError
from translume.errors import SettingsError, TranslumeError
from translume.json_values import JsonValue
from translume.lazy import Tensor, is_imported, no_grad, torch
from translume.translator.loading import engine_of
from translume.translator.planning import tensors_of

Array = NDArray[Any]
SENTENCES, MAX_TOKENS = 50, 31
TOGETHER = 5
"""Sentences in a batch, which limits the memory of their logits."""
TOLERANCE = 1e-3
"""Largest accepted |Δ log p| of a token in float32, in nats. For other formats it is reported but not limited."""


def require_settings(
    settings: Settings, possible: Mapping[str, Sequence[object]], target: str, modern: Collection[str] = ()
) -> None:
    """Raise SettingsError naming the first setting that has another value than those that a target has.

    modern: settings of `MODERN` that a target has, whatever their values. It has the others, a norm before and after
    sub-layers and further activations only if `possible` says so.
    """
    if isinstance(settings, ModelSettings):
        plain = {name: (ModelSettings.usual(name),) for name in MODERN if name not in modern}
        activations = ("relu", "gelu", "swish", "swiglu", "geglu")
        possible = {**plain, "norm": ("pre", "post"), "activation": activations, **possible}
    for name, values in possible.items():
        value = getattr(settings, name)
        if value not in values:
            wanted = " or ".join(map(repr, values))
            raise SettingsError(f"{settings.table}.{name}: found {value!r}, expected {wanted} for {target}")


def require_linear_head(checkpoint: Checkpoint, target: str) -> None:
    """Raise SettingsError for a head that is not one linear map and a softmax."""
    head = checkpoint.config.model.head
    if not head.linear or head.reads_source:
        raise SettingsError(f"model.head.kind: found {head.kind!r}, expected a linear map and a softmax for {target}")


def require_eos_last(checkpoint: Checkpoint, target: str) -> None:
    """Raise SettingsError for a model that reads tokens after the EOS of a source."""
    if checkpoint.source_tokenizer.specials.after_eos:
        raise SettingsError(f"tokenizer: found tokens after the EOS of a source, expected EOS last for {target}")


class DifferenceError(TranslumeError):
    """Log-probabilities differ by more than TOLERANCE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(JsonValue):
    """The result of comparing two models.

    sentences, tokens: how many were compared.  difference: largest |Δ log p| of a token, in nats.
    mean_difference: the mean.  dtype: the format of the written weights.
    same_translations: sentences whose greedy translations are equal; None if they were not compared.
    """

    sentences: int
    tokens: int
    difference: float
    mean_difference: float
    dtype: str
    same_translations: int | None = None

    def __str__(self) -> str:
        """Return the differences as one phrase."""
        return (
            f"{self.tokens} tokens of {self.sentences} random sentences differ by at most {self.difference:.2g} nats, "
            f"{self.mean_difference:.2g} on average"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedTargets:
    """Pairs of ids, and our log-probabilities of each target's tokens, EOS last.

    Ids include the tags of languages, but no other special tokens.
    given: the number of tokens at the beginning of each target that are tags, whose log-probabilities do not count.
    frames: the sources [1, L, F] of a model that reads no text, instead of `sources`.
    """

    given: int
    sources: list[list[int]]
    targets: list[list[int]]
    log_probs: list[list[float]]
    frames: tuple[Array, ...] = ()

    def examples(self, checkpoint: Checkpoint) -> Iterator[tuple[Array, Array, Array]]:
        """Yield the source [1, S] or [1, L, F], what the decoder reads [1, T], and the labels [1, T], of each pair."""
        specials, end = checkpoint.target_tokenizer.specials, checkpoint.source_tokenizer.specials.source_end
        sources = self.frames or [np.array([[*source, *end]]) for source in self.sources]
        for source, target in zip(sources, self.targets, strict=True):
            yield source, np.array([[specials.bos, *target]]), np.array([[*target, specials.eos]])

    def certificate(self, log_probs: Sequence[Sequence[float]], dtype: str) -> Certificate:
        """Compare the log-probabilities of the other toolkit with ours.

        Raises TranslumeError if one is NaN, or infinite in one model only; ValueError if their number differs.
        """
        pairs = [
            pair
            for ours, theirs in zip(self.log_probs, log_probs, strict=True)
            for pair in list(zip(ours, theirs, strict=True))[self.given :]
        ]
        differences = [0.0 if ours == theirs else abs(ours - theirs) for ours, theirs in pairs]
        for pair, difference in zip(pairs, differences, strict=True):
            if not math.isfinite(difference):  # NaN would pass every comparison with a limit
                raise TranslumeError(
                    f"certificate: found log-probabilities {pair[0]:.4g} here and {pair[1]:.4g} in the other toolkit "
                    "for one token, expected finite numbers in both"
                )
        return Certificate(
            sentences=len(log_probs),
            tokens=len(pairs),
            difference=max(differences),
            mean_difference=sum(differences) / len(differences),
            dtype=dtype,
        )

    def compare(
        self, log_probs: Sequence[Sequence[float]], toolkit: str, place: Path, dtype: str = "float32"
    ) -> Certificate:
        """As `certificate`; raises TranslumeError also if weights in float32 differ by more than TOLERANCE."""
        certificate = self.certificate(log_probs, dtype)
        if dtype == "float32" and certificate.difference > TOLERANCE:
            raise DifferenceError(
                f"{place}: {toolkit} differs by {certificate.difference:.2g} nats a token, expected at most {TOLERANCE}"
            )
        return certificate


def label_log_probs(logits: Tensor, labels: Array) -> list[float]:
    """Return the log-probabilities of labels [1, T] for logits [1, T, V]."""
    log_probs: list[float] = (
        logits[0]
        .to(torch.promote_types(logits.dtype, torch.float32))
        .log_softmax(-1)
        .gather(1, torch.from_numpy(labels[0])[:, None])[:, 0]
        .tolist()
    )
    return log_probs


@no_grad()
def forced_targets(checkpoint: Checkpoint, count: int = SENTENCES) -> ForcedTargets:
    """Score random sentences of 1 to MAX_TOKENS tokens, drawn from the vocabulary without special tokens.

    For a model that reads no text, sources are random frames. While torch is not imported, the engine scores.
    """
    generator, settings = np.random.default_rng(1), checkpoint.config.model
    longest = min(MAX_TOKENS, settings.max_positions - 1 - max(settings.source_tags, settings.target_tags))
    sides = []
    for tokenizer, tags in (
        (checkpoint.source_tokenizer, settings.source_tags),
        (checkpoint.target_tokenizer, settings.target_tags),
    ):
        specials = {tokenizer.specials.pad, tokenizer.specials.bos, tokenizer.specials.eos, tokenizer.specials.unk}
        ids = [number for number in range(len(tokenizer)) if number not in specials]
        rows = [generator.choice(ids, length).tolist() for length in generator.integers(1, longest + 1, count)]
        codes = [*tokenizer.languages.values()] or ids
        sides.append([[codes[place % len(codes)]] * tags + row for place, row in enumerate(rows)])
    sources, targets = sides
    frames, together = tuple[Array, ...](), TOGETHER
    if checkpoint.config.data.source.reader:
        mask = torch.ones(1, min(MAX_TOKENS, settings.max_positions), dtype=torch.bool)
        dtype = next(checkpoint.model.parameters()).dtype
        example, numbers = checkpoint.model.encoder.embedding.example, torch.Generator().manual_seed(1)
        frames = tuple(example(mask, numbers)[0].to(dtype).numpy() for _ in targets)
        sources, together = [], 1  # a window of sound has 1,500 positions
    unscored = ForcedTargets(given=settings.target_tags, sources=sources, targets=targets, log_probs=[], frames=frames)
    examples, engine = list(unscored.examples(checkpoint)), _engine(checkpoint)
    log_probs = []
    for start in range(0, count, together):
        batch, labels = _batch(examples[start : start + together])
        if engine is not None:
            scores = engine.score(*batch)
        else:
            scores = checkpoint.model.score(*tensors_of(batch, checkpoint.device)).numpy()
        log_probs += [row[: len(each)] for row, each in zip(scores.tolist(), labels, strict=True)]
    return replace(unscored, log_probs=log_probs)


def _engine(checkpoint: Checkpoint) -> Engine | None:
    """Return the engine that scores; None if the plain model does."""
    try:
        engine = None if is_imported() else engine_of(checkpoint, "fp32", pack=False)
    except EngineError:
        return None
    return engine if engine is not None and engine.head is not None else None


def _batch(examples: Sequence[tuple[Array, Array, Array]]) -> tuple[tuple[Array, ...], list[Array]]:
    """Return some examples as forced decoding reads them, and the labels of each."""
    sources, read, labels = ([each[0] for each in column] for column in zip(*examples, strict=True))
    (source, mask), (target, target_mask) = padded(sources), padded(read)
    return (source, mask, target, padded(labels)[0], target_mask), labels


def padded(rows: Sequence[Array]) -> tuple[Array, Array]:
    """Return rows of different lengths as one array [B, N, …], and the mask [B, N] of what they contain."""
    mask = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
    whole = np.zeros((*mask.shape, *rows[0].shape[1:]), rows[0].dtype)
    whole[mask] = np.concatenate(rows)
    return whole, mask


def write_translume(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    """Write a model folder with weights in another format into the empty `folder`, load it and compare.

    Weights in int8 have a scale a row. Raises SettingsError for int16.
    """
    if dtype not in ("float32", "float16", "bfloat16", "int8"):
        raise SettingsError(f"export: found weights as {dtype!r}, expected float32, float16, bfloat16 or int8")
    weights = unique_tensors(checkpoint.model)
    if dtype == "int8":
        weights = quantized(weights)
    else:
        kind = getattr(torch, dtype)
        weights = {name: each.to(kind) if each.is_floating_point() else each for name, each in weights.items()}
    save_model(folder, checkpoint, files={WEIGHTS: tensor_file(weights)})
    forced = forced_targets(checkpoint)
    written = load_checkpoint(folder, dtype="fp32")
    return forced.compare(forced_targets(written).log_probs, "the model folder", folder, dtype)
