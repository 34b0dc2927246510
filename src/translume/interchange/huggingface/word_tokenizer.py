"""Tokenizers of FSMT and BlenderBot-small: words by rules, and their merges; read and written."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from translume.checkpoint import Checkpoint
from translume.errors import DataError, SettingsError, expect_file
from translume.interchange.huggingface.config import ForeignConfig, read_json, shown
from translume.interchange.huggingface.t5_tokenizer import UNUSED
from translume.interchange.huggingface.tokenizer import TOKENIZER_CONFIG, VOCABULARY, read_pieces
from translume.interchange.toolkits.checkpoints import read_codes
from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.split_words import SplitWords
from translume.text.vocabulary import BOS, UNK

MERGES = "merges.txt"
SIDES = ("vocab-src.json", "vocab-tgt.json")
"""The files of FSMT's vocabularies."""


def read_fsmt_tokenizers(folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizers of source and target: the rules of Moses for their languages, and common merges.

    Raises ModelFolderError for a missing file, DataError for a damaged one, SettingsError for options that are not
    supported.
    """
    stated = read_json(folder / TOKENIZER_CONFIG)
    languages = stated.get("langs")
    if not isinstance(languages, list) or len(languages) != 2 or not all(isinstance(each, str) for each in languages):
        raise SettingsError(f"{folder / TOKENIZER_CONFIG}: langs: found {shown(languages)}, expected two languages")
    words = SplitWords(joiner="", lowercase=stated.get("do_lower_case") is True, rules="moses")
    sizes = (config.vocabulary, config.target_vocabulary)
    source, target = (
        _tokenizer(folder, file, replace(words, language=language), config, size, UNK)
        for file, language, size in zip(SIDES, languages, sizes, strict=True)
    )
    return source, target


def read_blenderbot_tokenizer(folder: Path, config: ForeignConfig) -> Tokenizer:
    """Read the tokenizer of BlenderBot-small, which ends no source. Raises as `read_fsmt_tokenizers`."""
    return _tokenizer(folder, VOCABULARY, SplitWords(rules="blenderbot"), config, config.vocabulary, "__unk__")


def _tokenizer(folder: Path, file: str, words: SplitWords, config: ForeignConfig, size: int, unknown: str) -> Tokenizer:
    """Return the tokenizer of one side, whose vocabulary is in `file`."""
    for each in (file, MERGES):
        expect_file(folder / each, "one as transformers saves it")
    place, pieces = folder / file, list(read_pieces(folder / file))
    if unknown not in pieces:
        raise DataError(f"{place}: lacks {unknown}, which every vocabulary of {config.architecture} has")
    if len(pieces) > size:
        raise DataError(f"{place}: found {len(pieces):,} tokens, expected at most {size:,} by config.json")
    unused = [id_ for id_, piece in enumerate(pieces) if piece == BOS and id_ != config.bos]
    silent = [*unused, *range(len(pieces), size)]
    pieces += [f"<unused_{id_}>" for id_ in range(len(pieces), size)]
    merges = replace(read_codes(folder / MERGES, words), apart=False)  # the files of FSMT have no line of a version
    ends = words.rules != "blenderbot"
    specials = SpecialIds(pad=config.pad, bos=config.bos, eos=config.eos, unk=pieces.index(unknown), ends_source=ends)
    try:
        return Tokenizer(Vocabulary.from_words(merges, pieces, specials, silent))
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None


def word_tokenizer(checkpoint: Checkpoint) -> Any:
    """Return the tokenizer of transformers for a model that was imported with one of these; None for another model."""
    sides = [each.vocabulary for each in (checkpoint.source_tokenizer, checkpoint.target_tokenizer)]
    words = sides[0].words
    if words is None or words.rules == "spaces":
        return None
    from transformers import BlenderbotSmallTokenizer, FSMTTokenizer

    with TemporaryDirectory() as written:
        folder = Path(written)
        first = "" if words.rules == "moses" else "#version: 0.2\n"
        merges = "".join(f"{left} {right}\n" for left, right in words.merges)
        (folder / MERGES).write_text(first + merges, encoding="utf-8")
        for file, side in zip(SIDES, sides, strict=True):
            ids = {piece: id_ for id_, piece in enumerate(side.pieces) if not UNUSED.fullmatch(piece)}
            (folder / file).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
        source, target, joined = (str(folder / name) for name in (*SIDES, MERGES))
        if words.rules == "blenderbot":
            return BlenderbotSmallTokenizer(source, joined)
        languages = [side.words.language for side in sides if side.words is not None]
        return FSMTTokenizer(languages, source, target, joined, words.lowercase)
