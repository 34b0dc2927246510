"""A tokenizer.json that an export wrote, back into the tokenizer it was made from."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from translume.config import TokenizerSettings
from translume.errors import DataError, SettingsError, TranslumeError
from translume.interchange.library_tokenizer import library_tokenizer
from translume.text import Tokenizer

NAME = "tokenizer.json"
_COMPARED = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
_FORMS: dict[str, Literal["nfc", "nfkc"]] = {"NFC": "nfc", "NFKC": "nfkc"}
_KINDS: dict[str, Literal["bpe", "unigram"]] = {"BPE": "bpe", "Unigram": "unigram"}


def read_library_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a folder's tokenizer.json.

    Raises DataError for a damaged file, SettingsError for one that `translume export` does not write alike: it would
    read some text as other ids.
    """
    path = folder / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    try:
        tokenizer = Tokenizer.from_json(_ours(document), str(path))
    except (KeyError, TypeError, AttributeError, ValidationError):
        raise SettingsError(f"{path}: not a tokenizer that `translume export` wrote") from None
    try:
        written = json.loads(library_tokenizer(tokenizer).to_str())
    except TranslumeError as error:
        raise SettingsError(f"{path}: not a tokenizer that `translume export` wrote: {error}") from None
    for part in _COMPARED:
        if written[part] != document.get(part):
            raise SettingsError(f"{path}: {part}: not as `translume export` writes it, so that texts get other ids")
    return tokenizer


def _ours(document: dict[str, Any]) -> str:
    """The text of our own tokenizer.json that says the same."""
    model = document["model"]
    steps = [step["type"] for step in document["normalizer"]["normalizers"]]
    form = next((_FORMS[step] for step in steps if step in _FORMS), None)
    settings = TokenizerSettings(
        kind=_KINDS[model["type"]],
        size=max(len(model["vocab"]), 8),
        normalization=form or "none",
        lowercase="Lowercase" in steps,
        whitespace="collapse" if "Strip" in steps else "keep",
        unknown="bytes" if model["byte_fallback"] else "token",
    )
    names = ("kind", "size", "normalization", "lowercase", "whitespace", "unknown")
    return json.dumps(
        {
            "format": 1,
            "kind": "translume tokenizer",
            "settings": {name: getattr(settings, name) for name in names},
            "specials": {"pad": 0, "bos": 1, "eos": 2, "unk": None if settings.unknown == "bytes" else 3},
            "tokenizer": {"model": model},
        }
    )
