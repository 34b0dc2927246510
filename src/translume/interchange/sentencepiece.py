"""Read SentencePiece models, .spm files. Unsupported options are refused by name."""

import re
from collections.abc import Collection
from pathlib import Path

from translume.errors import DataError, SettingsError, refused
from translume.text import SentencePieces
from translume.text.imported import CONTROL, NORMAL, USER_DEFINED, package, read_proto, scores_of
from translume.text.specials import BYTES

UNUSED = 5
"""The type of a piece that no text is cut into."""
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


def read_sentencepiece(
    path: Path, reserved: re.Pattern[str] | None = None, *, codes: bool = True, only: Collection[str] | None = None
) -> SentencePieces:
    """Read the model in a file, unigram or byte-pair encoding.

    reserved: matches whole pieces that do not segment text, although the file may say that they do.
    codes: see `SentencePieces`.  only: the pieces that text may be cut into, beside single characters; None: all.
    Raises DataError for a damaged file, SettingsError naming an option that would change the segmentation here.
    """
    processor = package().SentencePieceProcessor
    with refused(path, "cannot be read"):
        content = path.read_bytes()
    try:
        processor(model_proto=content)
    except (RuntimeError, OSError, ValueError):
        raise DataError(f"{path}: damaged, or not a model of SentencePiece") from None
    proto = read_proto(content)
    for piece in proto.pieces:
        if reserved is not None and isinstance(piece.piece, str) and reserved.fullmatch(piece.piece):
            piece.type = CONTROL
        elif only is not None and piece.type == NORMAL and len(piece.piece) > 1 and piece.piece not in only:
            piece.type = UNUSED
    trainer, normaliser, denormaliser = proto.trainer_spec, proto.normalizer_spec, proto.denormalizer_spec
    kind = KINDS.get(trainer.model_type, str(trainer.model_type))
    for name, found, wanted in (
        ("model_type", "unigram" if kind == "bpe" else kind, "unigram"),
        ("treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, False),
        ("add_dummy_prefix", normaliser.add_dummy_prefix, True),
        ("remove_extra_whitespaces", normaliser.remove_extra_whitespaces, True),
        ("escape_whitespaces", normaliser.escape_whitespaces, True),
        ("user_defined_symbols", [each.piece for each in proto.pieces if each.type == USER_DEFINED], []),
        ("denormalizer_spec", "rules" if denormaliser.precompiled_charsmap else "none", "none"),
    ):
        if found != wanted:
            raise SettingsError(f"{path}: {name}: found {found!r}, expected {wanted!r}")
    scores = scores_of(proto)
    if not scores or "" in scores or not all(isinstance(each.piece, str) for each in proto.pieces):
        raise DataError(f"{path}: damaged: it has no pieces, or an empty one, or one that is not UTF-8")
    bytes_found = set(BYTES) & {each.piece for each in proto.pieces}
    if trainer.byte_fallback and len(bytes_found) != len(BYTES):
        raise DataError(f"{path}: damaged: it has {len(bytes_found)} pieces for bytes, expected 256")
    try:
        return SentencePieces.from_proto(proto, codes=codes)
    except (ValueError, RuntimeError, OSError):
        raise DataError(f"{path}: damaged, or not a model of SentencePiece") from None
