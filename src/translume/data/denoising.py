"""Noise for learning from text alone: infilling and permutation (BART), or spans between sentinels (T5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.config.data import DataSettings, DenoisingSettings
from translume.data.batch import Ragged
from translume.errors import SettingsError
from translume.text import Labels, Tokenizer

_SENTINELS = 100
_STOPS = tuple(stop.encode() for stop in ".!?。！？")


def masks_of(settings: DenoisingSettings) -> tuple[str, ...]:
    """Return the pieces of the tokens that stand for masked spans. BART has one, T5 has 100."""
    if settings.kind == "infill":
        return ("<mask>",)
    return tuple(f"<extra_id_{number}>" for number in range(_SENTINELS))


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Makes a noisy source of each text, and its target.

    masks: ids of the mask, or of the sentinels in their order.  stops [V]: tokens that end with one of . ! ? 。
    """

    settings: DenoisingSettings
    masks: tuple[int, ...]
    stops: NDArray[np.bool_]

    @classmethod
    def from_settings(cls, settings: DataSettings, source: Tokenizer, target: Tokenizer | Labels) -> "Noise | None":
        """Return the noise of [data]; None for pairs. Raises SettingsError for a vocabulary without the masks."""
        if settings.noise is None:
            return None
        pieces, wanted = source.vocabulary.pieces, masks_of(settings.noise)
        ids = {pieces[id_]: id_ for id_ in source.vocabulary.silent}
        masks = tuple(ids[piece] for piece in wanted if piece in ids)
        if not masks:
            raise SettingsError(
                f"data.objective: found 'denoise' with a vocabulary without {wanted[0]}; expected one that was learned "
                f"with data.denoising.kind = '{settings.noise.kind}'"
            )
        if settings.noise.kind == "spans" and source.digest != target.digest:
            raise SettingsError(
                "data.denoising.kind: 'spans' needs one vocabulary for both sides, expected tokenizer.shared = true"
            )
        return cls(settings.noise, masks, np.array([text.endswith(_STOPS) for text in source.spellings]))

    def apply(self, source: Ragged, target: Ragged, seeds: Sequence[int]) -> tuple[Ragged, Ragged]:
        """Return noisy sources and their targets, drawn by a seed for each text. None is longer than the text.

        source, target: both the texts.
        """
        noisy, spans = [], []
        for start, length, seed in zip(source.starts.tolist(), source.lengths.tolist(), seeds, strict=True):
            noisy_ids, span_ids = self.draw(source.tokens[start : start + length], np.random.default_rng(seed))
            noisy.append(noisy_ids)
            spans.append(span_ids)
        noisy_source = Ragged.from_sequences(noisy)
        return noisy_source, target if self.settings.kind == "infill" else Ragged.from_sequences(spans)

    def draw(self, ids: NDArray[Any], generator: np.random.Generator) -> tuple[list[int], list[int]]:
        """Return the noisy ids, and the masked spans, each after what stands for it in the noisy ids.

        Of n ids ⌈rate · n⌉ are masked, but at least one is left. At most as many spans as masked ids, and as others.
        """
        if self.settings.permute:
            ends = self.stops[ids[:-1]] & ~self.stops[ids[1:]]
            sentences = np.split(ids, np.flatnonzero(ends) + 1)
            ids = np.concatenate([sentences[place] for place in generator.permutation(len(sentences))])
        masked = min(int(np.ceil(self.settings.share * len(ids))), len(ids) - 1)
        lengths = self._lengths(masked, len(ids) - masked, generator)
        # No span begins where another does among the ids that are left, so that none touch.
        before = np.sort(generator.choice(len(ids) - masked + 1, len(lengths), replace=False))
        starts = before + np.cumsum(lengths) - lengths
        plain, noisy, spans, done = ids.tolist(), list[int](), list[int](), 0
        for number, (start, end) in enumerate(zip(starts.tolist(), (starts + lengths).tolist(), strict=True)):
            mask = self.masks[number % len(self.masks)]
            noisy += [*plain[done:start], mask]
            spans += [mask, *plain[start:end]]
            done = end
        return noisy + plain[done:], spans

    def _lengths(self, masked: int, others: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return the lengths of spans, whose sum is `masked`."""
        max_spans, mean = min(masked, others), self.settings.span
        if not max_spans:
            return np.zeros(0, np.int64)
        if self.settings.kind == "spans":  # random parts of at least one token
            count = min(max(1, round(masked / mean)), max_spans, len(self.masks))
            bounds = np.sort(generator.choice(masked - 1, count - 1, replace=False)) + 1
            return np.diff(bounds, prepend=0, append=masked)
        lengths = generator.poisson(mean, masked)
        lengths = lengths[: min(int(np.searchsorted(lengths.cumsum(), masked)) + 1, max_spans)]
        lengths[-1] = masked - lengths[:-1].sum()
        return lengths
