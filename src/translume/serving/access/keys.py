"""API keys. Their file holds names, limits and salted digests, never a key itself."""

import fcntl
import hmac
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field

from translume.atomic import replace_file
from translume.checksums import DigestError, sealed, unsealed
from translume.errors import DataError, SettingsError, nearest, refused
from translume.json_values import JsonValue

FORMAT: Final = 1
PREFIX: Final = "tlk"
"""Prefix of every key, so that leaked keys can be recognised."""
LONGEST_KEY: Final = 200
LARGEST: Final = 10**12
"""Largest limit, so that computations with it are exact."""
LONGEST_NAME: Final = 60

Name = Annotated[str, Field(min_length=1)]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(JsonValue):
    """A key as stored in its file.

    id: the public part of the key.  digest: HMAC-SHA256 of the whole key with `salt`; keys have 256 random
    bits, so a slow hash would add no protection.  made: a date.  Limits that are None are the server's.
    """

    name: Name
    id: Name
    salt: Hex
    digest: Hex
    made: Name
    requests_per_minute: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    characters_per_day: Annotated[int, Field(ge=0, le=LARGEST)] | None = None


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
            raise DataError(f"{path}: damaged: not UTF-8 text; restore it from a copy") from None
        try:
            values, _ = unsealed(text, ("format", "keys"))
            version = int(values["format"])
            keys = tuple(Key.from_dict(key) for key in values["keys"]) if version <= FORMAT else ()
        except DigestError as error:
            what = f'damaged or changed: {error}; restore it from a copy, or delete "sha256" to keep a change'
            raise DataError(f"{path}: {what}") from None
        except (ArithmeticError, AttributeError, DataError, KeyError, RecursionError, TypeError, ValueError):
            what = "not keys as `translume keys add` writes them; restore it from a copy"
            raise DataError(f"{path}: damaged: {what}") from None
        if version > FORMAT:
            raise DataError(f"{path}: format {version} is newer than format {FORMAT}, the newest this Translume reads")
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


def add_key(path: Path, name: str, limits: Mapping[str, int]) -> str:
    """Return a new key, and store its digest in the file, which is created if it is missing. The key is stored nowhere.

    limits: by the names of the fields of `Key`. Raises DataError and leaves the file unchanged if that fails.
    """
    if not name.isprintable() or not name.strip() or len(name) > LONGEST_NAME:
        raise SettingsError(f"NAME: found {len(name)} characters, expected 1 to {LONGEST_NAME} printable ones")
    with _changing(path):
        keys = Keys.read(path).all if path.exists() else ()
        if name in [key.name for key in keys]:
            raise SettingsError(f"{path}: has a key named {name!r} already; `translume keys remove` removes it")
        ids = {key.id for key in keys}
        number = next(each for each in iter(lambda: secrets.token_hex(4), None) if each not in ids)
        secret = f"{PREFIX}_{number}_{secrets.token_urlsafe(32)}"
        salt = secrets.token_hex(16)
        made = time.strftime("%Y-%m-%d", time.gmtime())
        _write(path, (*keys, Key(name=name, id=number, salt=salt, digest=_digest(salt, secret), made=made, **limits)))
    return secret


def remove_key(path: Path, name: str) -> None:
    """Remove the key of a name (or id) from the file; SettingsError if there is none."""
    with _changing(path):
        keys = Keys.read(path).all
        kept = tuple(key for key in keys if name not in (key.name, key.id))
        if len(kept) == len(keys):
            raise SettingsError(f"{path}: {name!r}: no such key{nearest(name, [key.name for key in keys])}")
        _write(path, kept)


def _digest(salt: str, secret: str) -> str:
    return hmac.digest(bytes.fromhex(salt), secret.encode(), "sha256").hex()


_NONE: Final = Key(name="none", id="none", salt="00" * 16, digest="00" * 32, made="never")
"""Compared with unknown keys, so that they take as long as known ones."""


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Lock the folder against other processes that change key files."""
    with refused(path.parent, "cannot be opened"):
        number = os.open(path.parent, os.O_RDONLY)
    try:
        with refused(path.parent, "cannot be locked"):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _write(path: Path, keys: tuple[Key, ...]) -> None:
    """Write the file atomically, readable by its owner only, or with its previous permissions."""
    try:
        before = path.stat() if path.exists() else None
        replace_file(
            path,
            sealed({"format": FORMAT, "keys": [key.to_dict() for key in keys]}).encode(),
            permissions=0o600 if before is None else before.st_mode & 0o777,
            owner=None if before is None else (before.st_uid, before.st_gid),
        )
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None
