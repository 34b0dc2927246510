"""What a fresh network learns of its vocabularies before training: word vectors, and where segments end."""

import math
from collections.abc import Iterator
from pathlib import Path

import torch

from translume.config import ModelSettings
from translume.errors import DataError, SettingsError
from translume.model import Transformer
from translume.model.classifier import Network
from translume.model.embedding import Embedding
from translume.text import Labels, Tokenizer

_BEGINNING = "▁"


def load_pretrained(
    model: Network, settings: ModelSettings, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer | Labels
) -> list[str]:
    """Put the word vectors that the settings name into a fresh model's embeddings; one line of account for each file.

    A row is scaled so that what the first layer reads is the vector as the file gives it. Raises DataError for a file
    that is none of word vectors of the model's width, or that knows no token of the vocabulary.
    """
    sides = [(settings.pretrained_source, model.encoder.embedding, source_tokenizer)]
    if isinstance(model, Transformer) and isinstance(target_tokenizer, Tokenizer):
        sides.append((settings.pretrained_target, model.decoder.embedding, target_tokenizer))
    return [_fill(Path(path), embedding, tokenizer) for path, embedding, tokenizer in sides if path]


def mark_separators(model: Network, settings: ModelSettings, source_tokenizer: Tokenizer) -> None:
    """Tell a fresh model with segments which tokens of the source end one.

    Raises SettingsError if no token spells the separator.
    """
    if not settings.segments:
        return
    separator = settings.segment_separator
    counts = [source_tokenizer.decode([id_]).count(separator) for id_ in range(len(source_tokenizer))]
    if not any(counts):
        raise SettingsError(
            f"model.segment_separator: no token of the source vocabulary holds {separator!r}, "
            "wanted a character that separates segments in the training text"
        )
    model.encoder.embedding.separators.copy_(torch.tensor(counts))


def read_vectors(path: Path, width: int) -> Iterator[tuple[str, list[float]]]:
    """Words and their vectors from a text file of GloVe, or of word2vec with its first line of two counts.

    Blank lines are passed over. Raises DataError, naming the line, for anything else and for vectors that have not
    `width` finite numbers.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                word, *numbers = line.rstrip().split(" ")
                if number == 1 and len(numbers) == 1 and word.isdecimal() and numbers[0].isdecimal():
                    _refuse_width(f"{path}:1", int(numbers[0]), width)
                    continue
                if len(numbers) > width and number > 1:  # some words hold spaces
                    word, numbers = " ".join([word, *numbers[:-width]]), numbers[-width:]
                _refuse_width(f"{path}:{number}", len(numbers), width)
                try:
                    vector = [float(value) for value in numbers]
                except ValueError:
                    raise DataError(f"{path}:{number}: not a word and {width} numbers") from None
                if not math.isfinite(sum(vector)):
                    raise DataError(f"{path}:{number}: a number that is not finite")
                yield word, vector
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None


def _refuse_width(place: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise DataError(f"{place}: vectors of {found} numbers, wanted {wanted}, the model's width")


@torch.no_grad()
def _fill(path: Path, embedding: Embedding, tokenizer: Tokenizer) -> str:
    table = embedding.table.weight
    specials = tokenizer.specials
    special = {specials.pad, specials.bos, specials.eos, specials.unk}
    pieces = {id_: piece.removeprefix(_BEGINNING) for id_, piece in enumerate(tokenizer.pieces()) if id_ not in special}
    exact: dict[str, list[int]] = {}
    lowered: dict[str, list[int]] = {}
    for id_, piece in pieces.items():
        exact.setdefault(piece, []).append(id_)
        lowered.setdefault(piece.lower(), []).append(id_)
    found: set[int] = set()
    for word, vector in read_vectors(path, table.size(1)):
        ids = {*exact.get(word, ()), *(id_ for id_ in lowered.get(word, ()) if id_ not in found)}
        if ids:
            table[sorted(ids)] = (torch.tensor(vector) / embedding.scale).to(table.dtype)
            found |= ids
    if not found:
        raise DataError(f"{path}: none of its words is a token of the vocabulary, wanted at least one")
    what = "word vectors"
    if embedding.frozen is not None:
        embedding.frozen[sorted(found)] = True
        what = "word vectors, kept as they are,"
    return f"{path}: {what} for {len(found):,} of {len(pieces):,} tokens"
