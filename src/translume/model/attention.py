"""Multi-head attention (Vaswani et al. 2017, section 3.2), over packed batches in training and a cache in decoding."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from translume.config import ModelSettings
from translume.errors import SettingsError
from translume.model import compiled
from translume.model.dropout import keep_mask, rounded
from translume.model.layout import Layout
from translume.model.positions import NO_POSITIONS, AttentionPositions, distance_buckets, key_distances, relative_biases
from translume.model.state import KeyValue, LayerPast
from translume.parts import find


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *,
    dropout: float = 0.0, causal: bool = False, cap: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return softmax(Q Kᵀ / √d + mask) V, [N, H, t, d], of a query [N, H, t, d], and keys and values [N, H, S, d].

    mask: bool, True where reading is allowed, or floats added to the scores. A query with no allowed key gets zeros.
    dropout: rate on the attention weights.  causal: query i reads keys 0 … i; then the mask must be None.
    cap: scores are c·tanh(score / c); 0: as they are.
    """
    if cap:
        return F.dropout(_weights(query, keys, mask, causal=causal, cap=cap), dropout) @ values
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Options of `packed_attention`.

    dropout: rate on the attention weights.  causal: each token reads only itself and earlier ones.
    positions: position information of self-attention, for the G places of the layout's grid.
    cap: as for `attend`.  mix: `attend`, or an attention from outside.
    """

    heads: int
    dropout: float = 0.0
    causal: bool = False
    positions: AttentionPositions = NO_POSITIONS
    cap: float = 0.0
    mix: Callable[..., Tensor] = attend


def packed_attention(
    first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], options: AttentionOptions
) -> Tensor:
    """Attend over whole sequences whose tokens are packed without padding, as in training and scoring on CPUs.

    first, second: queries, keys and values [n, 3D] and None for self-attention; otherwise queries [n, D], and keys and
    values [m, 2D]. layouts: of the queries, and of the keys and values. Returns [n, D]. Here D is H·d.

    The compiled kernels compute it where they apply, else torch's scaled_dot_product_attention.
    """
    bias, rotation = options.positions.bias, options.positions.rotation
    longest = max(layout.grid.size(1) for layout in layouts)
    plain = bias is None and options.dropout == 0.0 and not options.cap and options.mix is attend
    if plain and longest <= compiled.LONGEST and compiled.library_for(first, second):
        wide = None if rotation is None else rotation.float().contiguous()
        return compiled.attention(first, second, layouts, options.heads, wide, causal=options.causal)
    layout, memory_layout = layouts
    query, keys, values = _split_heads(first, second, layouts, options)
    # A causal mask hides the padding at the end of a row, too.
    mask = None if options.causal or memory_layout.grid.all() else memory_layout.grid[:, None, None]
    if bias is not None:
        mask = _masked_bias(bias.to(query.dtype), mask, causal=options.causal)
    mixed = mixed_values(query, keys, values, mask, options, causal=options.causal and bias is None)
    return layout.join(mixed.contiguous()[None])


def mixed_values(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, options: AttentionOptions, *, causal: bool = False
) -> Tensor:
    """Return what `options.mix` does, with its dropout.  query, keys, values, mask, causal: as for `attend`."""
    if options.dropout > 0.0 and query.device.type == "cpu" and options.mix is attend:
        return _attend_with_dropout(query, keys, values, mask, options, causal=causal)
    return options.mix(query, keys, values, mask, dropout=options.dropout, causal=causal, cap=options.cap)


def _split_heads(
    first: Tensor, second: Tensor | None, layouts: tuple[Layout, Layout], options: AttentionOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [B, H, G, d], keys and values [B, H, S, d], with queries and keys rotated for rotary positions."""
    layout, memory_layout = layouts
    if second is None:
        query, keys, values = layout.split(first, 3, options.heads).unbind(0)
    else:
        (query,) = layout.split(first, 1, options.heads).unbind(0)
        keys, values = memory_layout.split(second, 2, options.heads).unbind(0)
    rotation = options.positions.rotation
    if rotation is not None:
        query, keys = rotate(query, rotation), rotate(keys, rotation)
    return query, keys, values


def _masked_bias(bias: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """Return [B or 1, H, t, S]: the bias [H, t, S] with −inf where `mask` is False and, if causal, at later keys."""
    if causal:
        mask = causal_mask(bias.size(1), bias.size(2) - bias.size(1), bias.device)
    return bias[None] if mask is None else bias.masked_fill(~mask, -math.inf).reshape(-1, *bias.shape)


def _attend_with_dropout(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, options: AttentionOptions, *, causal: bool
) -> Tensor:
    """Return what `attend` does, with masks of dropout that are drawn as everywhere on CPUs."""
    return _dropped(_weights(query, keys, mask, causal=causal, cap=options.cap), options.dropout) @ values


def _dropped(weights: Tensor, rate: float) -> Tensor:
    """Return weights after dropout. On CPUs its masks are drawn as everywhere: torch's come from a generator that all
    threads share."""
    if rate == 0.0 or weights.device.type != "cpu":
        return F.dropout(weights, rate)
    threshold, factor = rounded(rate)
    kept: Tensor = weights * keep_mask(weights.shape, threshold, weights.device) * factor
    return kept


def _weights(query: Tensor, keys: Tensor, mask: Tensor | None, *, causal: bool, cap: float) -> Tensor:
    """Return the weights [N, H, t, S] of `attend` without dropout."""
    scores = _capped(query @ keys.mT * query.size(-1) ** -0.5, cap)
    if causal:
        mask = causal_mask(query.size(2), 0, query.device)
    if mask is None:
        return scores.softmax(-1)
    scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    none = scores.amax(-1, keepdim=True).isneginf()  # no key is allowed: NaN, and its gradient too
    return scores.masked_fill(none, 0.0).softmax(-1).masked_fill(none, 0.0)


def _capped(scores: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(scores / cap) if cap else scores


class HeadNorms(nn.Module):
    """RMSNorm of the queries, and of the keys, of each head; with gains [d]."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.query, self.key = (nn.RMSNorm(settings.size_per_head, eps=settings.norm_epsilon) for _ in range(2))


def _normed(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Normalise the heads of x [..., heads·d]."""
    result: Tensor = norm(x.reshape(*x.shape[:-1], -1, norm.normalized_shape[0])).flatten(-2)
    return result


def _repeated(x: Tensor, size: int, times: int) -> Tensor:
    """Return [..., times·heads·d]: each head of x [..., heads·d] repeated, of `size` d."""
    return x if times == 1 else x.reshape(*x.shape[:-1], -1, size).repeat_interleave(times, -2).flatten(-2)


class Linear(nn.Linear):
    """A linear map whose gradients the compiled kernels compute if they can."""

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., in] to [..., out]."""
        if compiled.trains(x, self.weight, self.bias):
            return compiled.linear(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def attention_of(settings: ModelSettings) -> Callable[..., Tensor]:
    """Return `attend`, or a new module of the attention from outside that the settings name."""
    chosen = find("attention", settings.attention)
    mix: Callable[..., Tensor] = chosen(settings) if isinstance(chosen, type) else chosen
    return mix


class SelfAttention(nn.Module):
    """Multi-head self-attention: softmax(Q Kᵀ / √d) V with H heads over one sequence.

    window: of the positions that a token reads; 0: all.  biases: [buckets, H], by distance, of this layer only.
    """

    def __init__(self, settings: ModelSettings, layer: int = 0) -> None:
        """layer: its number, which chooses the window."""
        super().__init__()
        self.heads, self.dropout = settings.attention_heads, settings.attention_dropout
        self.head_size, self.cap, self.mix = settings.size_per_head, settings.attention_cap, attention_of(settings)
        self.window, self._furthest = settings.window(layer), settings.relative_max_distance
        self._ahead = settings.window_ahead
        self.query_size, self.key_size = settings.attention_width, settings.key_value_width
        self.query_key_value = Linear(settings.width, self.query_size + 2 * self.key_size, settings.bias)
        self.output = Linear(settings.attention_width, settings.width, settings.bias)
        self.norms = HeadNorms(settings) if settings.query_key_norm else None
        self.biases = relative_biases(settings) if settings.relative_per_layer else None
        initialise(self.query_key_value, [self.query_size, self.key_size, self.key_size])
        initialise(self.output)

    @property
    def is_local(self) -> bool:
        """Whether this layer reads positions in a way of its own."""
        return bool(self.window) or self.biases is not None

    def project(self, x: Tensor) -> Tensor:
        """Return queries, keys and values [..., 3·H·d] of x [..., D], those of shared heads repeated."""
        every: Tensor = self.query_key_value(x)
        if self.norms is None and self.key_size == self.query_size:
            return every
        query, keys, values = torch.split(every, [self.query_size, self.key_size, self.key_size], -1)
        if self.norms is not None:
            query, keys = _normed(query, self.norms.query), _normed(keys, self.norms.key)
        times = self.query_size // self.key_size
        return torch.cat([query, *(_repeated(each, self.head_size, times) for each in (keys, values))], -1)

    def _own(self, positions: AttentionPositions, place: int, count: int, *, causal: bool) -> AttentionPositions:
        """Return `positions` for `count` queries from `place` on, as this layer reads them."""
        if not self.is_local:
            return positions
        distances = key_distances(place, count, self.output.weight.device)
        bias = positions.bias
        if self.biases is not None:
            buckets = distance_buckets(distances, len(self.biases), self._furthest, causal=causal)
            bias = F.embedding(buckets, self.biases).permute(2, 0, 1)
        rotation = positions.rotation
        if self.window:
            far = (distances <= -self.window) | (distances >= self.window + self._ahead)
            bias = self.output.weight.new_zeros(1, *far.shape) if bias is None else bias
            bias = bias.masked_fill(far, -math.inf)
            rotation = rotation if positions.local is None else positions.local
        return AttentionPositions(rotation, bias)

    def packed(self, x: Tensor, layout: Layout, positions: AttentionPositions, *, causal: bool) -> Tensor:
        """Map the tokens x [n, D] of a layout to the same shape.  positions: for the G places of its grid."""
        dropout = self.dropout if self.training else 0.0
        own = self._own(positions, 0, layout.grid.size(1), causal=causal)
        options = AttentionOptions(self.heads, dropout, causal, own, self.cap, self.mix)
        result: Tensor = self.output(packed_attention(self.project(x), None, (layout, layout), options))
        return result

    def begin(self, memory: Tensor) -> KeyValue:
        """Return the empty cache for the sentences of a memory [B, S, D]."""
        none = memory.new_empty(memory.size(0), self.heads, 0, self.head_size)
        return KeyValue(none, none, 0)

    def cached(self, x: Tensor, past: LayerPast, place: int, positions: AttentionPositions) -> Tensor:
        """Map t tokens x [N, t, D] from position `place` on to the same shape; add their keys and values to `past`."""
        assert isinstance(past, KeyValue)
        positions = self._own(positions, place, x.size(1), causal=True)
        query, keys, values = self._heads(x, positions)
        past.write(keys, values, place)
        keys, values = past.read(place + x.size(1))
        mask = causal_mask(x.size(1), place, x.device)
        if positions.bias is not None:
            mask = _masked_bias(positions.bias.to(x.dtype), mask, causal=False)
        result: Tensor = self.output(merge_heads(self.mix(query, keys, values, mask, cap=self.cap)))
        return result

    def padded(self, x: Tensor, mask: Tensor | None, positions: AttentionPositions, *, causal: bool = False) -> Tensor:
        """Map x [B, T, D] to the same shape.

        mask: as for `attend`, with the bias of `positions` added; None: each token reads all.
        causal: each token reads itself and earlier ones; then the mask must be None.
        """
        if self.is_local:
            positions = self._own(replace(positions, bias=None), 0, x.size(1), causal=causal)
            assert positions.bias is not None
            mask = causal_bias(positions.bias, x.dtype) if mask is None else mask + positions.bias.to(x.dtype)
            causal = False
        query, keys, values = self._heads(x, positions)
        dropout = self.dropout if self.training else 0.0
        mixed = self.mix(query, keys, values, mask, dropout=dropout, causal=causal, cap=self.cap)
        result: Tensor = self.output(merge_heads(mixed))
        return result

    def weights(self, x: Tensor, mask: Tensor, positions: AttentionPositions, *, causal: bool) -> Tensor:
        """Return the attention weights [N, H, t, t] between tokens x [N, t, D] with mask [N, t]."""
        positions = self._own(positions, 0, x.size(1), causal=causal)
        query, keys, _ = self._heads(x, positions)
        allowed = mask[:, None, None]
        if causal:
            allowed = allowed & torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
        return weights_of(self.mix, query, keys, allowed, positions.bias, self.cap)

    def _heads(self, x: Tensor, positions: AttentionPositions) -> tuple[Tensor, Tensor, Tensor]:
        query, keys, values = (by_head(part, self.heads) for part in self.project(x).chunk(3, -1))
        if positions.rotation is not None:
            query, keys = rotate(query, positions.rotation), rotate(keys, positions.rotation)
        return query, keys, values


class MergedAttention(SelfAttention):
    """One attention over the target so far and the memory, whose keys and values come from the same maps.

    Keys of the memory are not rotated, and no window hides them.
    """

    def read(self, memory: Tensor) -> KeyValue:
        """Return the keys and values of a memory [B, S, D], computed once per sentence."""
        _, keys, values = (by_head(part, self.heads) for part in self.project(memory).chunk(3, -1))
        return KeyValue(keys, values, memory.size(1))

    def merged(
        self, x: Tensor, memory: KeyValue, mask: Tensor, positions: AttentionPositions, *,
        past: LayerPast | None = None, place: int = 0, attended: list[Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Map target tokens x [B·K, t, D] to the same shape, over the memory of B sentences with mask [B, S].

        The K rows of a sentence are one long query, so that its keys are not copied K times.
        past: the cache, to which keys and values from position `place` on are added; None: x are whole targets.
        attended: gets the weights [B·K, H, t, place + t + S] of the target so far, and then of the memory.
        """
        batch, count = mask.size(0), x.size(1)
        own = self._own(positions, place, count, causal=True)
        query, keys, values = self._heads(x, own)
        if past is not None:
            assert isinstance(past, KeyValue)
            past.write(keys, values, place)
            keys, values = past.read(place + count)
        bias = x.new_zeros(1, count, place + count) if own.bias is None else own.bias.to(x.dtype)
        scale = self.head_size**-0.5
        earlier = _capped(query @ keys.mT * scale, self.cap) + _masked_bias(bias, None, causal=True)
        shape = (batch, -1, *query.shape[1:])  # [B, K, H, t, d]
        long = query.view(shape).transpose(1, 2).flatten(2, 3)  # [B, H, K·t, d]
        read = _capped(long @ memory.keys.mT * scale, self.cap).masked_fill(~mask[:, None, None], -math.inf)
        length = read.size(-1)
        read = read.view(batch, self.heads, -1, count, length).transpose(1, 2).flatten(0, 1)  # [B·K, H, t, S]
        weights = torch.cat([earlier, read], -1).softmax(-1)
        if attended is not None:
            attended.append(weights)
        weights = _dropped(weights, self.dropout if self.training else 0.0)
        before, read = weights[..., :-length], weights[..., -length:]
        long = read.view(*shape[:4], length).transpose(1, 2).flatten(2, 3) @ memory.values
        mixed = before @ values + long.view(batch, self.heads, -1, *query.shape[2:]).transpose(1, 2).flatten(0, 1)
        result: Tensor = self.output(merge_heads(mixed))
        return result

    def merged_packed(
        self, x: Tensor, memory: Tensor, layout: Layout, memory_layout: Layout, positions: AttentionPositions, *,
        attended: list[Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """As `merged`, of target tokens x [n, D] and a memory [m, D], packed by two layouts with the same rows."""
        count, extra = layout.mask.size(1), layout.grid.size(1) - layout.mask.size(1)  # `positions` are for the grid
        grid, read = F.pad(layout.unpack(x), (0, 0, 0, extra)), self.read(memory_layout.unpack(memory))
        return layout.pack(self.merged(grid, read, memory_layout.mask, positions, attended=attended)[:, :count])


class CrossAttention(nn.Module):
    """Multi-head cross-attention: softmax(Q Kᵀ / √d) V with H heads, from the target to the memory."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads, self.dropout = settings.attention_heads, settings.attention_dropout
        self.head_size, self.cap, self.mix = settings.size_per_head, settings.attention_cap, attention_of(settings)
        self._shared = settings.attention_width // settings.key_value_width
        self.query = Linear(settings.width, settings.attention_width, settings.bias)
        self.key_value = Linear(settings.of_encoder.width, 2 * settings.key_value_width, settings.bias)
        self.output = Linear(settings.attention_width, settings.width, settings.bias)
        self.norms = HeadNorms(settings) if settings.query_key_norm else None
        initialise(self.query)
        initialise(self.key_value, [settings.key_value_width] * 2)
        initialise(self.output)

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries [..., H·d] of x [..., D]."""
        query: Tensor = self.query(x)
        return query if self.norms is None else _normed(query, self.norms.query)

    def project(self, memory: Tensor) -> Tensor:
        """Return keys and values [..., 2·H·d] of a memory [..., D], those of shared heads repeated."""
        every: Tensor = self.key_value(memory)
        if self.norms is None and self._shared == 1:
            return every
        keys, values = every.chunk(2, -1)
        keys = keys if self.norms is None else _normed(keys, self.norms.key)
        return torch.cat([_repeated(each, self.head_size, self._shared) for each in (keys, values)], -1)

    def read(self, memory: Tensor) -> KeyValue:
        """Return the keys and values of a memory [B, S, D], computed once per sentence."""
        keys, values = (by_head(part, self.heads) for part in self.project(memory).chunk(2, -1))
        return KeyValue(keys, values, memory.size(1))

    def packed(self, x: Tensor, memory: Tensor, layout: Layout, memory_layout: Layout) -> Tensor:
        """Return [n, D] from target tokens x [n, D] and memory [m, D], packed by two layouts with the same rows."""
        options = AttentionOptions(self.heads, self.dropout if self.training else 0.0, cap=self.cap, mix=self.mix)
        mixed = packed_attention(self.queries(x), self.project(memory), (layout, memory_layout), options)
        result: Tensor = self.output(mixed)
        return result

    def padded(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Return [B, T, D] from target tokens x [B, T, D] and a memory [B, S, D].  mask: as for `attend`."""
        query = by_head(self.queries(x), self.heads)
        keys, values = (by_head(part, self.heads) for part in self.project(memory).chunk(2, -1))
        mixed = self.mix(query, keys, values, mask, dropout=self.dropout if self.training else 0.0, cap=self.cap)
        result: Tensor = self.output(merge_heads(mixed))
        return result

    def cached(self, x: Tensor, memory: KeyValue, mask: Tensor) -> Tensor:
        """Map x [B·K, t, D] to the same shape, attending to the memory of B sentences with mask [B, S].

        The K rows of a sentence are one long query, so that its keys are not copied K times.
        """
        batch, length = mask.size(0), x.size(1)
        query = self.queries(x).view(batch, -1, self.output.in_features)  # [B, K·t, H·d]
        # An exported graph cannot depend on the values of a mask, and to read them the host would wait for a GPU.
        fixed = torch.compiler.is_exporting() or compiled.on_device(x)
        allowed = None if not fixed and bool(mask.all()) else mask[:, None, None]
        mixed = merge_heads(self.mix(by_head(query, self.heads), memory.keys, memory.values, allowed, cap=self.cap))
        result: Tensor = self.output(mixed.view(-1, length, self.output.in_features))
        return result

    def weights(self, x: Tensor, memory: KeyValue, mask: Tensor) -> Tensor:
        """Return the attention weights [B, H, t, S] of x [B, t, D] over a memory; mask [B, S]."""
        query = by_head(self.queries(x), self.heads)
        return weights_of(self.mix, query, memory.keys, mask[:, None, None], cap=self.cap)


ALIGNMENT = 8
"""The memory-efficient kernels of GPUs read rows of a mask that begin at a multiple of this; torch copies others."""


def padding_mask(mask: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """Return what `attend` adds to the scores for keys with mask [B, S], made once for all layers.

    −inf at padding, else 0 or the `bias` [H, t, S]: [B, 1, 1, S], or [B, H, t, S].
    """
    if torch.compiler.is_exporting() and bias is None:
        return mask[:, None, None]
    batch, length = mask.shape
    # Always longer than the keys, or the compiler would make a variant for rows that are as long.
    aligned = (length // ALIGNMENT + 1) * ALIGNMENT
    rows = mask.new_zeros(batch, 1, 1, aligned, dtype=dtype)[..., :length]
    padding = rows.masked_fill_(~mask[:, None, None], -math.inf)
    return padding if bias is None else padding + bias.to(dtype)


def causal_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [1, H, T, T]: the bias [H, T, T], and −inf at keys after the query."""
    return _masked_bias(bias.to(dtype), None, causal=True)


def use_kernels_of_any_shape() -> None:
    """Do not let torch choose cuDNN's attention, which builds a plan of tenths of a second for each new shape."""
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)


def attention_weights(
    query: Tensor, keys: Tensor, allowed: Tensor, bias: Tensor | None = None, cap: float = 0.0
) -> Tensor:
    """Return the weights [N, H, t, S] that `attend` applies; zeros for a query with no allowed key."""
    scores = _capped(query @ keys.mT / math.sqrt(query.size(-1)), cap)
    if bias is not None:
        scores = scores + bias
    return scores.masked_fill(~allowed, -math.inf).softmax(-1).masked_fill(~allowed, 0.0)


def weights_of(
    mix: Callable[..., Tensor], query: Tensor, keys: Tensor, allowed: Tensor, bias: Tensor | None = None,
    cap: float = 0.0,
) -> Tensor:  # fmt: skip
    """Return the weights of an attention, as `attention_weights` does; SettingsError for one that has none."""
    if mix is attend:
        return attention_weights(query, keys, allowed, bias, cap)
    own = getattr(mix, "weights", None)
    if own is None:
        raise SettingsError(f"model.attention: {type(mix).__name__} has no method `weights`; it cannot be shown")
    weights: Tensor = own(query, keys, allowed, bias, cap)
    return weights


def causal_mask(count: int, place: int, device: torch.device) -> Tensor | None:
    """Return the mask [count, place + count] for tokens from position `place` on; None for one token: it reads all."""
    if count == 1:
        return None
    return torch.ones(count, place + count, dtype=torch.bool, device=device).tril(place)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate x [..., T, d] by [2, T, d] cosines and sines; component i is paired with component i + d/2."""
    first, second = x.chunk(2, -1)
    return x * rotation[0].to(x.dtype) + torch.cat([-second, first], -1) * rotation[1].to(x.dtype)


def initialise(linear: nn.Linear, sizes: Sequence[int] = ()) -> None:
    """Set Xavier uniform weights (Glorot and Bengio 2010), and zero biases.

    sizes: of the outputs of several maps that are stacked in one.
    """
    for weight in torch.split(linear.weight.data, [*sizes] or len(linear.weight)):
        nn.init.xavier_uniform_(weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def by_head(x: Tensor, heads: int) -> Tensor:
    """Return [N, H, t, d] of x [N, t, H·d]."""
    return x.reshape(*x.shape[:-1], heads, x.size(-1) // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Return [N, t, H·d] of x [N, H, t, d]."""
    return x.transpose(1, 2).flatten(2)
