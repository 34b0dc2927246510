"""Writing the arrays of a tokenized corpus: read, clean, tokenize, append, in bounded memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from translume.config.data import CleaningSettings
from translume.data.account import REASONS, Ledger
from translume.data.batch import Ragged, flat, starts_of
from translume.data.cleaning import KEPT, Rules, shortened
from translume.data.corpus import Layout, Writer
from translume.data.held_out import chunks, source_hashes
from translume.data.pairs import Origin, Pair
from translume.text import Labels, Tokenizer

_CHUNK = 8192


class Builder:
    """Writes a corpus; `sample` holds the sorted source hashes that are held out, None where nothing is."""

    def __init__(
        self,
        places: tuple[Origin, ...],
        tokenizers: tuple[Tokenizer, Tokenizer | Labels],
        rules: CleaningSettings | None,
        limit: int | None,
        sample: NDArray[np.uint64] | None,
        progress: Callable[[int], None] | None,
        *,
        cut: Literal["drop", "keep_first", "keep_last"] = "drop",
    ) -> None:
        self._cut, self._limit = cut, limit
        self._places = places
        self._tokenizers = tokenizers
        self._rules = Rules(rules, limit, labelled=isinstance(tokenizers[1], Labels))
        self._sample = sample
        self._progress = progress
        self._ledger = Ledger()
        small = max(map(len, tokenizers)) <= 1 << 16
        short = limit is not None and limit < 1 << 16
        self._layout = Layout(token="uint16" if small else "int32", length="uint16" if short else "int32")

    def write(self, folder: Path) -> dict[str, object]:
        """All files but the index, and what the index says of them."""
        names = ("used",) if self._sample is None else ("used", "held_out")
        writers = {name: Writer(folder, name, self._layout) for name in names}
        try:
            for place in self._places:
                for writer in writers.values():
                    writer.begin_origin()
                for chunk in chunks(place.read(), _CHUNK):
                    self._append(chunk, writers)
                    if self._progress:
                        self._progress(self._ledger.read)
            parts = {name: writer.close() for name, writer in writers.items()}
        finally:
            for writer in writers.values():
                writer.abandon()
        return {
            "token": self._layout.token,
            "length": self._layout.length,
            "parts": parts,
            "files": [place.file for place in self._places],
            "account": self._ledger.close().to_dict(),
            "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        }

    def _append(self, pairs: list[Pair], writers: dict[str, Writer]) -> None:
        self._ledger.read += len(pairs)
        kept = self._keep(pairs, self._rules.of_texts(pairs))
        sources = self._tokenizers[0].encode_all([pair.source for pair in kept])
        cut = self._cut_long(sources)
        source_tokens, source_lengths = flat(sources)
        target_tokens, target_lengths = flat(self._targets(kept))
        codes = self._rules.of_lengths(source_lengths, target_lengths)
        self._ledger.truncated += int((cut & (codes == KEPT)).sum())
        self._keep(kept, codes)
        held = np.zeros(len(kept), np.bool_)
        if self._sample is not None and len(kept):
            held = np.isin(source_hashes(kept), self._sample)
        source_starts, target_starts = starts_of(source_lengths), starts_of(target_lengths)
        lines = np.fromiter((pair.line for pair in kept), np.int64, len(kept))
        for name, writer in writers.items():
            chosen = np.flatnonzero((codes == KEPT) & (held == (name == "held_out")))
            writer.append(
                Ragged(source_tokens, source_starts[chosen], source_lengths[chosen]),
                Ragged(target_tokens, target_starts[chosen], target_lengths[chosen]),
                lines[chosen],
            )
            if name == "held_out":
                self._ledger.held_out += len(chosen)
            else:
                self._ledger.used += len(chosen)

    def _targets(self, pairs: list[Pair]) -> list[list[int]]:
        written = self._tokenizers[1]
        if isinstance(written, Labels):
            return [written.encode(pair.target, f"{pair.file}:{pair.line}") for pair in pairs]
        return written.encode_all([pair.target for pair in pairs])

    def _cut_long(self, sources: list[list[int]]) -> NDArray[np.bool_]:
        """Cut what is longer than the limit, in place, where that is asked for; which ones were [n]."""
        cut = np.zeros(len(sources), np.bool_)
        if self._cut != "drop" and self._limit is not None:
            for index, ids in enumerate(sources):
                if len(ids) > self._limit:
                    cut[index] = True
                    sources[index] = shortened(ids, self._limit, self._cut)
        return cut

    def _keep(self, pairs: list[Pair], codes: NDArray[np.int8]) -> list[Pair]:
        """The pairs that no rule drops; the others go into the ledger."""
        if (codes == KEPT).all():
            return pairs
        for code in np.unique(codes[codes != KEPT]).tolist():
            dropped = np.flatnonzero(codes == code)
            self._ledger.drop(REASONS[code], pairs[int(dropped[0])], len(dropped))
        return [pairs[i] for i in np.flatnonzero(codes == KEPT).tolist()]
