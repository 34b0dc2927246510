"""Read a model from a folder of transformers as a model of ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from translume.checkpoint import Checkpoint, assign, build_model, without_values
from translume.config import Config, ModelSettings
from translume.errors import DataError, ModelFolderError, SettingsError, expect_file, nearest, refused
from translume.interchange.huggingface.bart import M2M100, Bart, Marian, MBart, Pegasus
from translume.interchange.huggingface.bert import BertPair
from translume.interchange.huggingface.blenderbot import Blenderbot, BlenderbotSmall, PLBart
from translume.interchange.huggingface.config import CONFIG, ForeignConfig, read_json
from translume.interchange.huggingface.experts import NllbMoe, Switch
from translume.interchange.huggingface.family import Family
from translume.interchange.huggingface.fsmt import Fsmt
from translume.interchange.huggingface.led import Led
from translume.interchange.huggingface.moonshine import Moonshine
from translume.interchange.huggingface.t5 import T5, LongT5, Mt5, Umt5
from translume.interchange.huggingface.t5gemma import T5Gemma
from translume.interchange.huggingface.t5gemma2 import T5Gemma2
from translume.interchange.huggingface.trocr import TrOcr
from translume.interchange.huggingface.whisper import Whisper
from translume.interchange.pickled import damaged, load_pickled

FAMILIES: dict[str, type[Family]] = {
    family.architecture: family
    for family in (
        T5Gemma2, T5Gemma, BertPair, Umt5, LongT5, T5, Mt5, BlenderbotSmall, Led, Bart, MBart, Fsmt, M2M100, Marian,
        Pegasus, Whisper, PLBart, Blenderbot, Switch, NllbMoe, TrOcr, Moonshine,
    )
}  # fmt: skip
"""The class of each architecture. An export takes the first family whose `describes` holds."""
_OTHER_KINDS = {
    "ForCausalLM": "a language model without an encoder",
    "LMHeadModel": "a language model without an encoder",
    "ForMaskedLM": "an encoder without a decoder",
    "ForPreTraining": "an encoder without a decoder",
    "ForSequenceClassification": "a classifier",
    "ForTokenClassification": "a classifier",
}
"""What the names of other architectures end with."""
_LEFT_OUT = {
    "bigbird_pegasus": "its encoder reads blocks drawn at random",
    "donut": "it reads images by a Swin Transformer",
    "moonshine_streaming": "its encoder reads a window of sound",
    "mvp": "its layers read learned prompts",
    "nougat": "it reads images by a Swin Transformer",
    "pegasus_x": "its encoder reads blocks and global tokens",
    "pix2struct": "it reads patches of images of any shape",
    "prophetnet": "its decoder predicts several tokens at once",
    "seamless_m4t": "it reads and writes sound",
    "seamless_m4t_v2": "it reads and writes sound",
    "speech_to_text": "it reads features of its own of sound",
    "speech-encoder-decoder": "its encoder reads samples of sound",
    "xlm-prophetnet": "its decoder predicts several tokens at once",
}
"""Encoder-decoder models that are not read, by `model_type`, with the reason."""
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"
"""Appended to the name of whole weights, this is the name of the file that says which shard has which tensor."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel:
    """An imported model, and one line for each thing that was left out."""

    checkpoint: Checkpoint
    notes: tuple[str, ...]


def read_huggingface(folder: Path, positions: str = "hf", tokenizers: Sequence[Path] = ()) -> ForeignModel:
    """Read the model in `folder`, with the sinusoids of transformers ("hf") or of Marian ("marian").

    tokenizers: the folders of the tokenizers of source and target, if `folder` does not hold them.
    Raises ModelFolderError for a missing file or weights of another shape, DataError for a damaged file, SettingsError
    naming the first setting that we cannot express.
    """
    place = folder / CONFIG
    family, values = read_family(folder)
    if positions not in family.sinusoids:
        raise SettingsError(
            f"--positions {positions}: found {family.architecture}, expected MarianMTModel, which Marian trains"
        )
    foreign = family.read_config(place, values)
    stored = StoredWeights.from_folder(folder)
    settings: dict[str, Any] = {"data": family.data_values(foreign), "model": family.model_values(foreign, stored)}
    config = Config.build({**settings, "decoding": {}}, place=str(place))
    source, target = (
        family.separate_tokenizers(tokenizers, foreign) if tokenizers else family.tokenizers(folder, foreign)
    )
    weights = _weights(stored, config, family, foreign)
    if positions == "marian":
        settings["model"]["positions"] = "marian"
    settings["decoding"], notes = family.decoding_values(folder, foreign, source)
    if source.languages:
        settings["model"]["language_tags"] = family.language_tags
    settings["tokenizer"] = {**source.settings.model_dump(), "shared": source is target}
    config = Config.build(settings, place=str(place))
    with without_values():
        model = build_model(config.model, len(source), len(target), config.data.source)
    assign(model, weights.items(), str(stored.place))
    checkpoint = Checkpoint(config=config, model=model.eval(), source_tokenizer=source, target_tokenizer=target)
    return ForeignModel(checkpoint=checkpoint, notes=tuple(notes))


def read_family(folder: Path) -> tuple[Family, dict[str, Any]]:
    """Return the family that config.json names, and its values. Raises SettingsError for one that we do not have."""
    place = folder / CONFIG
    values = read_json(place)
    return family_named(place, values), values


def family_named(place: Path, values: Mapping[str, Any]) -> Family:
    """Return the family that the config.json at `place` names. Raises SettingsError for one that we do not have."""
    if (reason := _LEFT_OUT.get(str(values.get("model_type")))) is not None:
        word, kinds = str(values["model_type"]), [family.model_type for family in FAMILIES.values()]
        raise SettingsError(f"{place}: model_type: found {word!r}, which is left out: {reason}{nearest(word, kinds)}")
    named = values.get("architectures")
    architecture = named[0] if isinstance(named, list) and len(named) == 1 else named or None
    if architecture is None:  # transformers goes by `model_type` in any case
        kind = values.get("model_type")
        architecture = next((family.architecture for family in FAMILIES.values() if family.model_type == kind), None)
        if architecture is None and kind is not None:
            kinds = [family.model_type for family in FAMILIES.values()]
            raise SettingsError(f"{place}: model_type: found {kind!r}{nearest(str(kind), kinds)}")
    if values.get("auto_map"):
        raise SettingsError(
            f"{place}: auto_map: the model needs Python code of its repository, which Translume never executes"
        )
    for ending, kind in _OTHER_KINDS.items():
        if str(architecture).endswith(ending):
            raise SettingsError(
                f"{place}: architectures: found {architecture!r}, {kind}, expected one with an encoder and a decoder: "
                f"{', '.join(FAMILIES)}"
            )
    if architecture not in FAMILIES:
        word = architecture if isinstance(architecture, str) else ""
        raise SettingsError(f"{place}: architectures: found {architecture!r}{nearest(word, FAMILIES)}")
    return FAMILIES[architecture]()


def family_for(settings: ModelSettings) -> Family:
    """Return the family as which a model with these settings is exported; its `refuse` may still refuse them."""
    return next(family for family in (each() for each in FAMILIES.values()) if family.describes(settings))


def _weights(stored: "StoredWeights", config: Config, family: Family, foreign: ForeignConfig) -> dict[str, Tensor]:
    """Return our state dict. Raises ModelFolderError naming the first tensor that is unknown or of another shape."""
    settings = config.model
    with without_values():
        network = build_model(settings, foreign.vocabulary, foreign.target_vocabulary, config.data.source)
    expected, computed = family.weights_to(network, settings), family.computed(settings)
    for stored_name, tensor in stored.items():
        name = family.renamed(stored_name)
        if name in computed or name.startswith(family.left_out):
            continue
        if name not in expected:
            raise ModelFolderError(
                f"{stored.place}: holds {stored_name}, which a {family.architecture} of config.json does not have"
            )
        if tensor.shape != expected[name].shape:
            raise ModelFolderError(
                f"{stored.place}: {stored_name} is {list(tensor.shape)}, expected {list(expected[name].shape)} by "
                "config.json"
            )
    try:
        return family.weights_from(stored.copied(), settings)
    except ModelFolderError as error:
        raise ModelFolderError(f"{stored.place}: {error}") from None


class StoredWeights(Mapping[str, Tensor]):
    """The tensors of a folder by name, in the dtype of the files. Each one is read when it is looked up.

    Files are mapped into memory, so that reading all tensors in turn takes the memory of one. Pickled Python objects
    are never executed.
    place: the file that error messages name.
    """

    def __init__(self, place: Path, files: Mapping[str, Path], *, copied: bool = False) -> None:
        self.place, self._files, self._copied = place, files, copied
        self._pickled: dict[Path, Mapping[str, Tensor]] = {}

    @classmethod
    def from_folder(cls, folder: Path) -> "StoredWeights":
        """Return those of `model.safetensors`, else of `pytorch_model.bin`, each whole or in shards.

        Raises ModelFolderError if there are none, a shard is missing or damaged, or a shard lacks a tensor of the
        index; DataError for a damaged index.
        """
        for name in (SAFETENSORS, PICKLED):
            whole, index = folder / name, folder / f"{name}{INDEX}"
            if whole.is_file():
                return cls(whole, dict.fromkeys(_names(whole), whole))
            if index.is_file():
                return cls(index, _shards(index))
        raise ModelFolderError(
            f"{folder / SAFETENSORS}: no such file, expected the weights as transformers saves them: {SAFETENSORS} or "
            f"{PICKLED}, or one of them in shards with its {INDEX}"
        )

    def copied(self) -> "StoredWeights":
        """Return the same weights in float32, and in memory of their own."""
        return StoredWeights(self.place, self._files, copied=True)

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor. Raises KeyError for an unknown name, ModelFolderError if it is damaged or quantised."""
        path = self._files[name]
        if path.suffix == ".safetensors":
            tensor: Tensor = _read_safetensors(path, name)
        else:
            if path not in self._pickled:
                self._pickled = {path: _load_pickled(path)}
            tensor = self._pickled[path][name]
        if tensor.dtype not in _DTYPES:
            raise ModelFolderError(
                f"{path}: {name} is stored as {str(tensor.dtype).removeprefix('torch.')}, expected float32, float16 or "
                "bfloat16; quantised weights are not read"
            )
        return tensor.to(torch.float32, copy=True) if self._copied and tensor.is_floating_point() else tensor


def _shards(index: Path) -> dict[str, Path]:
    """Return the shard of each tensor, after checking that it is there."""
    values = read_json(index)
    named = values.get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
        raise DataError(f"{index}: weight_map: expected the name of a file for each tensor")
    stored: dict[str, set[str]] = {}
    suffix = Path(index.name.removesuffix(INDEX)).suffix
    for file in sorted(set(named.values())):
        path = index.parent / file
        if Path(file).name != file or path.suffix != suffix:
            raise DataError(f"{index}: weight_map: found {file!r}, expected the name of a {suffix} file in its folder")
        expect_file(path, f"the shard that {index.name} names")
        stored[file] = set(_names(path))
    for name, file in named.items():
        if name not in stored[file]:
            raise ModelFolderError(f"{index.parent / file}: lacks {name}, which {index.name} expects there")
    return {name: index.parent / file for name, file in named.items()}


def _names(path: Path) -> list[str]:
    return list(_load_pickled(path)) if path.suffix != ".safetensors" else list(_read_safetensors(path))


def _read_safetensors(path: Path, name: str | None = None) -> Any:
    """Return a tensor of a file, or without a name, the names of all."""
    try:
        with refused(path, "cannot be read", ModelFolderError), safe_open(path, framework="pt") as file:
            return file.keys() if name is None else file.get_tensor(name)
    except SafetensorError as error:
        raise damaged(path, error) from None


def _load_pickled(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a PyTorch file; see `load_pickled`."""
    values = load_pickled(path, "tensors only")
    if not isinstance(values, dict) or not all(map(is_plain, values.values())):
        raise ModelFolderError(f"{path}: expected a dictionary of tensors by name, as save_pretrained writes it")
    return values


def is_plain(value: object) -> bool:
    """Return whether a value is a tensor of numbers in memory."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized
