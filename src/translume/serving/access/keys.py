"""API keys. Their file holds names, limits and salted digests, never a key itself."""

import fcntl
import hmac
import json
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from translume.atomic import replace_file
from translume.errors import DataError, SettingsError, nearest

FORMAT: Final = 1
PREFIX: Final = "tlk"
"""Prefix of every key, so that leaked keys can be recognised."""
LONGEST_KEY: Final = 200
LARGEST: Final = 10**12
"""Largest limit, so that computations with it are exact."""
LONGEST_NAME: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key as stored in its file.

    id: the public part of the key.  digest: HMAC-SHA256 of the whole key with `salt`; keys have 256 random
    bits, so a slow hash would add no protection.  made: a date.  Limits that are None are the server's.
    """

    name: str
    id: str
    salt: bytes
    digest: bytes
    made: str
    requests_per_minute: float | None = None
    burst: int | None = None
    characters_per_day: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the key as JSON values."""
        limits = {name: getattr(self, name) for name in LIMITS if getattr(self, name) is not None}
        hidden = {"salt": self.salt.hex(), "digest": self.digest.hex()}
        return {"name": self.name, "id": self.id, **hidden, "made": self.made, **limits}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a key from JSON values; ValueError, KeyError or TypeError if they are invalid."""
        texts = {name: values[name] for name in ("name", "id", "made")}
        if not all(isinstance(text, str) and text for text in texts.values()):
            raise TypeError("a name, an id or a date is no text")
        if unknown := values.keys() - {"name", "id", "made", "salt", "digest", *LIMITS}:
            raise ValueError(f"unknown: {unknown}")
        limits = {name: values[name] for name in LIMITS if name in values}
        for name, value in limits.items():
            if isinstance(value, bool) or not isinstance(value, LIMITS[name]):
                raise TypeError(f"{name} is no number")
            endless = name == "characters_per_day" and value == 0
            if not (0 < value <= LARGEST or endless):
                raise ValueError(f"{name} is too small or large")
        return cls(**texts, salt=bytes.fromhex(values["salt"]), digest=bytes.fromhex(values["digest"]), **limits)


LIMITS: Final[dict[str, Any]] = {"requests_per_minute": (int, float), "burst": int, "characters_per_day": int}
"""Limits that a key can have, as in `[keys]`, and their types."""


class Keys:
    """The keys of a file."""

    def __init__(self, keys: tuple[Key, ...] = ()) -> None:
        self.all = keys
        self._by_id = {key.id: key for key in keys}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of keys; DataError if it cannot be read or is damaged."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            add = f"translume keys add {shlex.quote(str(path))} NAME"
            raise DataError(f"{path}: no such file of keys; `{add}` creates one") from None
        except OSError as error:
            raise DataError(f"{path}: keys cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise DataError(f"{path}: damaged: not UTF-8 text") from None
        try:
            values = json.loads(text)
            found = int(values["format"])
            keys = tuple(map(Key.from_dict, values["keys"])) if found <= FORMAT else ()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"{path}: damaged: not keys as `translume keys add` writes them") from None
        if found > FORMAT:
            raise DataError(f"{path}: format {found} is newer than format {FORMAT}, the newest this Translume reads")
        if len({key.id for key in keys}) < len(keys) or len({key.name for key in keys}) < len(keys):
            raise DataError(f"{path}: damaged: two keys have the same name or id")
        return cls(keys)

    def find(self, secret: str) -> Key | None:
        """Return the key of a secret, in constant time; None if it is unknown."""
        parts = secret.split("_", 2)
        if len(parts) < 3 or len(secret) > LONGEST_KEY or not secret.isascii():
            return None
        key = self._by_id.get(parts[1], _NONE)
        same = hmac.compare_digest(_digest(key.salt, secret), key.digest)
        return key if same and key is not _NONE else None

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps({"format": FORMAT, "keys": [key.to_dict() for key in self.all]}, indent=1) + "\n"


def add_key(path: Path, name: str, limits: Mapping[str, float]) -> str:
    """Return a new key, and store its digest in the file, which is created if it is missing. The key is stored nowhere.

    limits: by the names of `LIMITS`. Raises DataError and leaves the file unchanged if that fails.
    """
    if not name.isprintable() or not name.strip() or len(name) > LONGEST_NAME:
        raise SettingsError(f"NAME: found {len(name)} characters, expected 1 to {LONGEST_NAME} printable ones")
    with _changing(path):
        keys = Keys.read(path) if path.exists() else Keys()
        if name in [key.name for key in keys.all]:
            raise SettingsError(f"{path}: has a key named {name!r} already; `translume keys remove` removes it")
        ids = {key.id for key in keys.all}
        number = next(each for each in iter(lambda: secrets.token_hex(4), None) if each not in ids)
        secret = f"{PREFIX}_{number}_{secrets.token_urlsafe(32)}"
        salt = secrets.token_bytes(16)
        made = time.strftime("%Y-%m-%d", time.gmtime())
        key = Key.from_dict(
            {
                "name": name,
                "id": number,
                "salt": salt.hex(),
                "digest": _digest(salt, secret).hex(),
                "made": made,
                **limits,
            }
        )
        _write(path, Keys((*keys.all, key)).to_json())
    return secret


def remove_key(path: Path, name: str) -> None:
    """Remove the key of a name (or id) from the file; SettingsError if there is none."""
    with _changing(path):
        keys = Keys.read(path)
        kept = tuple(key for key in keys.all if name not in (key.name, key.id))
        if len(kept) == len(keys.all):
            raise SettingsError(f"{path}: {name!r}: no such key{nearest(name, [key.name for key in keys.all])}")
        _write(path, Keys(kept).to_json())


def _digest(salt: bytes, secret: str) -> bytes:
    return hmac.digest(salt, secret.encode(), "sha256")


_NONE: Final = Key(name="", id="", salt=bytes(16), digest=bytes(32), made="")
"""Compared with unknown keys, so that they take as long as known ones."""


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Lock the folder against other processes that change key files."""
    try:
        number = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"{path.parent}: cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _write(path: Path, text: str) -> None:
    """Write the file atomically, readable by its owner only, or with its previous permissions."""
    try:
        before = path.stat() if path.exists() else None
        replace_file(
            path,
            text.encode(),
            permissions=0o600 if before is None else before.st_mode & 0o777,
            owner=None if before is None else (before.st_uid, before.st_gid),
        )
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None
