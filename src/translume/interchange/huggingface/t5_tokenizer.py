"""Tokenizers of T5 and its relatives: SentencePiece with sentinels, and the bytes of ByT5; read and written."""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from translume.checkpoint import Checkpoint
from translume.errors import DataError, ModelFolderError, SettingsError
from translume.interchange.huggingface.config import ForeignConfig, read_json
from translume.interchange.huggingface.tokenizer import (
    NAME,
    ambiguous_eos,
    is_generic,
    read_tokenizer,
    refuse_added_tokens,
    sentencepiece_tokenizer,
)
from translume.interchange.sentencepiece import read_sentencepiece
from translume.text import SentencePieces, SpecialIds, Tokenizer, Vocabulary
from translume.text.imported import SPACE, build_proto, scores_of
from translume.text.specials import BYTES
from translume.text.vocabulary import UNK

FILE = "spiece.model"
BYTE_CLASS = "ByT5Tokenizer"
SENTINEL = re.compile(f"{SPACE}?<extra_id_([0-9]+)>")
"""A span that T5 learned to fill in. mT5 has them in its SentencePiece model, with a space."""
LANGUAGE = re.compile("<2([^<>]+)>")
"""The tag of the target's language at the beginning of a source of MADLAD-400."""
UNUSED = re.compile("<unused_[0-9]+>")
"""Our name for ids of a model that its tokenizer lacks; they come last."""
RESERVED = re.compile(f"{SENTINEL.pattern}|{LANGUAGE.pattern}")
SHAPE = {
    "model": ("Unigram",), "pre_tokenizer": ("WhitespaceSplit+Metaspace", "Metaspace"),
    "normalizer": ("none", "Precompiled", "Precompiled+Replace"),
}  # fmt: skip
"""Parts of a tokenizer.json that transformers made from a SentencePiece model, whose ids texts get."""
SENTINELS = 100
"""Number of sentinels that transformers adds unless tokenizer_config.json says otherwise."""


def read_t5_tokenizer(folder: Path, config: ForeignConfig) -> Tokenizer:
    """Read the tokenizer of a folder: ByT5's bytes, spiece.model or tokenizer.json.

    Sentinels and ids beyond the tokenizer's are reserved: no text is encoded to them.
    Raises ModelFolderError for a missing file, DataError for a damaged one, SettingsError for unsupported options.
    """
    path = folder / "tokenizer_config.json"
    stated = read_json(path) if path.exists() else {}
    if str(stated.get("tokenizer_class")).startswith(BYTE_CLASS.removesuffix("Tokenizer")):
        tokenizer = _byte_tokenizer(config)
        refuse_added_tokens(folder, tokenizer.vocabulary.pieces)
        return tokenizer
    if (folder / FILE).is_file():
        place = folder / FILE
        sentences = read_sentencepiece(place, reserved=RESERVED, codes=False)
        pieces = [each.piece for each in sentences.proto.pieces]
        if not any(map(SENTINEL.fullmatch, pieces)):
            count = stated.get("extra_ids", SENTINELS)
            pieces += [f"<extra_id_{number}>" for number in reversed(range(count))]
    elif (folder / NAME).is_file():
        place = folder / NAME
        document = read_json(place)
        if is_generic(folder) or any(_part(document, name) not in parts for name, parts in SHAPE.items()):
            return read_tokenizer(folder, config, LANGUAGE.pattern, SENTINEL.pattern)[0]
        sentences, pieces = _from_json(place, document)
    else:
        raise ModelFolderError(f"{folder}: no tokenizer, expected {FILE} or {NAME} as T5Tokenizer saves them")
    usual = [f"<extra_id_{number}>" for number in range(config.vocabulary)]
    refuse_added_tokens(folder, {*usual, *filter(RESERVED.fullmatch, pieces), *scores_of(sentences.proto), *BYTES})
    if len(pieces) > config.vocabulary:
        raise DataError(f"{place}: found {len(pieces):,} tokens, expected at most {config.vocabulary:,} by config.json")
    pieces += [f"<unused_{number}>" for number in range(len(pieces), config.vocabulary)]
    return _sentence_tokenizer(place, sentences, pieces, config)


def _sentence_tokenizer(
    place: Path, sentences: SentencePieces, pieces: Sequence[str], config: ForeignConfig
) -> Tokenizer:
    if config.eos == config.pad:
        raise ambiguous_eos(config)
    tags = ((LANGUAGE.fullmatch(piece), id_) for id_, piece in enumerate(pieces))
    used = {*scores_of(sentences.proto), *(BYTES if sentences.fallback else ())}
    return sentencepiece_tokenizer(
        sentences,
        place,
        pieces,
        config,
        languages={match.group(1): id_ for match, id_ in tags if match},
        silent=[
            id_
            for id_, piece in enumerate(pieces)
            if piece not in used and piece != UNK and id_ not in {config.pad, config.bos, config.eos}
        ],
    )


def _part(document: Mapping[str, Any], name: str) -> str:
    """Return the type of a part of a tokenizer.json, or the types of its steps with "+" between them."""
    part = document.get(name) or {}
    steps = part.get("pretokenizers") or part.get("normalizers") or [part]
    return "+".join(str(step.get("type", "none")) for step in steps)


def _from_json(place: Path, document: Mapping[str, Any]) -> tuple[SentencePieces, list[str]]:
    """Return the SentencePiece model and all pieces of a tokenizer.json that transformers made from one."""
    model, normalizer = document["model"], document.get("normalizer") or {}
    try:
        scored = [(str(piece), float(score)) for piece, score in model["vocab"]]
        added = {int(each["id"]): str(each["content"]) for each in document.get("added_tokens") or ()}
        steps = normalizer.get("normalizers") or [normalizer]
        charsmap = base64.b64decode("".join(step.get("precompiled_charsmap") or "" for step in steps))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"{place}: damaged: {error}") from None
    pieces = [piece for piece, _ in scored]
    for id_ in range(len(pieces), max((*added, -1)) + 1):
        pieces.append(added.get(id_, f"<unused_{id_}>"))
    fallback = bool(model.get("byte_fallback")) and set(BYTES) <= set(pieces)
    special = {model.get("unk_id"), *added, *(id_ for id_, piece in enumerate(pieces) if fallback and piece in BYTES)}
    scores = {
        piece: score
        for id_, (piece, score) in enumerate(scored)
        if id_ not in special and not RESERVED.fullmatch(piece)
    }
    try:
        proto = build_proto(scores, charsmap, fallback=fallback)
        return SentencePieces.from_proto(proto, codes=False), pieces
    except (ValueError, RuntimeError, OSError) as error:
        raise DataError(f"{place}: damaged: {error}") from None


def _byte_tokenizer(config: ForeignConfig) -> Tokenizer:
    """Return ByT5's tokenizer: three special tokens, the bytes, and reserved ids."""
    names = ["<pad>", "</s>", UNK, *BYTES]
    if config.vocabulary < len(names):
        raise SettingsError(
            f"{config.place}: vocab_size: found {config.vocabulary}, expected at least {len(names)} for {BYTE_CLASS}"
        )
    pieces = (*names, *(f"<extra_id_{number}>" for number in range(config.vocabulary - len(names))))
    started = pieces[config.bos] in BYTES
    specials = SpecialIds(pad=config.pad, bos=config.bos, eos=config.eos, unk=None, start_is_text=started)
    used = {specials.pad, specials.bos, specials.eos, *range(3, 3 + len(BYTES))}
    return Tokenizer(Vocabulary.from_bytes(pieces, specials, set(range(len(pieces))) - used))


def t5_tokenizer(checkpoint: Checkpoint) -> Any:
    """Return the tokenizer of transformers for a model with an imported one; None for one that we learned."""
    from transformers import ByT5Tokenizer, T5Tokenizer

    tokenizer = checkpoint.source_tokenizer
    vocabulary, longest = tokenizer.vocabulary, checkpoint.config.model.max_positions
    if tokenizer.settings.kind == "byte" and vocabulary.pieces[3] == BYTES[0]:
        extra = len(vocabulary.pieces) - 3 - len(BYTES)
        return ByT5Tokenizer(extra_ids=extra, model_max_length=longest)
    if vocabulary.sentences is None:
        return None
    if vocabulary.sentences.fallback:
        raise SettingsError("tokenizer: found byte fallback, which T5Tokenizer of transformers lacks")
    pieces = [piece.replace(" ", SPACE) for piece in vocabulary.pieces if not UNUSED.fullmatch(piece)]
    proto, specials = vocabulary.sentences.proto, tokenizer.specials
    scores = scores_of(proto)
    sentinels = [piece for piece in pieces if SENTINEL.fullmatch(piece)]
    assert specials.unk is not None
    return T5Tokenizer(
        vocab=[(piece, scores.get(piece, 0.0)) for piece in pieces],
        eos_token=pieces[specials.eos],
        unk_token=pieces[specials.unk],
        pad_token=pieces[specials.pad],
        _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap or None,
        extra_ids=len(sentinels),
        additional_special_tokens=[*sentinels, *(pieces[id_] for id_ in vocabulary.languages.values())],
        model_max_length=longest,
    )
