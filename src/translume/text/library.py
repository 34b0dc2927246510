"""Read a tokenizer.json of the `tokenizers` library, with the special tokens that the files beside it name."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from translume.errors import DataError
from translume.json_values import read_json
from translume.text.imported import LibraryIds
from translume.text.specials import SpecialIds
from translume.text.vocabulary import Vocabulary

LANGUAGE = re.compile("<2([^<>]+)>|__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2})")
"""Special tokens that are tags of languages, as MADLAD-400, M2M-100, NLLB-200 and mBART write them."""
_GENERATION, _CONFIGS = "generation_config.json", ("special_tokens_map.json", "tokenizer_config.json")
_ROLES = {
    "pad": ("pad_token", "<pad>", "[PAD]", "<|pad|>"),
    "bos": ("decoder_start_token", "bos_token", "cls_token", "<s>", "<bos>", "[CLS]", "<|startoftext|>"),
    "eos": ("eos_token", "sep_token", "</s>", "<eos>", "[SEP]", "<|endoftext|>"),
    "unk": ("unk_token", "<unk>", "[UNK]"),
}
"""For each special token the names in files beside tokenizer.json, then the usual pieces, the first of which counts."""


def read_library_vocabulary(path: Path, document: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary of the tokenizer.json at `path`, which holds `document`.

    Its ids are those of the file, and no token is added: without BOS, PAD begins a target, as in T5.
    Raises DataError for a damaged file, or if no token ends a text.
    """
    try:
        added = {token["content"]: token["id"] for token in document["added_tokens"]}
        pieces = document["model"]["vocab"]
        if isinstance(pieces, list):
            pieces = {piece: id_ for id_, (piece, _) in enumerate(pieces)}
        ids: dict[str, int] = {**pieces, **added}
        library = LibraryIds(document, max(ids.values(), default=0) + 1)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: damaged, or not a tokenizer of the library `tokenizers`: {error}") from None
    named = _named(path, ids)
    by_role = {role: next((named[name] for name in names if name in named), None) for role, names in _ROLES.items()}
    if by_role["unk"] is None:
        by_role["unk"] = unknown_id(document["model"], ids)
    eos = by_role["eos"]
    if eos is None:
        raise DataError(f"{path}: no token ends a text, expected eos_token in a {_CONFIGS[-1]} beside it")
    pad = eos if by_role["pad"] is None else by_role["pad"]
    specials = SpecialIds(pad=pad, bos=pad if by_role["bos"] is None else by_role["bos"], eos=eos, unk=by_role["unk"])
    special = {token["content"] for token in document["added_tokens"] if token["special"]}
    tags = {id_: match for piece, id_ in added.items() if piece in special and (match := LANGUAGE.fullmatch(piece))}
    languages = {match[match.lastindex or 0]: id_ for id_, match in sorted(tags.items())}
    return Vocabulary.from_library(specials, library, languages)


def unknown_id(model: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """Return the id that the model in a tokenizer.json gives to unknown text; None if there is none, as with bytes."""
    named = ids.get(model.get("unk_token") or "")
    id_ = model.get("unk_id") if named is None else named
    return id_ if isinstance(id_, int) else None


def _named(path: Path, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of pieces, and of the special tokens that the files beside tokenizer.json name.

    Raises DataError for a damaged file, and for a token that the tokenizer does not have.
    """
    named = dict(ids)
    for file in _CONFIGS:
        for name, value in _beside(path.with_name(file)).items():
            token = value.get("content") if isinstance(value, dict) else value
            if not name.endswith("_token") or not isinstance(token, str):
                continue
            if token not in ids:
                raise DataError(f"{path.with_name(file)}: {name}: found {token!r}, expected a token of {path.name}")
            named[name] = ids[token]
    known = {*ids.values()}
    for name, value in _beside(path.with_name(_GENERATION)).items():
        if name.endswith("_token_id") and isinstance(value, int) and value in known:
            named[name.removesuffix("_id")] = value
    return named


def _beside(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = read_json(path) if path.is_file() else {}
    return content
