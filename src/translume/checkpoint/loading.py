"""Load and save a model folder: settings, vocabularies, weights, lengths and temperature."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from translume.checkpoint.arrays import Arrays, arrays_in, map_file, names_in, weight_in
from translume.checkpoint.folder import (
    FORMAT,
    MANIFEST,
    WRONG_DIGEST,
    Content,
    FolderLock,
    Manifest,
    commit,
    committed,
    read_committed,
    verified,
)
from translume.checkpoint.settings import CONFIG, copy_decoding_files, read_config, stale_decoding_files
from translume.checkpoint.weights import arrays_of, fill, tensor_file, unique_tensors
from translume.config import Config
from translume.data.lengths import Lengths
from translume.device import choose_device, needs_no_torch, require_memory, supports_bf16
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError
from translume.json_values import JsonValue
from translume.lazy import Tensor, torch
from translume.tasks import task_of
from translume.text import Labels, Tokenizer
from translume.text.standard import SETTINGS, tokenizer_files

if TYPE_CHECKING:
    from translume.checkpoint.model_card import Card
    from translume.model.classifier import Classifier, Network
    from translume.model.transformer import Transformer

WEIGHTS = "weights.safetensors"
LENGTHS = "lengths.json"
CALIBRATION = "calibration.json"
SHARED_TOKENIZER = "tokenizer_settings.json"
_SIDES = ("tokenizer", "source", "target")
VOCABULARIES = (*(f"{side}{end}" for side in _SIDES for end in (".json", SETTINGS)), "labels.json")
"""Files of a model's vocabularies, those for other programs included; the task determines which ones."""

Dtype = Literal["auto", "fp32", "bf16"]
_ATTEMPTS = 3
PACKED = "packed"
"""The beginning of the names of files with packed weights; a commit removes those of earlier weights."""
MAX_THREADS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature(JsonValue):
    """A temperature that calibrates a model's probabilities: p ** (1/value), renormalised.

    value: above 1 for an overconfident model.  tokens: target tokens it was fitted to, EOS counted.
    nll_before, nll: nats per token on these, at temperature 1 and at `value`.
    """

    value: float
    tokens: int
    nll_before: float
    nll: float

    def __str__(self) -> str:
        """Return one line in the format of a score."""
        return (
            f"temperature|fitted by:nll|forced:yes|tokens:{self.tokens} = {self.value:.4f} "
            f"(nll per token {self.nll:.4f}, {self.nll_before:.4f} before)"
        )


def packed_name(kind: str, weights: Path) -> str:
    """Return the name of a file with packed weights, beside the weights.  kind: of packing."""
    return f"{PACKED}-{kind}-{weights.stem.rpartition('-')[2]}{weights.suffix}"


class Unbuilt:
    """A network that is built when it is first needed, once, with the weights that a file had when this was made.

    stored: the weights by name as the file has them; None once the network is built.
    """

    def __init__(
        self, config: Config, sizes: tuple[int, int], weights: Path, device: str, dtype: str, digest: str = ""
    ) -> None:
        """sizes: of the two vocabularies.  digest: for `check`; empty for a file that was checked.

        Raises ModelFolderError if the file is damaged.
        """
        self._config, self._sizes, self.file, self._place = config, sizes, weights, (device, dtype)
        self._content, self._digest = map_file(weights), digest
        self.stored: Arrays | None = arrays_in(self._content, weights)[0]
        self._network: Network | None = None
        self._lock = Lock()

    def check(self) -> None:
        """Raise ModelFolderError if the digest of the weights is wrong. Once it was right, do nothing."""
        if self._digest and hashlib.sha256(self._content.data).hexdigest() != self._digest:
            raise ModelFolderError(WRONG_DIGEST.format(self.file))
        self._digest = ""

    def network(self) -> "Network":
        """Return the network in evaluation mode. Raises the errors of `load_any` about weights and devices."""
        with self._lock:
            if self._network is None:
                self._network, self.stored = self._built(), None
            return self._network

    def _built(self) -> "Network":
        self.check()
        with torch.inference_mode(mode=False), torch.random.fork_rng(devices=[]):
            from translume.checkpoint.building import build_network, without_values

            device, dtype = choose_device(self._place[0]), self._place[1]
            with without_values():
                network = build_network(self._config, *self._sizes)
            kind = choose_dtype(dtype, device)
            require_memory(
                device,
                sum(parameter.numel() for parameter in network.parameters()) * kind.itemsize,
                what=f"{self.file.parent}",
                advice="stop the other process on the card, or use --device cpu",
            )
            fill(network, self.file, device, kind, self.stored)
            return network.eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What the checkpoints of all tasks have.

    model: the network; if it was loaded for a CPU, it is built when this is first read.
    temperature: the one fitted to these weights, if any.  digest: SHA-256 of the weights' file, empty for weights that
    come from no file.  lengths: those of the training data, if they are known.
    """

    config: Config
    source_tokenizer: Tokenizer
    model: "Transformer | Classifier"
    temperature: Temperature | None = None
    digest: str = ""
    lengths: Lengths | None = None
    _unbuilt: Unbuilt | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Leave `model` unset if it is still to be built, so that reading it calls `__getattr__`."""
        if isinstance(self.model, Unbuilt):
            object.__setattr__(self, "_unbuilt", self.model)
            object.__delattr__(self, "model")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "model" or self._unbuilt is None:
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
            network = self._unbuilt.network()
            object.__setattr__(self, "model", network)
            return network

    def changed(self, *, config: Config | None = None, temperature: Temperature | None = None) -> Self:
        """Return a checkpoint of the same network with other settings or another temperature.

        Unlike `dataclasses.replace`, it builds no network.
        """
        model: Any = self._unbuilt or self.model
        temperature = temperature or self.temperature
        return replace(self, model=model, config=config or self.config, temperature=temperature)

    def in_ensemble(self, config: Config, lengths: Lengths | None) -> Self:
        """Return a checkpoint of the same network for an ensemble, without a temperature; it builds no network."""
        model: Any = self._unbuilt or self.model
        return replace(self, model=model, config=config, temperature=None, lengths=lengths)

    @property
    def device(self) -> "torch.device":
        """The device of the model."""
        return torch.device("cpu") if self._stored is not None else next(self.model.parameters()).device

    @property
    def on_cpu(self) -> bool:
        """Whether the model is on a CPU; unlike `device`, it needs no torch for a network that is not built."""
        return self._stored is not None or self.device.type == "cpu"

    @property
    def place(self) -> str:
        """Where the weights are from, for errors."""
        return "the model" if self._unbuilt is None else str(self._unbuilt.file)

    @property
    def parameters(self) -> int:
        """The number of trained numbers."""
        stored = self._stored
        if stored is not None:
            return count_parameters(stored, self.config)
        return sum(each.numel() for each in self.model.parameters())

    def arrays(self) -> Arrays:
        """Return the weights as arrays by name, those of floating point in fp32; a tied one by its first name only.

        While the network is not built, they are those of the file and need no torch; then they share the memory of
        the network where it is in fp32 on a CPU.
        """
        stored, unbuilt = self._stored, self._unbuilt
        if stored is None or unbuilt is None:
            return arrays_of(self.model)
        unbuilt.check()
        return {name: weight_in(stored, name) for name in names_in(stored)}

    @property
    def unbuilt(self) -> Unbuilt | None:
        """The network and its file, until the network is built, perhaps by another thread."""
        return None if self._stored is None else self._unbuilt

    @property
    def _stored(self) -> Arrays | None:
        """The weights as the file has them; None once the network is built, perhaps by another thread."""
        return None if self._unbuilt is None else self._unbuilt.stored


def count_parameters(arrays: Arrays, config: Config) -> int:
    """Return the number of trained numbers among the weights of a model, which may be bits of bf16, or int8."""
    learned = config.model.positions == "learned"
    constants = (".embedding.mean", ".embedding.deviation", *(() if learned else (".positions.table",)))
    return sum(
        arrays[name].size
        for name in names_in(arrays)
        if (arrays[name].dtype.kind == "f" or arrays[name].dtype in ("uint16", "int8")) and not name.endswith(constants)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(_Loaded):
    """A loaded model that generates text. The two tokenizers are the same object if the vocabulary is shared."""

    MODEL: ClassVar[str] = "translator"
    TARGET: ClassVar[str] = "target_tokenizer"
    """Name of the field with the target vocabulary."""

    model: "Transformer"
    target_tokenizer: Tokenizer

    @property
    def target(self) -> Tokenizer:
        """The target vocabulary."""
        return self.target_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelCheckpoint(Checkpoint):
    """A loaded language model; both tokenizers are that of its documents."""

    MODEL: ClassVar[str] = "language model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierCheckpoint(_Loaded):
    """A loaded classifier."""

    MODEL: ClassVar[str] = "classifier"
    TARGET: ClassVar[str] = "labels"

    model: "Classifier"
    labels: Labels

    @property
    def target(self) -> Labels:
        """The target vocabulary."""
        return self.labels


AnyCheckpoint = Checkpoint | ClassifierCheckpoint
"""A loaded model of any task."""


def load_any(folder: Path | str, *, device: str = "cpu", dtype: Dtype = "auto", expected: Any = None) -> Any:
    """Load the last committed state of `folder`, in evaluation mode, as the checkpoint class of its task.

    expected: the only class allowed; ModelFolderError names the command that runs a model of another one.
    device: as for `choose_device`.  dtype: "auto" is bf16 on GPUs that have it, otherwise fp32.
    Raises ModelFolderError if the folder is no model, is damaged or was written by a newer Translume; SettingsError if
    the device is missing, or the weights do not fit in its free memory. A network for a CPU is built when it is first
    read; ModelFolderError is raised then if its weights are not those of the settings.
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


def _load(folder: Path, manifest: Manifest, device: str, dtype: Dtype, expected: Any) -> Any:
    config = read_config(folder, manifest)
    task = task_of(config)
    checkpoint = task.checkpoint_class()
    if expected is not None and checkpoint is not expected:
        raise ModelFolderError(
            f"{folder}: is a {task.model}, expected a {expected.MODEL}; "
            f"its commands are {task.command}, evaluate and inspect"
        )
    if WEIGHTS not in manifest.files:
        raise ModelFolderError(f"{folder}: holds no weights yet: its training has not saved any")
    source, target = read_vocabularies(folder, manifest, config)
    place = "cpu" if needs_no_torch(device) else str(choose_device(device))
    _refuse_dtype(dtype)
    digest = manifest.files[WEIGHTS].sha256
    # The weights beside a packed file are checked when they are read: an engine reads what is packed instead.
    packed = any(folder.glob(packed_name("*", committed(folder, manifest, WEIGHTS))))
    weights = (committed if packed else verified)(folder, manifest, WEIGHTS)
    unbuilt = Unbuilt(config, (len(source), len(target)), weights, place, dtype, digest if packed else "")
    return checkpoint(
        config=config,
        model=unbuilt if place == "cpu" else unbuilt.network(),
        source_tokenizer=source,
        temperature=_read_temperature(folder, manifest, digest),
        digest=digest,
        lengths=read_lengths(folder, manifest),
        **{checkpoint.TARGET: target},
    )


def read_lengths(folder: Path, manifest: Manifest | None = None) -> Lengths | None:
    """Return the lengths of the training data; None for a folder without them. Raises ModelFolderError if damaged."""
    manifest = manifest or Manifest.read(folder)
    if LENGTHS not in manifest.files:
        return None
    try:
        return Lengths.from_json(read_committed(folder, manifest, LENGTHS).decode())
    except ValueError:
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
    target_class = task.vocabulary_class()
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
    weights: Mapping[str, Tensor] | Arrays,
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
    checkpoint: AnyCheckpoint,
    *,
    card: "Card | None" = None,
    files: Mapping[str, Content] | None = None,
    remove: Iterable[str] = (),
) -> None:
    """Commit a model, with further `files`, at once; then write its card.

    Other files of the folder stay, unless they are named in `remove`. Raises ModelFolderError, with the old state
    intact, if the folder cannot be written; DataError if a file that [decoding] names cannot be read.
    """
    from translume.checkpoint.model_card import Card, write_card

    folder = Path(folder)
    weights = unique_tensors(checkpoint.model)
    config, named = copy_decoding_files(checkpoint.config)
    tokenizers = checkpoint.source_tokenizer, checkpoint.target
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
        raise SettingsError(f"threads: found {threads!r}, expected an integer from 1 to {MAX_THREADS}")


def choose_dtype(dtype: str, device: "torch.device") -> "torch.dtype":
    """Return the dtype of weights for a name on `device`; "auto" is bf16 on GPUs that have it, otherwise fp32.

    Raises SettingsError if the name is unknown.
    """
    _refuse_dtype(dtype)
    return torch.bfloat16 if dtype == "bf16" or (dtype == "auto" and supports_bf16(device)) else torch.float32


def _refuse_dtype(dtype: str) -> None:
    """Raise SettingsError for an unknown name."""
    if dtype not in get_args(Dtype):
        raise SettingsError(f"dtype: found '{dtype}', expected auto, fp32 or bf16")


def _read_temperature(folder: Path, manifest: Manifest, weights: str) -> Temperature | None:
    """Return the temperature in a folder; None if none was fitted to the weights with the digest `weights`.

    Raises ModelFolderError if the file is damaged.
    """
    if CALIBRATION not in manifest.files:
        return None
    content = read_committed(folder, manifest, CALIBRATION)
    place = folder / manifest.files[CALIBRATION].file
    try:
        values = json.loads(content)
        fitted_to = values.pop("weights")
        temperature = Temperature.from_dict(values)
    except (ValueError, KeyError, TypeError, AttributeError, DataError):
        raise ModelFolderError(f"{place}: damaged: not a temperature as Translume writes it") from None
    if not 0.0 < temperature.value < math.inf:
        raise ModelFolderError(f"{place}: value: found {temperature.value}, expected a number above 0")
    return temperature if fitted_to == weights else None


def store_temperature(folder: Path | str, temperature: Temperature, weights: str) -> None:
    """Commit the temperature fitted to the weights with the digest `weights` (`Checkpoint.digest`).

    Raises ModelFolderError if the folder holds other weights by now or cannot be written, TrainingError if a process
    trains in it.
    """
    folder = Path(folder)
    Manifest.read(folder)  # before the lock would make a folder
    with FolderLock(folder):
        present = Manifest.read(folder).files.get(WEIGHTS)
        if present is None or present.sha256 != weights:
            raise ModelFolderError(f"{folder}: its weights changed while the temperature was fitted; nothing written")
        text = json.dumps({**temperature.to_dict(), "weights": weights}, indent=1) + "\n"
        commit(folder, {CALIBRATION: text.encode()})
