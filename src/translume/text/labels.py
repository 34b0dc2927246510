"""The labels of a classifier: the names in the training data, numbered in sorted order."""

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from translume.errors import DataError, ModelFolderError, nearest

MAX_LABELS = 65_536
"""Maximum number of distinct labels; a column with more of them probably contains texts."""
_MAX_LISTED = 20


@dataclass(frozen=True)
class Labels:
    """The names of C classes; an id is an index. Takes the place of the target tokenizer in classification.

    separator: between the names of a text with several labels; empty if every text has exactly one.
    """

    names: tuple[str, ...]
    separator: str = ""

    @classmethod
    def collect(cls, texts: Iterable[str], separator: str = "") -> "Labels":
        """Return the names in a label column, sorted. Raises DataError for fewer than two, or far too many."""
        names: set[str] = set()
        for text in texts:
            names.update(_parts(text, separator))
            if len(names) > MAX_LABELS:
                raise DataError(
                    f"data.columns: more than {MAX_LABELS:,} different labels; expected the column of the labels"
                )
        if len(names) < 2:
            raise DataError(f"data: {len(names)} label in the training data, expected at least 2")
        return cls(tuple(sorted(names)), separator)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def several(self) -> bool:
        """Whether a text may have several labels."""
        return bool(self.separator)

    def encode(self, text: str, place: str) -> list[int]:
        """Return the ids of the labels in a text, ascending.

        Raises DataError, naming `place`, for an unknown label, and for none if every text has one.
        """
        names = _parts(text, self.separator)
        for name in names:
            if name not in self._ids:
                raise DataError(f"{place}: label '{name}' is not in the training data{self._hint(name)}")
        if not names and not self.several:
            raise DataError(f"{place}: no label, expected one")
        return sorted({self._ids[name] for name in names})

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {_normalised(name): id_ for id_, name in enumerate(self.names)}

    def _hint(self, name: str) -> str:
        hint = nearest(name, self.names)
        return hint if "did you mean" in hint or len(self) <= _MAX_LISTED else f"; it has {len(self):,} others"

    def normalise(self, text: str) -> str:
        """Return the names in a text in a form of which there is one for each set of labels."""
        return self.separator.join(sorted(set(_parts(text, self.separator))))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the names as written in a file."""
        return self.separator.join(self.names[id_] for id_ in ids)

    def drop(self, ids: list[int], dropout: float, seed: int) -> list[int]:
        """Return the ids unchanged, since labels have no subwords to drop merges of."""
        return ids

    def pieces(self) -> list[str]:
        """Return the names in the order of their ids."""
        return list(self.names)

    @property
    def digest(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the content of labels.json; `from_json` is the inverse."""
        return json.dumps({"labels": self.names, "separator": self.separator}, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, place: str = "labels.json") -> "Labels":
        """Read what `to_json` returned. Raises ModelFolderError for anything else."""
        try:
            values = json.loads(text)
            names, separator = values["labels"], values["separator"]
        except (ValueError, KeyError, TypeError):
            raise ModelFolderError(f"{place}: damaged: not labels as Translume writes them") from None
        are_strings = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not are_strings or not isinstance(separator, str) or sorted(set(names)) != names or len(names) < 2:
            raise ModelFolderError(f"{place}: damaged: not labels as Translume writes them")
        return cls(tuple(names), separator)


def _parts(text: str, separator: str) -> list[str]:
    parts = text.split(separator) if separator else [text]
    return [name for name in map(_normalised, parts) if name]


def _normalised(name: str) -> str:
    """Return a name in NFC with single spaces, as the same name may be typed differently."""
    return " ".join(unicodedata.normalize("NFC", name).split())
