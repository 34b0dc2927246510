"""What a corpus is made of, as one digest: contents of files, tokenizers, cleaning; not paths, not dates."""

import json
import os
from hashlib import blake2b, sha256
from pathlib import Path

from translume.atomic import replace_file
from translume.data.lines import unreadable
from translume.errors import DataError

_BLOCK = 1 << 22


def of_values(values: object) -> str:
    """32 hex digits that depend on plain values."""
    return sha256(json.dumps(values, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:32]


def of_file(path: str, memory: Path) -> str:
    """Hex digest of a file's bytes, all of them.

    `memory` is a JSON file of digests by path, size and time of change, so that a file is read through once and not at
    every start; a damaged or missing memory is only forgotten. Raises DataError if the file cannot be read.
    """
    try:
        state = os.stat(path)
        key = f"{os.path.abspath(path)}:{state.st_size}:{state.st_mtime_ns}:{state.st_ino}"
        known = _recall(memory)
        if key in known:
            return known[key]
        digest = blake2b(digest_size=16)
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise DataError(unreadable(path, error)) from None
    _remember(memory, {**_recall(memory), key: digest.hexdigest()})
    return digest.hexdigest()


def _recall(memory: Path) -> dict[str, str]:
    try:
        values = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in values.items()} if isinstance(values, dict) else {}


def _remember(memory: Path, known: dict[str, str]) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        replace_file(memory, json.dumps(known, indent=1).encode(), synced=False)
    except OSError as error:
        raise DataError(f"{memory.parent}: cannot be written: {error.strerror}") from None
