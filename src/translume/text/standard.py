"""A tokenizer.json of the `tokenizers` library with the ids of a tokenizer, for programs without Translume."""

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from translume.config import TokenizerSettings
from translume.errors import SettingsError
from translume.text.imported import (
    CODE,
    FOREIGN,
    HOSTILE,
    SPACE,
    UNKNOWN_PIECE,
    LibraryIds,
    library_spaces,
    read_library,
)
from translume.text.segmentation import UNSPACED, ranges, segment_pattern
from translume.text.specials import BYTES
from translume.text.tokenizer import Tokenizer
from translume.text.vocabulary import MODELS, Vocabulary

SETTINGS = "_settings.json"
"""End of the name of a tokenizer's own file, beside the library's."""
TEXTS, LONGEST = 200, 23
"""Number of random texts on which both tokenizers must agree, and their maximum length in tokens."""
_EMPTY = {"version": "1.0", "added_tokens": []}
SPACES = "".join(f"\\x{{{code:x}}}" for code in range(0x3001) if chr(code).isspace())
"""White space as defined by Python's `str.split`, which is more than `\\s` of other regular expressions."""
_FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"
"""The Σ that `str.lower` makes a ς; the library's lower case looks at single characters."""


@lru_cache(maxsize=4)
def standard_json(tokenizer: Tokenizer) -> str:
    """Return a tokenizer.json of the `tokenizers` library: the same ids with EOS at the end, and the same texts.

    Special tokens in a text are text, as here. BPE-dropout and the tags of languages are no part of it, except the only
    tag of a tokenizer, which begins every text (BART). A file of the library that does not work like this stays as it
    came, but for its tags and EOS. Raises SettingsError, naming the reason, for another tokenizer that the library
    cannot express.
    """
    try:
        return _checked_json(tokenizer)
    except SettingsError:
        if tokenizer.vocabulary.library is None:
            raise
        library = read_library(tokenizer.vocabulary.library.document)
        library.post_processor = _around(tokenizer, tokenizer.pieces())
        return library.to_str(pretty=True) + "\n"


def _checked_json(tokenizer: Tokenizer) -> str:
    kind, ids = tokenizer.settings.kind, tokenizer.specials
    if tokenizer.vocabulary.words is not None:
        raise SettingsError("tokenizer.kind: found 'split', whose pieces end words with a space, unlike the library's")
    if tokenizer.vocabulary.sentences is not None:
        document, pieces = _sentence_document(tokenizer.vocabulary)
        library = LibraryIds(document, len(pieces)).without_specials()
        rules = [] if library.normalizer is None else [library.normalizer]
        library.normalizer = normalizers.Sequence([*rules, *library_spaces()])
        ends = decoders.Replace(Regex(rf"\A[{SPACES}]+|[{SPACES}]+\z"), "")
        last = [
            decoders.Replace(FOREIGN, ""),
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            ends,
        ]
    elif tokenizer.vocabulary.library is not None:
        library = tokenizer.vocabulary.library.without_specials()
        pieces, last = list(tokenizer.vocabulary.pieces), tokenizer.vocabulary.library.last_steps()
    else:
        document = json.loads(tokenizer.to_json())
        library = LibraryTokenizer.from_str(json.dumps({**_EMPTY, "model": _model(tokenizer, document)}))
        library.normalizer = normalizers.Sequence(normalisation(tokenizer.settings))
        cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in _splits(tokenizer, document)]
        if cuts:
            library.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        pieces, last = tokenizer.pieces(), [decoders.ByteFallback(), decoders.Fuse()]
        if kind not in ("character", "byte"):
            last.append(decoders.Strip(" ", 1, 0))
    library.post_processor = _around(tokenizer, pieces)
    silent = (ids.marks | tokenizer.vocabulary.dropped) - {ids.unk}
    steps = [_spelt([pieces[id_] for id_ in sorted(silent)], "")]
    if ids.unk is not None:
        steps.append(_spelt([pieces[ids.unk]], tokenizer.spellings[ids.unk].decode()))
    library.decoder = decoders.Sequence([*steps, *last])
    compare_with_library(tokenizer, library, pieces)
    return library.to_str(pretty=True) + "\n"


def _around(tokenizer: Tokenizer, pieces: Sequence[str]) -> processors.PostProcessor:
    """Return the step that adds the only tag, and what ends a source.  pieces: their names in the library, by id."""
    added = only_tag(tokenizer), tokenizer.specials.source_end
    begin, end = ([(pieces[id_], id_) for id_ in ids] for ids in added)
    before, after = ([piece for piece, _ in some] for some in (begin, end))
    single = [*before, "$A", *after]
    return processors.TemplateProcessing(
        single=single, pair=[*single, "$B", *after], special_tokens=list({*begin, *end})
    )


def only_tag(tokenizer: Tokenizer) -> list[int]:
    """Return the tag that begins every text, if there is one language only; otherwise nothing."""
    return list(tokenizer.languages.values()) if len(tokenizer.languages) == 1 else []


def _spelt(pieces: Sequence[str], spelling: str) -> decoders.Decoder:
    """Return the step that replaces these whole pieces."""
    return decoders.Replace(Regex(rf"\A(?:{'|'.join(map(re.escape, pieces))})\z"), spelling)


def tokenizer_files(name: str, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the files of a tokenizer: NAME_settings.json, which Translume reads, and NAME.json for other programs.

    The second is missing for a tokenizer that the `tokenizers` library cannot express.
    """
    files = {f"{name}{SETTINGS}": tokenizer.to_json().encode()}
    with suppress(SettingsError):
        files[f"{name}.json"] = standard_json(tokenizer).encode()
    return files


def write_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Write the files of both tokenizers into the folder of an export: "tokenizer…" if they are the same object."""
    sides = {"tokenizer": source} if source is target else {"source": source, "target": target}
    for side, tokenizer in sides.items():
        for name, content in tokenizer_files(side, tokenizer).items():
            (folder / name).write_bytes(content)


def normalisation(settings: TokenizerSettings) -> list[normalizers.Normalizer]:
    """Return the library's steps that normalise a text and mark its first word."""
    forms = {"nfc": normalizers.NFC, "nfd": normalizers.NFD, "nfkc": normalizers.NFKC}
    form = [forms[settings.normalization]()] if settings.normalization != "none" else []
    steps: list[normalizers.Normalizer] = [*form]
    if settings.lowercase:
        lower = [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
        steps += [*lower, *form, *lower] if form else lower
    if settings.whitespace == "collapse":
        steps += [normalizers.Replace(Regex(f"[{SPACES}]+"), " "), normalizers.Strip()]
    if settings.kind == "word":
        steps.append(normalizers.Replace(Regex(r"\A(?=[\s\S])"), " "))
    elif settings.kind not in ("character", "byte"):
        unspaced = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in UNSPACED)
        steps.append(normalizers.Replace(Regex(rf"\A(?=[^{unspaced}])"), " "))  # the space before the first word
    return steps


def segments(kind: str) -> str:
    """Return the regular expression of segments for the library's engine."""
    return library_regex(segment_pattern(kind))


def library_regex(pattern: str) -> str:
    """Translate a regular expression of Python for the library's engine."""
    return re.sub(r"\\U([0-9a-f]{8})", lambda match: f"\\x{{{int(match.group(1), 16):x}}}", pattern)


def _model(tokenizer: Tokenizer, document: dict[str, Any]) -> dict[str, Any]:
    """Return the library's model as JSON."""
    kind, as_bytes = tokenizer.settings.kind, tokenizer.specials.unk is None
    model: dict[str, Any] = document.get("tokenizer", {}).get("model", {})
    if kind == "wordpiece" and as_bytes:
        raise SettingsError("tokenizer.unknown: the library's WordPiece has no bytes for unknown characters")
    if "pieces" in document:  # imported bytes
        vocabulary = {piece: id_ for id_, piece in enumerate(document["pieces"])}
        return {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True}
    if kind == "unigram" and as_bytes:
        return {**model, "unk_id": 0}  # the library needs one, and replaces it by bytes
    if kind in MODELS or (kind == "word" and not as_bytes):
        return model
    if kind == "word" and any(len(piece) == 1 for piece in model["vocab"]):
        raise SettingsError("tokenizer.unknown: the library cuts unknown words into known characters, not into bytes")
    return {
        "type": "BPE",
        "vocab": model["vocab"],
        "merges": [],
        "unk_token": None if as_bytes else model["unk_token"],
        "byte_fallback": as_bytes,
        "ignore_merges": kind == "word",
    }


def _splits(tokenizer: Tokenizer, document: dict[str, Any]) -> list[str]:
    """Return the regular expressions that cut a normalised text, one after the other."""
    kind = tokenizer.settings.kind
    if kind in ("character", "byte"):
        return []
    if kind in ("bpe", "word"):
        return [segments(kind)]
    vocabulary = document["tokenizer"]["model"]["vocab"]
    pieces = [piece for piece, _ in vocabulary] if kind == "unigram" else vocabulary
    known = sorted(ord(piece) for piece in pieces if len(piece) == 1)
    # Unknown characters on their own: the library joins adjacent ones, or makes a whole word unknown.
    return [segments(kind), library_regex(f"[^{ranges(known)}]") if known else r"[\s\S]"]


def _sentence_document(vocabulary: Vocabulary) -> tuple[dict[str, Any], list[str]]:
    """Return the library's tokenizer.json of a SentencePiece model with the ids of the vocabulary, and its pieces.

    Raises SettingsError if the library cannot have these pieces.
    """
    sentences, ids = vocabulary.sentences, vocabulary.specials
    if sentences is None or sentences.library is None:
        raise SettingsError("tokenizer: the library segments some texts differently from SentencePiece")
    document, model = dict(sentences.library), dict(sentences.library["model"])
    known = dict(model["vocab"])
    del known[UNKNOWN_PIECE]
    names = [piece.replace(" ", SPACE) for piece in vocabulary.pieces]
    if missing := known.keys() - set(names):
        raise SettingsError(
            f"tokenizer: the library needs an id for each piece of SentencePiece, {min(missing)!r} has none"
        )
    codes = {id_ for id_, name in enumerate(names) if sentences.codes and CODE.fullmatch(name)}
    assert ids.unk is not None  # checked where the vocabulary is read
    special = {ids.unk} | ids.marks | vocabulary.dropped
    if sentences.fallback:
        special |= {names.index(byte) for byte in BYTES}
    names = [name if name in known or id_ in special | codes else FOREIGN + name for id_, name in enumerate(names)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document["added_tokens"] = [
        {"id": id_, "content": names[id_], "special": id_ in special, **flags} for id_ in sorted(special | codes)
    ]
    if model["type"] == "Unigram":
        model |= {"vocab": [[name, known.get(name, 0.0)] for name in names], "unk_id": ids.unk}
    else:
        numbered = {name: id_ for id_, name in enumerate(names)}
        model |= {"vocab": numbered, "unk_token": names[ids.unk]}
    return document | {"model": model | {"byte_fallback": sentences.fallback}}, names


def compare_with_library(
    tokenizer: Tokenizer, library: LibraryTokenizer, pieces: Sequence[str], *, skip_special: bool = False
) -> None:
    """Raise SettingsError if the library gives other ids for a text, or other texts for ids.

    Characters that only the other side's SentencePiece model knows are not compared: they are unknown in the library.
    pieces: their names in the library, by id.  skip_special: whether its decoder is told to drop special tokens.
    """
    specials, draw = tokenizer.specials, random.Random(1)
    codes = [piece for piece in pieces if CODE.fullmatch(piece)]
    foreign = {id_ for id_, piece in enumerate(pieces) if piece[0] == FOREIGN}
    drawn = [id_ for id_, piece in enumerate(pieces) if piece not in codes and id_ not in foreign]
    rows = [draw.choices(drawn, k=draw.randrange(LONGEST)) for _ in range(TEXTS)]
    for text in (*HOSTILE, *(f"{code} a" for code in codes), *map(tokenizer.decode, rows)):
        ours, theirs = [*only_tag(tokenizer), *tokenizer.encode(text), *specials.source_end], library.encode(text).ids
        if not foreign.isdisjoint(ours):
            continue
        if ours != theirs:
            raise SettingsError(f"tokenizer: {text!r} has ids {theirs} in the library, expected {ours}")
        decoded, expected = library.decode(theirs, skip_special_tokens=skip_special), tokenizer.decode(ours)
        if decoded != expected and not (skip_special and specials.unk in ours):
            raise SettingsError(f"tokenizer: the library decodes {decoded!r}, expected {expected!r}")
