"""The tokenizers of a MarianMT folder: vocab.json, source.spm and target.spm, with the ids that its model was given."""

import json
from pathlib import Path
from typing import Any

from translume.config import TokenizerSettings
from translume.errors import DataError, ModelFolderError, SettingsError
from translume.interchange.huggingface_config import ForeignConfig
from translume.interchange.sentencepiece_file import SPACE, read_sentencepiece
from translume.text import SpecialIds, Tokenizer, Vocabulary

VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SOURCE, TARGET = "source.spm", "target.spm"
UNKNOWN = "<unk>"


def read_marian_tokenizers(folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target; one object where both files and both vocabularies are the same.

    Where there is a target_vocab.json, the target has a vocabulary of its own.
    Raises ModelFolderError for a missing file, DataError for a damaged one, SettingsError for what ours cannot do.
    """
    source_path, target_path = folder / SOURCE, folder / TARGET
    separate = (folder / TARGET_VOCABULARY).exists()
    target_vocabulary = folder / (TARGET_VOCABULARY if separate else VOCABULARY)
    for path in (folder / VOCABULARY, target_vocabulary, source_path, target_path):
        if not path.is_file():
            raise ModelFolderError(f"{path}: no such file, wanted one as MarianTokenizer saves it")
    source = _tokenizer(source_path, folder / VOCABULARY, config, config.vocabulary)
    if not separate and source_path.read_bytes() == target_path.read_bytes():
        return source, source
    return source, _tokenizer(target_path, target_vocabulary, config, config.target_vocabulary)


def _tokenizer(path: Path, vocabulary: Path, config: ForeignConfig, size: int) -> Tokenizer:
    pieces = _pieces(vocabulary, size)
    if UNKNOWN not in pieces:
        raise DataError(f"{vocabulary}: lacks {UNKNOWN}, which every vocabulary of MarianTokenizer has")
    specials = SpecialIds(pad=config.pad, bos=config.bos, eos=config.eos, unk=pieces.index(UNKNOWN))
    if specials.eos in (specials.pad, specials.bos, specials.unk):
        raise SettingsError(f"{config.place}: eos_token_id: found {specials.eos}, which means something else too")
    return Tokenizer(
        Vocabulary(
            settings=sentencepiece_settings(size),
            specials=specials,
            pieces=pieces,
            first=0,
            sentences=read_sentencepiece(path),
        )
    )


def sentencepiece_settings(size: int) -> TokenizerSettings:
    """[tokenizer] of a model whose rules of normalisation are SentencePiece's own."""
    return TokenizerSettings(kind="sentencepiece", size=max(size, 8), normalization="none", unknown="token")


def _pieces(path: Path, size: int) -> tuple[str, ...]:
    """Pieces in order of ids, with spaces for SentencePiece's marks."""
    try:
        ids: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if not isinstance(ids, dict) or sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))):
        raise DataError(f"{path}: wanted a JSON object of tokens, each with its id, 0, 1, 2, …")
    if len(ids) != size:
        raise DataError(f"{path}: found {len(ids):,} tokens, wanted {size:,} by config.json")
    pieces = tuple(piece.replace(SPACE, " ") for piece in sorted(ids, key=ids.__getitem__))
    if len(set(pieces)) != len(pieces) or "" in pieces:
        raise DataError(f"{path}: a token is empty, or stands there twice")
    return pieces
