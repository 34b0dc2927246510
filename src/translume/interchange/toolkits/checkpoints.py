"""What the readers of checkpoints share: stated options, weights under our names, and vocabularies."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from translume.checkpoint import Checkpoint, assign, build_model, without_values
from translume.config import Config, ModelSettings
from translume.errors import DataError, ModelFolderError, SettingsError, refused
from translume.interchange.huggingface.bart import OURS, SIDES
from translume.interchange.huggingface.family import Names, layer_names
from translume.interchange.sentencepiece import read_sentencepiece
from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.split_words import SplitWords

MAX_POSITIONS = 1024
"""Our maximum length for models with sinusoids that their toolkit extends as needed."""
PLACES = {side: f"{side}.layers" for side in SIDES}
"""The usual names of the stacks of layers."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Options that a file states; a dot in a name leads into a table.  place: names the file in errors."""

    place: str
    values: Mapping[str, Any]

    def stated(self, name: str, default: Any = None) -> Any:
        """Return a value as it is; the default if it is missing or null."""
        value: Any = self.values
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a number of 0 or more. Raises SettingsError for anything else."""
        value = self.stated(name, default)
        if type(value) is not int or value < 0:
            raise self.error(name, "a number")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a number that may have a fraction. Raises SettingsError for anything else."""
        value = self.stated(name, default)
        if type(value) not in (int, float):
            raise self.error(name, "a number")
        return float(value)

    def one_of(self, name: str, choices: Mapping[Any, T], default: Any = None) -> T:
        """Return what a value stands for. Raises SettingsError for another value."""
        value = self.stated(name, default)
        if not isinstance(value, str | bool | int) or value not in choices:
            raise self.error(name, " or ".join(map(repr, choices)))
        return choices[value]

    def switch(self, name: str, default: bool = False) -> bool:
        """Return true or false. Raises SettingsError for anything else."""
        return self.one_of(name, {True: True, False: False}, default)

    def require(self, accepted: Mapping[str, Sequence[object]]) -> None:
        """Raise SettingsError naming the first option with another value; one that is not stated is accepted."""
        for name, values in accepted.items():
            if self.stated(name, values[0]) not in values:
                raise self.error(name, repr(values[0]))

    def alike(self, pattern: str, read: Callable[[str], T], sides: Sequence[str] = SIDES) -> T:
        """Return what both sides state, whose names replace {} in the pattern. Raises SettingsError if they differ."""
        first, second = (pattern.format(side) for side in sides)
        if read(first) != read(second):
            raise self.error(second, f"{read(first)!r}, that of {first}")
        return read(first)

    def error(self, name: str, expected: str) -> SettingsError:
        """Return the error for an option."""
        found = self.stated(name)
        return SettingsError(
            f"{self.place}: {name}: found {'nothing' if found is None else repr(found)[:80]}, expected {expected}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A checkpoint that was read.

    place: the file with the weights.  model, decoding: our settings.  feed_forward: the inner sizes of both sides.
    weights: theirs, by name.
    names: returns for each of our weights the names of theirs, whose concatenation it is; zeros if there are none.
    computed: our weights that are made of theirs in other ways.  ignored: matches the names of theirs that are not
    needed.  notes: a line for each thing that was left out.
    """

    toolkit: str
    place: Path
    model: Mapping[str, Any]
    decoding: Mapping[str, Any]
    feed_forward: Mapping[str, int]
    tokenizers: tuple[Tokenizer, Tokenizer]
    weights: Mapping[str, Any]
    names: Callable[[ModelSettings], Names]
    computed: Mapping[str, Tensor] = field(default_factory=dict)
    ignored: str = r"(?!)"
    notes: tuple[str, ...] = ()

    def checkpoint(self) -> Checkpoint:
        """Return the model. Raises ModelFolderError naming weights that are missing, unknown or of another shape."""
        source, target = self.tokenizers
        shared = source is target or source.to_json() == target.to_json()
        target = source if shared else target
        values = {
            "model": self.model,
            "decoding": self.decoding,
            "tokenizer": {**source.settings.model_dump(), "shared": shared},
        }
        config = Config.build(values, place=str(self.place))
        names = self.names(config.model)
        for ours, tokenizer in zip(OURS, (source, target), strict=False):
            rows = len(self.tensor(names[ours][0])) if ours in names else len(tokenizer)
            if rows != len(tokenizer):
                raise ModelFolderError(
                    f"{self.place}: {names[ours][0]} has {rows:,} rows, expected {len(tokenizer):,}, the size of the "
                    "vocabulary"
                )
        with without_values():
            model = build_model(config.model, len(source), len(target))
        expected = model.state_dict()
        tensors = {
            ours: self._joined(ours, theirs, expected[ours].shape) for ours, theirs in names.items() if ours in expected
        }
        tensors |= {ours: _finite(f"{self.place}: {ours}", tensor) for ours, tensor in self.computed.items()}
        assign(model, tensors.items(), str(self.place))
        used = {name for theirs in names.values() for name in theirs}
        for name in self.weights:
            if name not in used and not re.search(self.ignored, name):
                raise ModelFolderError(f"{self.place}: holds {name}, which a model of its options does not have")
        return Checkpoint(config=config, model=model.eval(), source_tokenizer=source, target_tokenizer=target)

    def _joined(self, ours: str, theirs: Sequence[str], shape: torch.Size) -> Tensor:
        """Return one of our weights. Units that the narrower of two feed-forward sides lacks are 0: they do nothing."""
        if not theirs:
            return torch.zeros(shape)
        parts = [self.tensor(name) for name in theirs]
        axis = 0 if ".feed_forward.inner." in ours else 1 if ours.endswith(".feed_forward.outer.weight") else None
        if axis is not None:
            units, inner = self.model["feed_forward"], self.feed_forward[ours.partition(".")[0]]
            sizes = [units if place == axis else size for place, size in enumerate(shape)]
            for name, part in zip(theirs, parts, strict=True):
                wanted = [inner if place == axis else size for place, size in enumerate(sizes)]
                if list(part.shape) != wanted:
                    raise ModelFolderError(
                        f"{self.place}: {name} is {list(part.shape)}, expected {wanted} by its options"
                    )
            missing = [0, units - inner] if axis == len(sizes) - 1 else [0, 0, 0, units - inner]
            parts = [F.pad(part, missing) for part in parts]
        for name, part in zip(theirs, parts, strict=True):
            if part.shape[1:] != parts[0].shape[1:]:
                raise ModelFolderError(f"{self.place}: {name} is {list(part.shape)}, expected rows as in {theirs[0]}")
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def tensor(self, name: str) -> Tensor:
        """Return one of their weights in fp32. Raises ModelFolderError if it is missing, quantised or not finite."""
        return stored_tensor(self.place, self.weights, name)


def stored_tensor(place: Path, weights: Mapping[str, Any], name: str) -> Tensor:
    """Return weights in fp32. Raises ModelFolderError if they are missing, quantised or not finite."""
    value = weights.get(name)
    if value is None:
        raise ModelFolderError(f"{place}: no {name}, expected it by the options of the model")
    if not isinstance(value, Tensor) or value.is_quantized or not value.is_floating_point() or not value.ndim:
        found = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
        raise ModelFolderError(f"{place}: {name} is {found}, expected rows of float32, float16 or bfloat16")
    return _finite(f"{place}: {name}", value.detach().float())


def _finite(place: str, tensor: Tensor) -> Tensor:
    if not torch.isfinite(tensor).all():
        raise ModelFolderError(f"{place} holds numbers that are not finite")
    return tensor


def stack_names(
    settings: ModelSettings, layers: Mapping[str, Names], places: Mapping[str, str] = PLACES
) -> dict[str, list[str]]:
    """Return the names of the parts of all layers.  layers, places: the parts of a layer, and their name, by side."""
    names: dict[str, list[str]] = {}
    for side in SIDES:
        for number in range(getattr(settings, f"{side}_layers")):
            names |= layer_names(f"{side}.layers.{number}", f"{places[side]}.{number}", layers[side])
    return names


def tied_tables(place: Path, weights: Mapping[str, Any], theirs: Sequence[str]) -> tuple[str, dict[str, list[str]]]:
    """Return `model.head.tie`, by which of their tables are equal, and the names of the tables.

    theirs: of the source embedding, the target embedding and the output layer.
    """
    source, target, output = (stored_tensor(place, weights, name) for name in theirs)
    embeddings, outputs = torch.equal(source, target), torch.equal(target, output)
    tie = "all" if embeddings and outputs else "target" if outputs else "embeddings" if embeddings else "none"
    return tie, {ours: [name] for ours, name in zip(OURS, theirs, strict=True)}


def split_halves(interleaved: Tensor, heads: int) -> Tensor:
    """Return rows of queries or keys for our rotations, of the halves of a head, from those of neighbouring pairs."""
    return interleaved.reshape(heads, -1, 2, *interleaved.shape[1:]).transpose(1, 2).reshape(interleaved.shape)


WORDS = SplitWords()
Subwords = Path | SplitWords
"""How a side cuts its text: a SentencePiece model, or words and their merges."""


def find_subwords(folder: Path, sides: Sequence[Sequence[str]]) -> list[Subwords]:
    """Return how each side cuts its text, by the files in a folder: SentencePiece models or codes of subword-nmt.

    Without such files, words are between spaces.  sides: names of the sides, such as their languages; of two files,
    each has a name of its side in its own.
    Raises SettingsError if the files of the sides cannot be told apart, DataError for a damaged one.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and _cuts(path)]
    if len(files) <= 1:
        chosen = files * len(sides)
    else:
        by_side = [[path for path in files if _named(path, names)] for names in sides]
        if any(len(each) != 1 for each in by_side):
            shown, wanted = ", ".join(path.name for path in files), " and ".join(names[0] for names in sides)
            raise SettingsError(
                f"{folder}: found {shown}, expected one file of subwords, or one named for each: {wanted}"
            )
        chosen = [each[0] for each in by_side]
    if not chosen:
        return [WORDS] * len(sides)
    return [path if path.suffix in (".model", ".spm") else read_codes(path) for path in chosen]


def _cuts(path: Path) -> bool:
    """Return whether a file is a SentencePiece model by its suffix, or merges by its name and first line."""
    if path.suffix in (".model", ".spm") or not re.search(r"(\b|_|bpe)codes?(\b|_)|(\b|_)bpe(\b|_)", path.name):
        return path.suffix in (".model", ".spm")
    with path.open("rb") as file:
        return bool(re.fullmatch(rb"#version: .*|\S+ \S+( \d+)?", file.readline(1000).strip()))


def _named(path: Path, names: Sequence[str]) -> bool:
    return not set(re.split(r"[^a-z0-9]+", path.name.lower())).isdisjoint(each.lower() for each in names)


def read_codes(path: Path, words: SplitWords = WORDS) -> SplitWords:
    """Return words with the merges in a file of subword-nmt or fastBPE. Raises DataError for another file."""
    lines = read_lines(path)
    version = lines[0].split()[1:] if lines and lines[0].startswith("#version:") else None
    pairs = [line.split(" ") for line in lines[version is not None :] if line]
    counted = version is None and all(len(pair) == 3 and pair[2].isdigit() for pair in pairs)
    if not pairs or any(len(pair) != 2 + counted for pair in pairs) or version not in (None, ["0.1"], ["0.2"]):
        raise DataError(f"{path}: expected the merges of subword-nmt, two pieces in each line")
    merges = tuple((left, right) for left, right, *_ in pairs)
    return replace(words, merges=merges, apart=version != ["0.2"] and not counted)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file. Raises DataError if it cannot be read."""
    try:
        with refused(path, "cannot be read"):
            text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises DataError if it holds anything else."""
    try:
        value = json.loads("\n".join(read_lines(path)))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object")
    return value


def build_tokenizer(
    place: Path, pieces: Sequence[str], specials: SpecialIds, subwords: Subwords, *, restricted: bool = False
) -> Tokenizer:
    """Return the tokenizer of a vocabulary, pieces in the order of ids.

    restricted: whether text is only cut into pieces of the vocabulary where that is possible.
    place: begins the message of a DataError for pieces that are empty or occur twice.
    """
    try:
        if isinstance(subwords, SplitWords):
            return Tokenizer(Vocabulary.from_words(subwords, pieces, specials))
        sentences = read_sentencepiece(subwords, codes=False, only=frozenset(pieces) if restricted else None)
        return Tokenizer(Vocabulary.from_sentencepiece(sentences, pieces, specials))
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None


def special_ids(
    place: Path, pieces: Sequence[str], names: Mapping[str, str], *, ends_source: bool = True
) -> SpecialIds:
    """Return the ids of special tokens by their names. Raises DataError if one is missing."""
    for name in names.values():
        if name not in pieces:
            raise DataError(f"{place}: the vocabulary lacks {name}")
    ids = {ours: pieces.index(name) for ours, name in names.items()}
    return SpecialIds(pad=ids["pad"], bos=ids["bos"], eos=ids["eos"], unk=ids["unk"], ends_source=ends_source)
