"""A model in its folder: settings, tokenizers and weights, nothing else needed to translate."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from translume.checkpoint.build import build_model
from translume.checkpoint.card import Card, write_card
from translume.checkpoint.folder import Content, commit, read_committed, whole
from translume.checkpoint.manifest import FORMAT, Manifest
from translume.checkpoint.migrations import migrate
from translume.checkpoint.weights import fill, tensor_file, unique_tensors
from translume.config import Config
from translume.errors import ModelFolderError, SettingsError, TranslumeError
from translume.model.transformer import Transformer
from translume.text import Tokenizer

CONFIG = "config.toml"
WEIGHTS = "weights.safetensors"
SHARED_TOKENIZER = "tokenizer.json"
SOURCE_TOKENIZER = "source.json"
TARGET_TOKENIZER = "target.json"

Dtype = Literal["auto", "fp32", "bf16"]

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded model folder; the two tokenizers are one object where the vocabulary is shared."""

    config: Config
    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


def load_checkpoint(folder: Path | str, *, device: str = "cpu", dtype: Dtype = "auto") -> Checkpoint:
    """The last committed state of `folder`, in evaluation mode.

    device: "auto" is CUDA where there is one.  dtype: "auto" is bf16 on CUDA, fp32 elsewhere.
    Raises ModelFolderError if the folder is no model, is damaged or was written by a newer Translume.
    """
    folder = Path(folder)
    for _ in range(_ATTEMPTS - 1):
        manifest = Manifest.read(folder)
        try:
            return _load(folder, manifest, device, dtype)
        except ModelFolderError:
            # A commit between reading the manifest and opening a file sweeps that file away: look again.
            if Manifest.read(folder).files == manifest.files:
                raise
    return _load(folder, Manifest.read(folder), device, dtype)


def _load(folder: Path, manifest: Manifest, device: str, dtype: Dtype) -> Checkpoint:
    config = read_config(folder, manifest)
    if WEIGHTS not in manifest.files:
        raise ModelFolderError(f"{folder}: holds no weights yet: its training has not saved any")
    source, target = read_tokenizers(folder, manifest)
    place = choose_device(device)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config.model, len(source), len(target))
    model = model.to(device=place, dtype=choose_dtype(dtype, place))
    fill(model, whole(folder, manifest, WEIGHTS))
    return Checkpoint(config=config, model=model.eval(), source_tokenizer=source, target_tokenizer=target)


def read_config(folder: Path, manifest: Manifest | None = None) -> Config:
    """The settings of a model folder, in the newest format."""
    manifest = manifest or Manifest.read(folder)
    content = read_committed(folder, manifest, CONFIG)
    place = str(folder / manifest.files[CONFIG].file)
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"{place}: not TOML: {error}") from None
    try:
        return Config.build(migrate(tables, place), place=place)
    except SettingsError as error:
        raise ModelFolderError(str(error)) from None


def read_tokenizers(folder: Path, manifest: Manifest | None = None) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target; one object where they are shared."""
    manifest = manifest or Manifest.read(folder)
    if SHARED_TOKENIZER in manifest.files:
        shared = _tokenizer(folder, manifest, SHARED_TOKENIZER)
        return shared, shared
    return _tokenizer(folder, manifest, SOURCE_TOKENIZER), _tokenizer(folder, manifest, TARGET_TOKENIZER)


def _tokenizer(folder: Path, manifest: Manifest, name: str) -> Tokenizer:
    content = read_committed(folder, manifest, name)
    place = str(folder / manifest.files[name].file)
    try:
        return Tokenizer.from_json(content.decode(), place=place)
    except UnicodeDecodeError:
        raise ModelFolderError(f"{place}: not UTF-8 text") from None
    except ModelFolderError:
        raise
    except TranslumeError as error:
        raise ModelFolderError(str(error)) from None


def model_files(
    config: Config, weights: Mapping[str, Tensor], source: Tokenizer, target: Tokenizer
) -> dict[str, Content]:
    """What `commit` needs to make a folder that `load_checkpoint` reads.

    weights: tensors by name, a tied one once, as `unique_tensors(model)` gives them.
    """
    config = config.model_copy(update={"format": FORMAT})
    files: dict[str, Content] = {CONFIG: config.to_toml().encode(), WEIGHTS: tensor_file(weights)}
    if source is target or source.digest == target.digest:
        files[SHARED_TOKENIZER] = source.to_json().encode()
    else:
        files[SOURCE_TOKENIZER] = source.to_json().encode()
        files[TARGET_TOKENIZER] = target.to_json().encode()
    return files


def save_model(
    folder: Path | str,
    checkpoint: Checkpoint,
    *,
    card: Card | None = None,
    files: Mapping[str, Content] | None = None,
    remove: Iterable[str] = (),
) -> None:
    """Commit a whole model, with further `files` beside it, all at once; then write its card.

    What the folder held under other names stays, unless it is named in `remove`.
    Raises ModelFolderError with the old state intact if it cannot be written.
    """
    folder = Path(folder)
    weights = unique_tensors(checkpoint.model)
    model = model_files(checkpoint.config, weights, checkpoint.source_tokenizer, checkpoint.target_tokenizer)
    other = {SHARED_TOKENIZER, SOURCE_TOKENIZER, TARGET_TOKENIZER} - set(model)
    commit(folder, {**model, **(files or {})}, remove={*remove, *other})
    if card is None:
        card = Card(parameters=sum(tensor.numel() for tensor in checkpoint.model.parameters()))
    write_card(folder, checkpoint.config, card)


def choose_device(device: str) -> torch.device:
    """The device that a word names; SettingsError if it is unknown or not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise SettingsError(f"device: found '{device}', wanted auto, cpu, cuda or cuda:N") from None
    if place.type not in ("cpu", "cuda"):
        raise SettingsError(f"device: found '{device}', wanted auto, cpu, cuda or cuda:N")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"device: found '{device}', but torch sees no CUDA device here; wanted auto or cpu")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        last = f"cuda:{torch.cuda.device_count() - 1}"
        raise SettingsError(f"device: found '{device}', but the last CUDA device torch sees here is {last}")
    return place


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The dtype of weights that a word means on `device`; SettingsError if it is unknown."""
    if dtype == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    known = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if dtype not in known:
        raise SettingsError(f"dtype: found '{dtype}', wanted auto, fp32 or bf16")
    return known[dtype]
