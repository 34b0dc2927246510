"""How often a run's target tokens stand in its training pairs, as its token cache knows."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from translume.config.data import DataSettings
from translume.data.corpus import DamagedCacheError, open_corpus
from translume.data.pairs import origins
from translume.text import Tokenizer

_PAIRS = 1 << 16


def cached_target_counts(
    cache: Path, settings: DataSettings, tokenizers: tuple[Tokenizer, Tokenizer]
) -> NDArray[np.int64] | None:
    """[V]: how often each target token stands in the training pairs, one end mark a pair; None without their cache.

    cache: the folder of caches, of which the one of the training files that `settings` names is read, as it was made:
    after cleaning, whatever has become of the files.
    """
    places = origins(settings, "train") if settings.train or settings.train_source else ()
    files = [place.file for place in places]
    for folder in sorted(path.parent for path in cache.glob("*/index.json")):
        try:
            index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
            if index["files"] != files or not files:
                continue
            corpus = open_corpus(folder, "used", places, tokenizers, None)
        except (OSError, ValueError, KeyError, TypeError, DamagedCacheError):
            continue
        counts = np.zeros(len(tokenizers[1]), np.int64)
        for begin in range(0, corpus.pairs, _PAIRS):
            _, target = corpus.sides(np.arange(begin, min(begin + _PAIRS, corpus.pairs)))
            ends = target.lengths.cumsum()
            places_of = np.arange(ends[-1]) + np.repeat(target.starts - ends + target.lengths, target.lengths)
            found = np.bincount(target.tokens[places_of], minlength=len(counts))
            if len(found) > len(counts):
                return None  # another vocabulary's
            counts += found
        counts[tokenizers[1].specials.eos] += corpus.pairs
        return counts
    return None
