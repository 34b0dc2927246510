"""Embeddings: tokens, positions and segments; tables in bands of decreasing width."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from translume.config import ModelSettings, SourceKind
from translume.errors import SettingsError
from translume.model.compiled import on_device
from translume.model.dropout import Dropout
from translume.model.layers import norm_of
from translume.model.positions import position_encoding


class BandedTable(nn.Module):
    """An embedding in bands of tokens, each with its own vector size (Baevski and Auli 2019, section 3).

    Band 0 has vectors of size D; band j > 0 has vectors of size d = D/factorʲ (at least 1) and a projection [d, D]. An
    output head may share both. order: [V], ids band by band, ascending within a band.  rank: [V], the index of each id
    in `order`.  Both are the identity until `arrange` is called.
    """

    order: Tensor
    rank: Tensor

    def __init__(self, size: int, width: int, cutoffs: Sequence[int], factor: int) -> None:
        """cutoffs: ends of the bands, as frequency ranks; empty: an eighth and a half of the `size` tokens.

        Raises SettingsError unless cutoffs are ascending numbers from 1 to below `size`.
        """
        super().__init__()
        chosen = cutoffs or sorted({cut for cut in (size // 8, size // 2) if cut})
        self.ends = (*chosen, size)
        if any(below >= above for below, above in pairwise((0, *self.ends))):
            raise SettingsError(
                f"model.head.cutoffs: {list(cutoffs)}, expected ascending numbers from 1 to below the {size} tokens of "
                "the vocabulary"
            )
        sizes = [max(1, width // factor**band) for band in range(len(self.ends))]
        self.bands = nn.ParameterList(
            torch.randn(end - begin, each) * each**-0.5
            for (begin, end), each in zip(pairwise((0, *self.ends)), sizes, strict=True)
        )
        self.projections = nn.ParameterList(torch.randn(each, width) * width**-0.5 for each in sizes[1:])
        self.num_embeddings = size
        for name in ("order", "rank"):
            self.register_buffer(name, torch.arange(size))

    @torch.no_grad()
    def arrange(self, by_frequency: Tensor) -> None:
        """Assign ids [V], most frequent first, to the bands. Does not move any vectors."""
        begins = (0, *self.ends)
        bands = [by_frequency[begin:end].sort().values for begin, end in pairwise(begins)]
        self.order.copy_(torch.cat(bands))
        self.rank[self.order] = torch.arange(self.num_embeddings, device=self.rank.device)

    def bands_of(self, places: Tensor) -> Tensor:
        """Return the band of each index in `order`; `places` may have any shape."""
        bands = torch.zeros_like(places)
        for end in self.ends[:-1]:
            bands += places >= end
        return bands

    @property
    def matrices(self) -> Sequence[Tensor]:
        """The vectors of each band, [tokens, size]."""
        return list(cast(Iterable[Tensor], self.bands))

    def widened(self, vectors: Tensor, band: int) -> Tensor:
        """Project vectors [n, d] of a band to [n, D]."""
        return vectors @ self.projections[band - 1] if band else vectors

    def narrowed(self, hidden: Tensor, band: int) -> Tensor:
        """Project hidden states [n, D] to [n, d], such that narrowed · vector = hidden · widened vector."""
        return F.linear(hidden, self.projections[band - 1]) if band else hidden

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors [..., D] of ids [...]."""
        if on_device(ids):
            return self._chosen(ids)
        places = self.rank[ids.reshape(-1)]
        bands = self.bands_of(places)
        by_band = bands.argsort(stable=True)
        parts = torch.split(places[by_band], bands.bincount(minlength=len(self.ends)).tolist())
        of_bands = [
            self.widened(F.embedding(part - begin, matrix), band)
            for band, (begin, matrix, part) in enumerate(zip((0, *self.ends), self.matrices, parts, strict=False))
        ]
        vectors = torch.cat(of_bands).index_select(0, by_band.argsort())
        return vectors.view(*ids.shape, vectors.size(-1))

    def _chosen(self, ids: Tensor) -> Tensor:
        """As `forward`, with shapes that do not depend on the ids: each band computes a vector for every id."""
        places = self.rank[ids]
        vectors = F.embedding(places.clamp(max=self.ends[0] - 1), self.matrices[0])
        for band, (begin, end) in enumerate(pairwise(self.ends), 1):
            own = F.embedding((places - begin).clamp(0, end - begin - 1), self.matrices[band])
            vectors = torch.where((places >= begin)[..., None], self.widened(own, band), vectors)
        return vectors


PLACES = 32
"""Places in a segment that have a vector of their own, with `model.segment_pooling`."""


class Embedding(nn.Module):
    """dropout(norm(E[id]·√D + position (+ segment))); √D only with `scale_embeddings`, norm with `embedding_norm`.

    late_positions: the position is added after the norm.

    separators: [V], the number of segment separators in each token; only with segments.
    image_end: [D], which takes the place of E[id]·√D for `image_end_id`; only with it.
    frozen: [V], True for rows of the table that training must not change; only with `freezable`.
    """

    separators: Tensor
    image_end: Tensor | None
    frozen: Tensor | None

    def __init__(
        self, size: int, settings: ModelSettings, *,
        segments: int = 0, freezable: bool = False, late_positions: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._late = late_positions
        self.table = nn.Embedding(size, settings.width)
        nn.init.normal_(self.table.weight, std=settings.width**-0.5)
        self.scale = math.sqrt(settings.width) if settings.scale_embeddings else 1.0
        self.positions = position_encoding(settings)
        self.norm = norm_of(settings) if settings.embedding_norm else nn.Identity()
        self.segments = nn.Embedding(segments, settings.width) if segments else None
        if self.segments is not None:
            nn.init.normal_(self.segments.weight, std=settings.width**-0.5)
            self.register_buffer("separators", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("frozen", torch.zeros(size, dtype=torch.bool) if freezable else None)
        self._image_end_id = settings.image_end_id
        self.register_buffer("image_end", torch.zeros(settings.width) if settings.image_end_id >= 0 else None)
        self.drop = Dropout(settings.dropout)

    @classmethod
    def of_source(cls, source: SourceKind, size: int, settings: ModelSettings) -> "Embedding":
        """Return an untrained one for the sources of a model.  source: ignored.  size: of the vocabulary."""
        freezable = settings.freeze_pretrained and bool(settings.pretrained_source)
        kind = SegmentEmbedding if settings.segment_pooling == "sum" else Embedding
        return kind(size, settings, segments=settings.segments, freezable=freezable)

    def learn(self, frames: NDArray[Any] | None) -> None:
        """Do nothing: text has no frames."""

    def front(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids and mask [B, S] as they are: each token is a position of the encoder."""
        return source, mask

    def positions_in(self, source: Tensor) -> Tensor:
        """Return the position of the encoder, from 0, that each id of a source [S] without padding belongs to."""
        return torch.arange(len(source), device=source.device)

    def example(self, mask: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random ids for the positions of `mask` [B, S], and the mask."""
        return torch.randint(self.table.num_embeddings, mask.shape, generator=generator), mask

    def keep_frozen(self) -> None:
        """Register a hook that zeroes the table's gradients where `frozen` is True. Call once, after tying."""
        if self.frozen is not None:
            self.table.weight.register_hook(self._without_frozen)  # type: ignore[no-untyped-call]  # torch's has no types

    def _without_frozen(self, gradient: Tensor) -> Tensor:
        return gradient if self.frozen is None else gradient.masked_fill(self.frozen[:, None], 0.0)

    def segments_of(self, ids: Tensor) -> Tensor | None:
        """Return the segment of each id [B, S]: the number of separators before it, at most the last segment."""
        if self.segments is None:
            return None
        counts = self.separators[ids]
        return (counts.cumsum(1) - counts).clamp_(max=self.segments.num_embeddings - 1)

    def vectors(self, ids: Tensor) -> Tensor:
        """Return the embeddings [..., D] of ids [...]."""
        vectors: Tensor = self.table(ids)
        return vectors

    def forward(
        self, ids: Tensor, places: Tensor, segments: Tensor | None = None, *, without_tokens: bool = False
    ) -> Tensor:
        """Return vectors [..., D] for ids, positions and segments of the same shape [...].

        without_tokens: leave the token embeddings out; a baseline for attribution.
        """
        x = self.vectors(ids)
        if without_tokens:
            x = torch.zeros_like(x)
        if self.scale != 1.0:
            x = x * self.scale
        if self.image_end is not None and not without_tokens:
            x = torch.where((ids == self._image_end_id)[..., None], self.image_end.to(x.dtype), x)
        if self.segments is not None and segments is not None:
            x = x + self.segments(segments)
        placed = self.positions(self.norm(x), places) if self._late else self.norm(self.positions(x, places))
        result: Tensor = self.drop(placed)
        return result


class SegmentEmbedding(Embedding):
    """As `Embedding`, with one position for each segment of a source instead of each token.

    `front` sums the embeddings of a segment's tokens, each multiplied by a learned vector of its place in the segment
    (Dehghani et al. 2019, section 3.1); `forward` adds position and segment. On a CPU the result is the same for a
    source alone and in a batch. Until separators are marked, every token is a segment.
    factors: [PLACES, D]; tokens after so many share the last.
    """

    def __init__(self, size: int, settings: ModelSettings, *, segments: int, freezable: bool = False) -> None:
        super().__init__(size, settings, segments=segments, freezable=freezable)
        self.separators.fill_(1)
        self.factors = nn.Parameter(torch.ones(PLACES, settings.width) + 0.5 * torch.randn(PLACES, settings.width))

    def front(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return a vector for each segment [B, P, D] of ids [B, S], and their mask [B, P].

        P is the largest number of segments on a CPU, and S on other devices.
        """
        segment, place = self.places_of(source, mask)
        counts = (segment + 1).masked_fill(~mask, 0).amax(1)
        if on_device(source):
            there = torch.arange(source.size(1), device=source.device) < counts[:, None]
            return self._summed(source, mask, segment, place), there
        longest = int(counts.max()) if counts.numel() else 0
        vectors = self.table(source[mask]) * F.embedding(place[mask].clamp(max=PLACES - 1), self.factors)
        rows = (segment + longest * torch.arange(len(source), device=source.device)[:, None])[mask]
        zeros = torch.zeros(len(source) * longest, vectors.size(1), device=source.device)
        summed = zeros.index_add(0, rows, vectors.float()).to(vectors.dtype)
        there = torch.arange(longest, device=source.device) < counts[:, None]
        return summed.view(*there.shape, vectors.size(1)), there

    def _summed(self, source: Tensor, mask: Tensor, segment: Tensor, place: Tensor) -> Tensor:
        """Return the vectors [B, S, D] of as many segments as there are ids: a product with the members of each."""
        vectors = self.table(source) * F.embedding(place.clamp(0, PLACES - 1), self.factors)
        index = torch.arange(source.size(1), device=source.device)[:, None]
        member = (segment[:, None] == index) & mask[:, None]  # [B, P, S]
        summed: Tensor = member.float() @ vectors.float()
        return summed.to(vectors.dtype)

    def places_of(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the segment of each id [B, S] and its place in the segment, both from 0; undefined at padding."""
        ends = (self.separators[source] > 0) & mask
        segment = ends.cumsum(1) - ends.long()
        place = torch.arange(source.size(1), device=source.device).expand(source.shape)
        begins = torch.where(ends, place + 1, 0)[:, :-1].cummax(1).values
        return segment, place - F.pad(begins, (1, 0))

    def positions_in(self, source: Tensor) -> Tensor:
        return self.places_of(source[None], torch.ones_like(source[None], dtype=torch.bool))[0][0]

    def segments_of(self, ids: Tensor) -> Tensor:
        """Return the index of each segment [B, P] for the vectors [B, P, D] of `front`, at most the last."""
        assert self.segments is not None
        index = torch.arange(ids.size(1), device=ids.device).clamp_(max=self.segments.num_embeddings - 1)
        return index.expand(ids.shape[:2])

    def vectors(self, ids: Tensor) -> Tensor:
        """Return the vectors of `front` as they are."""
        return ids

    def example(self, mask: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random ids that each end a segment, so that `front` returns `mask` [B, S], and the mask."""
        ends = self.separators.nonzero()[:, 0]
        return ends[torch.randint(len(ends), mask.shape, generator=generator)], mask
