"""manifest.json: which files are the model, and how to tell that they are whole."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from translume.errors import ModelFolderError

FORMAT = 1
"""The newest layout of a model folder that this Translume reads, and the one it writes."""

NAME = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A committed file.

    file: its path inside the folder, with a digest in its name.  size: in bytes.  sha256: hexadecimal.
    """

    file: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of one committed state, by the names they go by ("weights.safetensors")."""

    files: Mapping[str, Entry]
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The last committed state; ModelFolderError where there is none, or one that cannot be read."""
        try:
            text = (folder / NAME).read_text(encoding="utf-8")
        except FileNotFoundError:
            reason = f"it has no {NAME}" if folder.is_dir() else "there is no such folder"
            raise ModelFolderError(f"{folder}: not a model folder: {reason}") from None
        except NotADirectoryError:
            raise ModelFolderError(f"{folder}: not a model folder: it is a file") from None
        except OSError as error:
            raise ModelFolderError(f"{folder / NAME}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ModelFolderError(f"{folder / NAME}: damaged: not UTF-8 text") from None
        try:
            return cls._from_values(json.loads(text), folder)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelFolderError(f"{folder / NAME}: damaged: not a list of files as Translume writes it") from None

    @classmethod
    def _from_values(cls, values: dict[str, Any], folder: Path) -> Self:
        found = int(values["format"])
        if found > FORMAT:
            raise ModelFolderError(
                f"{folder}: format {found} is newer than format {FORMAT}, the newest this Translume reads; "
                "upgrade Translume"
            )
        files = {}
        for name, entry in values["files"].items():
            path = PurePosixPath(entry["file"])
            if path.is_absolute() or ".." in path.parts:
                raise ModelFolderError(f"{folder / NAME}: '{path}' lies outside the folder; refused")
            files[name] = Entry(file=str(path), size=int(entry["size"]), sha256=str(entry["sha256"]))
        return cls(files=files, format=found)

    def to_json(self) -> str:
        """JSON text that `read` understands."""
        files = {
            name: {"file": entry.file, "size": entry.size, "sha256": entry.sha256}
            for name, entry in sorted(self.files.items())
        }
        return json.dumps({"format": self.format, "files": files}, indent=1, ensure_ascii=False) + "\n"
