"""The interface of a family: how its settings, weights and tokenizer files correspond to ours."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings, SoftmaxSettings, SourceKind
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.certificate import require_settings
from translume.interchange.huggingface.config import ForeignConfig, decoding_values, read_integer, shown
from translume.interchange.huggingface.tokenizer import read_tokenizer
from translume.model import Transformer
from translume.model.positions import encodings_where
from translume.text import Tokenizer

Names = Mapping[str, Sequence[str]]
"""For each of our weights the names of theirs, whose concatenation it is, in equal parts."""
TiedTable = tuple[tuple[str, ...], tuple[str, ...]]
"""Our names and their names of one table, which may occur under several names."""


def require(place: str, found: Mapping[str, Any], wanted: Mapping[str, object], *, more: str = "") -> None:
    """Raise SettingsError naming the first setting that has another value, if it is present.

    place: what stands before the name.  more: what is said after the value that is expected.
    """
    for name, value in wanted.items():
        if found.get(name, value) != value:
            raise SettingsError(f"{place}{name}: found {shown(found[name])}, expected {shown(value)}{more}")


def with_kinds(names: Names, kinds: Iterable[str] = ("weight", "bias")) -> dict[str, list[str]]:
    """Return the names of the weights, and of the biases, of layers."""
    return {f"{ours}.{kind}": [f"{each}.{kind}" for each in theirs] for kind in kinds for ours, theirs in names.items()}


def encoder_differences(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an encoder that are not those of its decoder."""
    return {name: value for name, value in encoder.items() if value != decoder[name]}


def layer_names(ours: str, theirs: str, names: Names) -> dict[str, list[str]]:
    """Return the names of the parts of one layer, after the names of the layer itself."""
    return {f"{ours}.{name}": [f"{theirs}.{each}" for each in parts] for name, parts in names.items()}


class Family(ABC):
    """One architecture of transformers."""

    architecture: ClassVar[str]
    """Name of the class in transformers, such as "MarianMTModel"."""
    model_type: ClassVar[str]
    """`model_type` in config.json, such as "marian"."""
    required: ClassVar[Mapping[str, object]] = {}
    """Settings of config.json that must have this value if they are present."""
    sinusoids: ClassVar[tuple[str, ...]] = ("hf",)
    """Values of `positions` of an import that the family supports."""
    possible: Mapping[str, tuple[object, ...]] = {}
    """Values of [model] settings that the family can express, for `refuse`."""
    modern: ClassVar[frozenset[str]] = frozenset()
    """Settings of `MODERN` that the family can express, whatever their values."""
    heads: ClassVar[tuple[str, ...]] = ("softmax",)
    """Kinds of heads that the family can express."""
    ties: ClassVar[tuple[str, ...]] = ("all",)
    """Values of `model.head.tie` that the family can express."""
    tokenizer_class: ClassVar[str] = ""
    """The class in transformers of imported tokenizers of kind "library"."""
    language_tags: ClassVar[str] = "target"
    """`model.language_tags` of a model whose tokenizer has tags of languages."""
    loader: ClassVar[str] = "AutoModelForSeq2SeqLM"
    """The class of transformers that loads a model to compare with."""
    logit_bias: ClassVar[str] = ""
    """Name of the bias [1, V] of the logits; empty if there is none."""
    left_out: ClassVar[tuple[str, ...]] = ()
    """What the names of stored weights begin with that have no counterpart here."""

    # Reading

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        """Read the values of the config.json at `place`. Raises SettingsError naming one that is not supported."""
        require(f"{place}: ", values, self.required, more=f" for {self.architecture}")
        return ForeignConfig.from_values(place, self.architecture, values, self.target_vocabulary(place, values))

    def target_vocabulary(self, place: Path, values: Mapping[str, Any]) -> int:
        """Return the number of target tokens."""
        return read_integer(place, values, "vocab_size")

    @abstractmethod
    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the [model] settings. Raises SettingsError naming an unsupported value.

        state: the stored weights, for what config.json does not say.
        """

    def data_values(self, config: ForeignConfig) -> dict[str, Any]:
        """Return the [data] settings: those of non-text sources."""
        return {}

    def decoding_values(
        self, folder: Path, config: ForeignConfig, tokenizer: Tokenizer
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the [decoding] settings that match `generate`, and a line for each setting that is left out.

        tokenizer: of the sources.
        """
        return decoding_values(folder, config, tokenizer.languages if self.language_tags == "target" else {})

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        """Read the tokenizers of source and target; one object if both are the same."""
        return read_tokenizer(folder, config)

    def separate_tokenizers(self, folders: Sequence[Path], config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        """Read the tokenizers of source and target, the first and the last of these folders.

        Raises SettingsError for an architecture whose folders hold their tokenizers.
        """
        raise SettingsError(
            f"vocabularies: found them for {config.place.parent}, a {self.architecture}, which has its own"
        )

    def inputs(self, read: Tensor, source: SourceKind) -> dict[str, Tensor]:
        """Return a source that the encoder here reads, [1, S] or [1, L, F], as their model is given it."""
        return {"input_ids": read}

    def renamed(self, name: str) -> str:
        """Return the name in a model of transformers of a weight that is stored under a name."""
        return name

    def mended(self, theirs: Any) -> Any:
        """Return a loaded model of transformers, changed where this release computes something else than `generate`."""
        return theirs

    # Writing

    def describes(self, settings: ModelSettings) -> bool:
        """Return whether a model with these settings is exported as this family; by default none is."""
        return False

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return the values of config.json of a model that is exported, except the special ids and `vocab_size`."""
        return {}

    def refuse(self, settings: ModelSettings) -> None:
        """Raise SettingsError naming the first setting that the family cannot express."""
        positions = encodings_where(lambda encoding: self.architecture in encoding.huggingface)
        possible = {"positions": positions, "final_norm": (False,), **self.possible}
        require_settings(settings, possible, self.architecture, self.modern)
        if settings.head.kind not in self.heads:
            wanted = " or ".join(map(repr, self.heads))
            raise SettingsError(
                f"model.head.kind: found {settings.head.kind!r}, expected {wanted} for {self.architecture}"
            )
        if settings.head.tie not in self.ties:
            wanted = " or ".join(map(repr, self.ties))
            raise SettingsError(
                f"model.head.tie: found {settings.head.tie!r}, expected {wanted} for {self.architecture}"
            )

    def stored_values(self, settings: ModelSettings) -> Mapping[str, Any]:
        """Return values of the exported config.json that transformers would write differently."""
        return {}

    def written_tokenizer(self, checkpoint: Checkpoint) -> Any:
        """Return the tokenizer of transformers to save, or None for the one made from our rules."""
        return None

    def prepared(self, theirs: Any, settings: ModelSettings) -> Any:
        """Return a new model of transformers, changed so that it can take the weights."""
        return theirs

    # Weights

    @abstractmethod
    def names(self, settings: ModelSettings) -> Names:
        """Return the names of the weights, without the tied tables."""

    @abstractmethod
    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        """Return the names of embeddings and output layer, which share tables as `model.head.tie` says."""

    def sizes(self, ours: str, settings: ModelSettings) -> list[int]:
        """Return the sizes of the parts of one of our weights; empty if they are equal."""
        return []

    def computed(self, settings: ModelSettings) -> frozenset[str]:
        """Return the names of weights that may be stored and are not read, since they follow from the settings."""
        return frozenset()

    def weights_to(self, model: Transformer, settings: ModelSettings) -> dict[str, Tensor]:
        """Return a state dict for their architecture. Raises SettingsError for what it cannot express."""
        self.refuse(settings)
        weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        state: dict[str, Tensor] = {}
        for ours, theirs in self.names(settings).items():
            whole = weights[ours]
            sizes = self.sizes(ours, settings) or len(whole) // len(theirs)
            parts = [each.clone() for each in torch.split(whole, sizes)] if len(theirs) > 1 else [whole]
            state.update(zip(theirs, parts, strict=True))
        for table, names in self.tables(settings):
            state.update(dict.fromkeys(names, weights[table[0]]))
        if self.logit_bias:
            head, bias = weights["head.weight"], weights.get("head.bias")
            state[self.logit_bias] = head.new_zeros(1, head.size(0)) if bias is None else bias[None]
        return state

    def weights_from(self, state: Mapping[str, Tensor], settings: ModelSettings) -> dict[str, Tensor]:
        """Return our state dict from theirs. Raises ModelFolderError for missing weights."""
        self.refuse(settings)
        weights: dict[str, Tensor] = {}
        for table, names in self.tables(settings):  # first, since comparing two names of one table takes it twice
            weights.update(dict.fromkeys(table, shared_tensor(state, table[0], names)))
        for ours, theirs in self.names(settings).items():
            parts = [shared_tensor(state, ours, (name,)) for name in theirs]
            weights[ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
        if self.logit_bias and isinstance(settings.head, SoftmaxSettings) and settings.head.bias:
            weights["head.bias"] = shared_tensor(state, "head.bias", (self.logit_bias,))[0]
        return weights


class Converted(Mapping[str, Tensor]):
    """Weights by name, each converted when it is looked up, unless it is a shape only.

    Arithmetic on torch's meta device would import torch's compiler.
    renamed: returns the name here of a name in `state`.
    """

    def __init__(
        self, state: Mapping[str, Tensor], convert: Callable[[str, Tensor], Tensor], renamed: Callable[[str], str] = str
    ) -> None:
        self._state, self._convert, self._names = state, convert, {renamed(name): name for name in state}

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._state[self._names[name]]
        return tensor if tensor.is_meta else self._convert(name, tensor)


def shared_tensor(state: Mapping[str, Tensor], ours: str, theirs: Sequence[str]) -> Tensor:
    """Return the tensor with one of their names. Raises ModelFolderError if there is none, or if two differ."""
    present = [name for name in theirs if name in state]
    if not present:
        raise ModelFolderError(f"{theirs[0]}: no such weights, expected them for {ours}")
    first = state[present[0]].detach()
    for name in present[1:]:
        if not torch.equal(state[name], first):
            raise ModelFolderError(f"{name}: differs from {present[0]}, with which config.json ties it")
    return first
