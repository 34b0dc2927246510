"""Load and save a model folder: settings, vocabularies, weights, and the files that [decoding] names.

A folder contains copies of the files that [decoding] names, so that it can be moved. `config.toml` refers to them by
their names in the manifest, such as "decoding/terminology.tsv"; the settings of a loaded model have the copies' paths.
"""

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from translume.checkpoint.building import allocate, build_network, without_values
from translume.checkpoint.folder import FORMAT, MANIFEST, Content, Manifest, commit, committed, read_committed, whole
from translume.checkpoint.migrations import migrate
from translume.checkpoint.model_card import Card, write_card
from translume.checkpoint.temperature import Temperature, read_temperature
from translume.checkpoint.weights import fill, map_weights, tensor_file, unique_tensors
from translume.config import Config
from translume.config.decoding import names_file
from translume.data.lengths import Lengths
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError
from translume.model.classifier import Classifier
from translume.model.device import choose_device, require_memory, supports_bf16
from translume.model.transformer import Transformer
from translume.tasks import task_of
from translume.text import Labels, Tokenizer
from translume.text.standard import SETTINGS, tokenizer_files

CONFIG = "config.toml"
WEIGHTS = "weights.safetensors"
LENGTHS = "lengths.json"
SHARED_TOKENIZER = "tokenizer_settings.json"
_SIDES = ("tokenizer", "source", "target")
VOCABULARIES = (*(f"{side}{end}" for side in _SIDES for end in (".json", SETTINGS)), "labels.json")
"""Files of a model's vocabularies, those for other programs included; the task determines which ones."""

Dtype = Literal["auto", "fp32", "bf16"]

DECODING_FILES = "decoding/"
"""Prefix of the names of copies of the files that [decoding] names."""
_COMPRESSED = (".gz", ".zst")
_ATTEMPTS = 3
MAX_THREADS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A loaded model that generates text. The two tokenizers are the same object if the vocabulary is shared.

    temperature: the one fitted to these weights, if any.  digest: SHA-256 of the weights' file, empty for weights that
    come from no file.  lengths: those of the training data, if they are known.
    """

    MODEL: ClassVar[str] = "translator"

    config: Config
    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    temperature: Temperature | None = None
    digest: str = ""
    lengths: Lengths | None = None

    @classmethod
    def assemble(cls, loaded: "Loaded") -> Self:
        """Make a checkpoint of what a folder holds."""
        return cls(
            config=loaded.config,
            model=loaded.network,
            source_tokenizer=loaded.source,
            target_tokenizer=cast(Tokenizer, loaded.target),
            temperature=loaded.temperature,
            digest=loaded.digest,
            lengths=loaded.lengths,
        )

    @property
    def target(self) -> Tokenizer:
        """The target vocabulary."""
        return self.target_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelCheckpoint(Checkpoint):
    """A loaded language model; both tokenizers are that of its documents."""

    MODEL: ClassVar[str] = "language model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierCheckpoint:
    """A loaded classifier.  digest: SHA-256 of the weights' file, empty for weights that come from no file."""

    MODEL: ClassVar[str] = "classifier"
    lengths: ClassVar[None] = None

    config: Config
    model: Classifier
    source_tokenizer: Tokenizer
    labels: Labels
    digest: str = ""

    @classmethod
    def assemble(cls, loaded: "Loaded") -> Self:
        """Make a checkpoint of what a folder holds."""
        return cls(
            config=loaded.config,
            model=loaded.network,
            source_tokenizer=loaded.source,
            labels=cast(Labels, loaded.target),
            digest=loaded.digest,
        )

    @property
    def target(self) -> Labels:
        """The target vocabulary."""
        return self.labels


AnyCheckpoint = Checkpoint | ClassifierCheckpoint
"""A loaded model of any task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The content of a model folder, from which the task's checkpoint class is assembled."""

    config: Config
    network: Any
    source: Tokenizer
    target: Tokenizer | Labels
    temperature: Temperature | None
    digest: str
    lengths: Lengths | None


def load_any(folder: Path | str, *, device: str = "cpu", dtype: Dtype = "auto", expected: Any = None) -> Any:
    """Load the last committed state of `folder`, in evaluation mode, as the checkpoint class of its task.

    expected: the only class allowed; ModelFolderError names the command that runs a model of another one.
    device: as for `choose_device`.  dtype: "auto" is bf16 on GPUs that have it, otherwise fp32.
    Raises ModelFolderError if the folder is no model, is damaged or was written by a newer Translume; SettingsError if
    the device is missing, or the weights do not fit in its free memory.
    """
    folder = Path(folder)
    for _ in range(_ATTEMPTS - 1):
        manifest = Manifest.read(folder)
        try:
            return _load(folder, manifest, device, dtype, expected)
        except ModelFolderError:
            # A commit between reading the manifest and opening a file removes that file: read the manifest again.
            if Manifest.read(folder).files == manifest.files:
                raise
    return _load(folder, Manifest.read(folder), device, dtype, expected)


def load_checkpoint(folder: Path | str, *, device: str = "cpu", dtype: Dtype = "auto") -> Checkpoint:
    """Load a translator; see `load_any`. Raises ModelFolderError for a model of another kind."""
    checkpoint: Checkpoint = load_any(folder, device=device, dtype=dtype, expected=Checkpoint)
    return checkpoint


def load_classifier_checkpoint(
    folder: Path | str, *, device: str = "cpu", dtype: Dtype = "auto"
) -> ClassifierCheckpoint:
    """Load a classifier; see `load_any`. Raises ModelFolderError for a model of another kind."""
    checkpoint: ClassifierCheckpoint = load_any(folder, device=device, dtype=dtype, expected=ClassifierCheckpoint)
    return checkpoint


def _load(folder: Path, manifest: Manifest, device: str, dtype: Dtype, expected: Any) -> Any:
    config = read_config(folder, manifest)
    task = task_of(config)
    checkpoint = task.part("checkpoint")
    if expected is not None and checkpoint is not expected:
        raise ModelFolderError(
            f"{folder}: is a {task.model}, expected a {expected.MODEL}; "
            f"its commands are {task.command}, evaluate and inspect"
        )
    if WEIGHTS not in manifest.files:
        raise ModelFolderError(f"{folder}: holds no weights yet: its training has not saved any")
    source, target = read_vocabularies(folder, manifest, config)
    place = choose_device(device)
    with torch.random.fork_rng(devices=[]), without_values():
        network = build_network(config, len(source), len(target))
    kind, weights = choose_dtype(dtype, place), whole(folder, manifest, WEIGHTS)
    require_memory(
        place,
        sum(parameter.numel() for parameter in network.parameters()) * kind.itemsize,
        what=f"{folder}",
        advice="stop the other process on the card, or use --device cpu",
    )
    if (place.type, kind) != ("cpu", torch.float32) or not map_weights(network, weights):
        allocate(network, place, kind)
        fill(network, weights)
    digest = manifest.files[WEIGHTS].sha256
    return checkpoint.assemble(
        Loaded(
            config=config,
            network=network.eval(),
            source=source,
            target=target,
            temperature=read_temperature(folder, manifest, digest),
            digest=digest,
            lengths=read_lengths(folder, manifest),
        )
    )


def read_config(folder: Path, manifest: Manifest | None = None) -> Config:
    """Return the settings of a model folder in the newest format, with paths to its copies of [decoding]'s files."""
    manifest = manifest or Manifest.read(folder)
    return use_decoding_copies(stored_config(folder, manifest), folder, manifest)


def stored_config(folder: Path, manifest: Manifest) -> Config:
    """Return the settings in the newest format; [decoding] names files as the manifest does."""
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


def read_lengths(folder: Path, manifest: Manifest | None = None) -> Lengths | None:
    """Return the lengths of the training data; None for a folder without them. Raises ModelFolderError if damaged."""
    manifest = manifest or Manifest.read(folder)
    if LENGTHS not in manifest.files:
        return None
    content = read_committed(folder, manifest, LENGTHS)
    try:
        return Lengths.from_json(content.decode())
    except (ValueError, KeyError, TypeError):
        place = folder / manifest.files[LENGTHS].file
        raise ModelFolderError(f"{place}: damaged: not lengths as Translume writes them") from None


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizers of source and target, the same object if they are shared.

    For a model without a target tokenizer, both are the source tokenizer.
    """
    source, target = read_vocabularies(folder)
    return source, target if isinstance(target, Tokenizer) else source


def read_vocabularies(
    folder: Path, manifest: Manifest | None = None, config: Config | None = None
) -> tuple[Tokenizer, Tokenizer | Labels]:
    """Read the source tokenizer and the target vocabulary, the same object if they are shared."""
    manifest = manifest or Manifest.read(folder)
    task = task_of(config or read_config(folder, manifest))
    source_name, target_name = task.vocabulary_files
    if own_file(manifest, target_name) not in manifest.files and source_name != SHARED_TOKENIZER:
        shared = _read_vocabulary(folder, manifest, SHARED_TOKENIZER, Tokenizer)
        return shared, shared
    target_class = task.part("vocabulary")
    source = _read_vocabulary(folder, manifest, source_name, Tokenizer)
    return source, _read_vocabulary(folder, manifest, target_name, target_class)


def own_file(manifest: Manifest, name: str) -> str:
    """Return the name that the file of a vocabulary has in a folder: in format 1 it was "source.json" and so on."""
    old = name.replace(SETTINGS, ".json")
    return old if name not in manifest.files and old in manifest.files else name


def _read_vocabulary(folder: Path, manifest: Manifest, name: str, kind: Any) -> Any:
    name = own_file(manifest, name)
    content = read_committed(folder, manifest, name)
    place = str(folder / manifest.files[name].file)
    try:
        return kind.from_json(content.decode(), place=place)
    except UnicodeDecodeError:
        raise ModelFolderError(f"{place}: not UTF-8 text") from None
    except ModelFolderError:
        raise
    except TranslumeError as error:
        raise ModelFolderError(str(error)) from None


def model_files(
    config: Config,
    weights: Mapping[str, Tensor],
    source: Tokenizer,
    target: Tokenizer | Labels,
    lengths: Lengths | None = None,
) -> dict[str, Content]:
    """Return the files for `commit` that make a model folder, without those that [decoding] names.

    config: as `copy_decoding_files` returns it.  weights: tensors by name, tied ones once, as from `unique_tensors`.
    lengths: of the training data, if they are known.
    """
    config = config.model_copy(update={"format": FORMAT})
    files: dict[str, Content] = {CONFIG: config.to_toml().encode(), WEIGHTS: tensor_file(weights)}
    names = [SHARED_TOKENIZER] if source.digest == target.digest else task_of(config).vocabulary_files
    for name, vocabulary in zip(names, (source, target), strict=False):
        if isinstance(vocabulary, Tokenizer):
            files |= tokenizer_files(name.removesuffix(SETTINGS), vocabulary)
        else:
            files[name] = vocabulary.to_json().encode()
    if lengths is not None:
        files[LENGTHS] = lengths.to_json().encode()
    return files


def save_model(
    folder: Path | str,
    checkpoint: Checkpoint,
    *,
    card: Card | None = None,
    files: Mapping[str, Content] | None = None,
    remove: Iterable[str] = (),
) -> None:
    """Commit a model, with further `files`, at once; then write its card.

    Other files of the folder stay, unless they are named in `remove`. Raises ModelFolderError, with the old state
    intact, if the folder cannot be written; DataError if a file that [decoding] names cannot be read.
    """
    folder = Path(folder)
    weights = unique_tensors(checkpoint.model)
    config, named = copy_decoding_files(checkpoint.config)
    tokenizers = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    model = model_files(config, weights, *tokenizers, checkpoint.lengths)
    other = {*VOCABULARIES, LENGTHS} - set(model)
    other |= stale_decoding_files(Manifest.read(folder), named) if (folder / MANIFEST).exists() else set()
    commit(folder, {**model, **named, **(files or {})}, remove={*remove, *other})
    if card is None:
        card = Card(parameters=sum(tensor.numel() for tensor in checkpoint.model.parameters()))
    write_card(folder, checkpoint.config, card)


def refuse_threads(threads: object) -> None:
    """Raise SettingsError for an invalid number of threads; None is valid."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise SettingsError(f"threads: found {threads!r}, expected a whole number from 1 to {MAX_THREADS}")


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the dtype of weights for a name on `device`; "auto" is bf16 on GPUs that have it, otherwise fp32.

    Raises SettingsError if the name is unknown.
    """
    if dtype == "auto":
        return torch.bfloat16 if supports_bf16(device) else torch.float32
    known = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if dtype not in known:
        raise SettingsError(f"dtype: found '{dtype}', expected auto, fp32 or bf16")
    return known[dtype]


def copy_decoding_files(config: Config) -> tuple[Config, dict[str, bytes]]:
    """Return the settings with the names that [decoding]'s files get in a model folder, and their content by name.

    Raises DataError, naming the setting, if a file cannot be read.
    """
    files: dict[str, bytes] = {}

    def taken(path: str, setting: str, stem: str) -> str:
        packed = PurePosixPath(path).suffix
        name = DECODING_FILES + (PurePosixPath(stem).stem + packed if packed in _COMPRESSED else stem)
        try:
            files[name] = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"decoding.{setting}: {path}: cannot be read: {error.strerror or error}") from None
        return name

    return _renamed(config, taken), files


def use_decoding_copies(config: Config, folder: Path, manifest: Manifest) -> Config:
    """Return the settings with the paths of the folder's copies; other paths stay as they are.

    Raises ModelFolderError if a copy is missing or damaged.
    """

    def found(path: str, setting: str, stem: str) -> str:
        return str(committed(folder, manifest, path).absolute()) if path in manifest.files else path

    return _renamed(config, found)


def stale_decoding_files(manifest: Manifest, files: Collection[str]) -> set[str]:
    """Return the names of copies that the settings no longer name."""
    return {name for name in manifest.files if name.startswith(DECODING_FILES)} - set(files)


def _renamed(config: Config, renamed: Callable[[str, str, str], str]) -> Config:
    """Return the settings with new paths of [decoding]'s files: `renamed` maps (path, setting, file name) to a path."""
    decoding = config.decoding
    changes: dict[str, str | tuple[str, ...]] = {}
    for setting, stem in (("terminology", "terminology.tsv"), ("vocabulary", "vocabulary.txt")):
        path = getattr(decoding, setting)
        if path:
            changes[setting] = renamed(path, setting, stem)
    if any(map(names_file, decoding.ban)):
        changes["ban"] = tuple(
            f"@{renamed(entry[1:], 'ban', f'ban-{number}.txt')}" if names_file(entry) else entry
            for number, entry in enumerate(decoding.ban, start=1)
        )
    return config.model_copy(update={"decoding": decoding.model_copy(update=changes)}) if changes else config
