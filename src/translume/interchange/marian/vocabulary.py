"""Vocabularies of Marian: SentencePiece models (.spm), or lists of pieces (.yml) beside them."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from translume.errors import DataError, SettingsError, refused
from translume.interchange.sentencepiece import read_sentencepiece
from translume.text import SentencePieces, SpecialIds, Tokenizer, Vocabulary

END, UNKNOWN = "</s>", "<unk>"
BEGIN = "<pad>"
"""Our BOS and padding, the last id: Marian has neither."""
LISTS = (".yml", ".yaml")


def read_tokenizer(path: Path, sentences: Path | None = None) -> Tokenizer:
    """Return the tokenizer of a vocabulary file.

    sentences: the SentencePiece model that splits text for a list of pieces; a .spm file is its own.
    Raises DataError for a damaged file, SettingsError for one that we cannot express.
    """
    if path.suffix in LISTS:
        if sentences is None:
            raise SettingsError(
                f"{path}: found a list of pieces, expected the SentencePiece model that splits its text beside it, "
                "as source.spm or target.spm"
            )
        return _tokenizer(path, _listed(path), read_sentencepiece(sentences))
    split = read_sentencepiece(path)
    return _tokenizer(path, [each.piece for each in split.proto.pieces], split)


def _tokenizer(path: Path, pieces: Sequence[str], split: SentencePieces) -> Tokenizer:
    for name in (END, UNKNOWN):
        if name not in pieces:
            raise DataError(f"{path}: lacks {name}, which every vocabulary of Marian has")
    if BEGIN in pieces:
        raise SettingsError(f"{path}: has the piece {BEGIN}, which is the name of our BOS")
    begin = len(pieces)
    specials = SpecialIds(pad=begin, bos=begin, eos=pieces.index(END), unk=pieces.index(UNKNOWN))
    try:
        return Tokenizer(Vocabulary.from_sentencepiece(split, [*pieces, BEGIN], specials))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _listed(path: Path) -> tuple[str, ...]:
    """Return the pieces of a YAML mapping from pieces to ids 0, 1, 2, …, in order of ids."""
    try:
        ids = {str(piece): int(str(number)) for piece, number in read_yaml(path, plain=True).items()}
    except ValueError:
        ids = {}
    if not ids or sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"{path}: expected a list of pieces, each with its id, 0, 1, 2, …")
    return tuple(sorted(ids, key=ids.__getitem__))


def read_yaml(path: Path, *, plain: bool = False) -> dict[object, object]:
    """Return the mapping in a YAML file. plain: keys and values stay text, so that a piece `no` is not False.

    Raises DataError for another file.
    """
    try:
        with refused(path, "cannot be read"):
            return parse_yaml(path.read_text(encoding="utf-8"), str(path), plain=plain)
    except UnicodeDecodeError:
        raise DataError(f"{path}: not YAML: not UTF-8 text") from None


def parse_yaml(
    text: str, place: str, *, plain: bool = False, loader: type[yaml.SafeLoader] = yaml.SafeLoader
) -> dict[object, object]:
    """Return the mapping in a YAML text; see `read_yaml`. Errors begin with `place`.  loader: reads values."""
    try:
        values = yaml.load(text, Loader=yaml.BaseLoader if plain else loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{place}: not YAML: {reason}") from None
    if not isinstance(values, dict):
        raise DataError(f"{place}: found {type(values).__name__}, expected names and values in YAML")
    return values
