"""A model in its folder: settings, tokenizers and weights, nothing else needed to translate."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from translume.checkpoint.build import build_network
from translume.checkpoint.card import Card, write_card
from translume.checkpoint.folder import Content, commit, read_committed, whole
from translume.checkpoint.manifest import FORMAT, Manifest
from translume.checkpoint.manifest import NAME as MANIFEST
from translume.checkpoint.migrations import migrate
from translume.checkpoint.named import found_in, left_over, taken_in
from translume.checkpoint.temperature import Temperature, read_temperature
from translume.checkpoint.weights import fill, tensor_file, unique_tensors
from translume.config import Config
from translume.errors import ModelFolderError, SettingsError, TranslumeError
from translume.model.classifier import Classifier
from translume.model.transformer import Transformer
from translume.text import Labels, Tokenizer

CONFIG = "config.toml"
WEIGHTS = "weights.safetensors"
SHARED_TOKENIZER = "tokenizer.json"
SOURCE_TOKENIZER = "source.json"
TARGET_TOKENIZER = "target.json"
LABELS = "labels.json"

Dtype = Literal["auto", "fp32", "bf16"]

_ATTEMPTS = 3
MOST_THREADS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded model folder; the two tokenizers are one object where the vocabulary is shared.

    temperature: the one that was fitted to these weights, if one was.  digest: SHA-256 of the weights' file; empty
    where they come from none.
    """

    config: Config
    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    temperature: Temperature | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierCheckpoint:
    """A loaded model folder of a classifier.  digest: SHA-256 of the weights' file; empty where they come from none."""

    config: Config
    model: Classifier
    source_tokenizer: Tokenizer
    labels: Labels
    digest: str = ""


def load_checkpoint(folder: Path | str, *, device: str = "cpu", dtype: Dtype = "auto") -> Checkpoint:
    """The last committed state of `folder`, in evaluation mode.

    device: "auto" is CUDA where there is one.  dtype: "auto" is bf16 on CUDA, fp32 elsewhere.
    Raises ModelFolderError if the folder is no translator, is damaged or was written by a newer Translume.
    """
    found = load_any(folder, device=device, dtype=dtype)
    if isinstance(found, ClassifierCheckpoint):
        raise ModelFolderError(f"{folder}: a classifier, wanted a translator; `translume classify` uses it")
    return found


def load_classifier_checkpoint(
    folder: Path | str, *, device: str = "cpu", dtype: Dtype = "auto"
) -> ClassifierCheckpoint:
    """The last committed state of a classifier's folder; see `load_checkpoint`."""
    found = load_any(folder, device=device, dtype=dtype)
    if isinstance(found, Checkpoint):
        raise ModelFolderError(f"{folder}: a translator, wanted a classifier; `translume translate` uses it")
    return found


def load_any(folder: Path | str, *, device: str = "cpu", dtype: Dtype = "auto") -> Checkpoint | ClassifierCheckpoint:
    """Whichever of the two the folder holds; see `load_checkpoint`."""
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


def _load(folder: Path, manifest: Manifest, device: str, dtype: Dtype) -> Checkpoint | ClassifierCheckpoint:
    config = read_config(folder, manifest)
    if WEIGHTS not in manifest.files:
        raise ModelFolderError(f"{folder}: holds no weights yet: its training has not saved any")
    source, target = read_vocabularies(folder, manifest)
    place = choose_device(device)
    with torch.random.fork_rng(devices=[]):
        model = build_network(config.model, len(source), len(target))
    model = model.to(device=place, dtype=choose_dtype(dtype, place))
    fill(model, whole(folder, manifest, WEIGHTS))
    digest = manifest.files[WEIGHTS].sha256
    if isinstance(model, Classifier):
        if not isinstance(target, Labels):
            raise ModelFolderError(f"{folder}: damaged: a classifier without {LABELS}")
        return ClassifierCheckpoint(
            config=config, model=model.eval(), source_tokenizer=source, labels=target, digest=digest
        )
    if isinstance(target, Labels):
        raise ModelFolderError(f"{folder}: damaged: a translator with {LABELS}")
    return Checkpoint(
        config=config,
        model=model.eval(),
        source_tokenizer=source,
        target_tokenizer=target,
        temperature=read_temperature(folder, manifest, digest),
        digest=digest,
    )


def read_config(folder: Path, manifest: Manifest | None = None) -> Config:
    """The settings of a model folder, in the newest format; files that [decoding] names are the folder's copies."""
    manifest = manifest or Manifest.read(folder)
    content = read_committed(folder, manifest, CONFIG)
    place = str(folder / manifest.files[CONFIG].file)
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"{place}: not TOML: {error}") from None
    try:
        config = Config.build(migrate(tables, place), place=place)
    except SettingsError as error:
        raise ModelFolderError(str(error)) from None
    return found_in(config, folder, manifest)


def read_tokenizers(folder: Path, manifest: Manifest | None = None) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target; one object where they are shared."""
    manifest = manifest or Manifest.read(folder)
    if SHARED_TOKENIZER in manifest.files:
        shared = _tokenizer(folder, manifest, SHARED_TOKENIZER)
        return shared, shared
    return _tokenizer(folder, manifest, SOURCE_TOKENIZER), _tokenizer(folder, manifest, TARGET_TOKENIZER)


def read_vocabularies(folder: Path, manifest: Manifest | None = None) -> tuple[Tokenizer, Tokenizer | Labels]:
    """The tokenizer of sources, and that of targets or a classifier's labels."""
    manifest = manifest or Manifest.read(folder)
    source, target = read_tokenizers(folder, manifest)
    if LABELS not in manifest.files:
        return source, target
    place = str(folder / manifest.files[LABELS].file)
    try:
        return source, Labels.from_json(read_committed(folder, manifest, LABELS).decode(), place)
    except UnicodeDecodeError:
        raise ModelFolderError(f"{place}: not UTF-8 text") from None


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
    config: Config, weights: Mapping[str, Tensor], source: Tokenizer, target: Tokenizer | Labels
) -> dict[str, Content]:
    """What `commit` needs to make a folder that `load_checkpoint` reads, but for the files that [decoding] names.

    config: with the names that `taken_in` gave these.
    weights: tensors by name, a tied one once, as `unique_tensors(model)` gives them.
    """
    config = config.model_copy(update={"format": FORMAT})
    files: dict[str, Content] = {CONFIG: config.to_toml().encode(), WEIGHTS: tensor_file(weights)}
    if isinstance(target, Labels):
        files[SHARED_TOKENIZER] = source.to_json().encode()
        files[LABELS] = target.to_json().encode()
    elif source is target or source.digest == target.digest:
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
    Raises ModelFolderError with the old state intact if it cannot be written, DataError where a file that [decoding]
    names cannot be read.
    """
    folder = Path(folder)
    weights = unique_tensors(checkpoint.model)
    config, named = taken_in(checkpoint.config)
    model = model_files(config, weights, checkpoint.source_tokenizer, checkpoint.target_tokenizer)
    other = {SHARED_TOKENIZER, SOURCE_TOKENIZER, TARGET_TOKENIZER} - set(model)
    other |= left_over(Manifest.read(folder), named) if (folder / MANIFEST).exists() else set()
    commit(folder, {**model, **named, **(files or {})}, remove={*remove, *other})
    if card is None:
        card = Card(parameters=sum(tensor.numel() for tensor in checkpoint.model.parameters()))
    write_card(folder, checkpoint.config, card)


def refuse_threads(threads: object) -> None:
    """Raise SettingsError unless a process may compute with so many threads; None, as many as there are, it may."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise SettingsError(f"threads: found {threads!r}, wanted a whole number from 1 to {MOST_THREADS}")


def choose_device(device: str) -> torch.device:
    """The device that a word names; SettingsError if it is unknown or not there."""
    if not isinstance(device, str):
        raise SettingsError(f"device: found {device!r}, wanted auto, cpu, cuda or cuda:N")
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
