"""Grouped queries, norms of heads and around sub-layers, caps, windows and the rest: against a plain Transformer."""

import collections
import math

import pytest
import torch
from tests.errors import raises
from torch.nn import functional as F

from translume.checkpoint import build_model
from translume.config import ModelSettings
from translume.engine import EngineError, build_engine, self_test
from translume.errors import SettingsError
from translume.model.fixed_decoder import unsupported_by_fixed_decoder

SIZE = 29
SHAPE = {
    "width": 32, "feed_forward": 48, "encoder_layers": 3, "decoder_layers": 2, "attention_heads": 4, "dropout": 0.0,
    "head_width": 16, "max_positions": 40, "positions": "learned",
}  # fmt: skip
GEMMA = {
    "norm": "both", "normalization": "rms", "activation": "geglu", "positions": "rotary", "bias": False,
    "key_value_heads": 2, "attention_cap": 1.5, "attention_windows": (3, 0), "head": {"kind": "capped", "cap": 2.0},
}  # fmt: skip
VARIANTS = {
    "shared keys": {"key_value_heads": 2},
    "one key": {"key_value_heads": 1, "positions": "rotary", "rotary_base": 500.0, "rotary_scale": 4.0},
    "norms of heads": {"query_key_norm": True, "positions": "rotary", "key_value_heads": 2},
    "norms around": {"norm": "both"},
    "capped": {"attention_cap": 0.7, "head": {"kind": "capped", "cap": 1.1}},
    "windows": {"attention_windows": (4, 0)},
    "local rotation": {"attention_windows": (3, 0), "positions": "rotary", "rotary_local_base": 90.0},
    "biases of layers": {"positions": "relative", "relative_per_layer": True, "relative_buckets": 8,
                         "relative_max_distance": 11},
    "biases and windows": {"positions": "relative", "attention_windows": (4, 0), "relative_buckets": 8,
                           "relative_max_distance": 11},
    "global tokens": {"encoder": {"attention_windows": (3, 2), "global_tokens": 2, "max_positions": 50}},
    "sums of blocks": {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 11,
                       "encoder": {"attention_windows": (3,), "global_block": 4}},
    "late positions": {"embedding_norm": True, "late_positions": True, "norm": "post"},
    "transform": {"final_transform": True, "activation": "gelu_tanh", "norm": "post"},
    "two sides": {"encoder": {"norm": "post", "width": 24, "attention_heads": 3, "activation": "gelu"},
                  "head": {"tie": "target"}, "activation": "gelu_tanh"},
    "experts": {"experts": (0, 5), "experts_per_token": 2},
    "experts of sources": {"encoder": {"experts": (3,)}, "expert_capacity": 2},
    "one layer again": {"shared_layers": True, "positions": "rotary", "attention_windows": (4,)},
    "Gemma": GEMMA,
    "one attention": {"decoder_mixing": "merged", "attention_cap": 0.9, "bias": False},
    "one attention with biases": {"decoder_mixing": "merged", "positions": "relative", "relative_buckets": 8,
                                  "relative_max_distance": 11},
    "Gemma 3": {**GEMMA, "decoder_mixing": "merged", "window_ahead": 2, "query_key_norm": True, "rotary_width": 10,
                "rotary_local_base": 90.0, "rotary_scale": 2.0, "image_end_id": 7},
}  # fmt: skip
ENGINE = ("shared keys", "one key")
"""What the kernels have."""


def built(name):
    torch.manual_seed(5)
    settings = ModelSettings(**{**SHAPE, **VARIANTS[name]})
    model = build_model(settings, SIZE, SIZE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("image_end"):
                buffer.normal_()
    return settings, model


class Plain:
    """The same computation for one sentence, head by head, from the weights by name."""

    def __init__(self, settings, weights):
        self.settings, self.weights = settings, weights

    def linear(self, name, x):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, s, name, x):
        gain, bias = self.weights.get(f"{name}.weight"), self.weights.get(f"{name}.bias")
        if gain is None:
            return x
        if s.normalization == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + s.norm_epsilon).sqrt() * gain
        return x if bias is None else x + bias

    def turned(self, s, x, layer):
        local = s.window(layer) and s.rotary_local_base
        base, scale = (s.rotary_local_base, 1.0) if local else (s.rotary_base, s.rotary_scale)
        half, turned = x.size(1) // 2, s.rotary_width or x.size(1)
        angles = (torch.arange(len(x)) / scale)[:, None] * (1.0 / base ** (torch.arange(0, turned, 2) / turned))
        angles = torch.cat([angles, torch.zeros(len(x), half - turned // 2)], 1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[:, :half], x[:, half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def bucket(self, s, distance, causal):
        count, extra = s.relative_buckets, 0
        if causal:
            distance = max(-distance, 0)
        else:
            count //= 2
            extra, distance = count * (distance > 0), abs(distance)
        exact = count // 2
        if distance < exact:
            return extra + distance
        far = exact + int(math.log(distance / exact) / math.log(s.relative_max_distance / exact) * (count - exact))
        return extra + min(far, count - 1)

    def bias(self, s, table, query, key, length, causal):
        if key < length:
            return table[self.bucket(s, key - query, causal)]
        last = length // s.global_block - 1  # the key is a sum of tokens
        distance = key - length - min(query // s.global_block, last)
        return self.weights["encoder.embedding.positions.block_bias"][self.bucket(s, distance, causal)]

    def attend(self, s, name, layer, queries, keys, values, *, causal=False, side="", own=0):
        """Read the first `own` keys as self-attention does, and the others as they are; 0: all."""
        own = own or len(keys)
        size, shared = s.size_per_head, s.attention_heads // (s.key_value_heads or s.attention_heads)
        mixed = []
        for head in range(s.attention_heads):
            q = queries[:, head * size : (head + 1) * size]
            place = head // shared * size
            k, v = keys[:, place : place + size], values[:, place : place + size]
            if s.query_key_norm:
                q, k = (x / (x.square().mean(-1, keepdim=True) + s.norm_epsilon).sqrt() * self.weights[
                    f"{name}.norms.{which}.weight"] for x, which in ((q, "query"), (k, "key")))  # fmt: skip
            if side and s.positions == "rotary":
                q, k = self.turned(s, q, layer), torch.cat([self.turned(s, k[:own], layer), k[own:]])
            scores = q @ k.T / math.sqrt(size)
            if s.attention_cap:
                scores = s.attention_cap * torch.tanh(scores / s.attention_cap)
            if side and s.positions == "relative":
                table = self.weights[f"{name}.biases" if s.relative_per_layer else f"{side}.embedding.positions.bias"]
                scores = scores + torch.stack([
                    torch.stack([self.bias(s, table, query, key, len(q), causal)[head] if key < own
                                 else table.new_zeros(()) for key in range(len(k))])
                    for query in range(len(q))
                ])  # fmt: skip
            for query in range(len(q)):
                for key in range(own):
                    everywhere = key >= len(q) or (side == "encoder" and key < s.global_tokens)
                    window = s.window(layer) if side and not everywhere else 0
                    far = query - key >= window or key - query >= window + s.window_ahead
                    if (causal and key > query) or (window and far):
                        scores = scores.index_put(
                            (torch.tensor(query), torch.tensor(key)), torch.tensor(-math.inf).double()
                        )
            mixed.append(scores.softmax(-1) @ v)
        return self.linear(f"{name}.output", torch.cat(mixed, -1))

    def around(self, s, name, x, sublayer):
        if s.norm == "post":
            return self.norm(s, f"{name}.norm", x + sublayer(x))
        return x + self.norm(s, f"{name}.after", sublayer(self.norm(s, f"{name}.norm", x)))

    def feed(self, s, name, x):
        if f"{name}.router.weight" in self.weights:
            return self.mixed(s, name, x)
        x = self.linear(f"{name}.inner", x)
        if s.activation == "geglu":
            gate, value = x.chunk(2, -1)
            x = F.gelu(gate, approximate="tanh") * value
        else:
            x = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}[s.activation](x)
        return self.linear(f"{name}.outer", x)

    def mixed(self, s, name, x):
        """Each token through its experts; of the encoder's, at most `expert_capacity` tokens each."""
        rows, read = [], collections.Counter()
        for token in x:
            p = self.linear(f"{name}.router", token).softmax(-1)
            best = p.argsort(descending=True)[: s.experts_per_token]
            gates = p[best] if s.experts_per_token == 1 else p[best] / p[best].sum()
            row = torch.zeros_like(token)
            for gate, expert in zip(gates, best.tolist(), strict=True):
                read[expert] += 1
                if not s.expert_capacity or not name.startswith("encoder") or read[expert] <= s.expert_capacity:
                    row = row + gate * self.feed(s, f"{name}.experts.{expert}", token)
            rows.append(row)
        return torch.stack(rows)

    def selfattend(self, s, side, layer, x, memory=None):
        name = f"{side}.layers.{layer}.self_attention"
        sizes = [s.attention_width, *[s.key_value_width] * 2]
        query, *read = self.linear(f"{name}.query_key_value", x).split(sizes, -1)
        own = len(x)
        if memory is not None:
            others = self.linear(f"{name}.query_key_value", memory).split(sizes, -1)[1:]
            read = [torch.cat(pair) for pair in zip(read, others, strict=True)]
        elif side == "encoder" and s.global_block:
            ends = [*range(s.global_block, len(x) - s.global_block + 1, s.global_block), len(x)]
            sums = torch.stack([x[begin:end].sum(0) for begin, end in zip([0, *ends], ends, strict=False)])
            more = self.linear(f"{name}.query_key_value", self.norm(s, f"{name}.block_norm", sums)).split(sizes, -1)
            read = [torch.cat(pair) for pair in zip(read, more[1:], strict=True)]
            own += len(sums)
        mixed = self.attend(s, name, layer, query, *read, causal=side == "decoder", side=side, own=own)
        if side == "encoder" and (first := s.global_tokens):
            query = self.linear(f"{name}.global_maps.query", x[:first])
            keys, values = self.linear(f"{name}.global_maps.key_value", x).chunk(2, -1)
            mixed = torch.cat([self.attend(s, name, layer, query, keys, values), mixed[first:]])
        return mixed

    def embed(self, s, side, ids):
        x = self.weights[f"{side}.embedding.table.weight"][ids] * math.sqrt(s.width)
        x = torch.where((ids == s.image_end_id)[:, None], self.weights.get(f"{side}.embedding.image_end", x), x)
        places = torch.zeros_like(x)
        if s.positions == "learned":
            places = self.weights[f"{side}.embedding.positions.table"][: len(ids)]
        name = f"{side}.embedding.norm"
        if side == "decoder" and self.settings.late_positions:
            return self.norm(s, name, x) + places
        return self.norm(s, name, x + places)

    def logits(self, source, target):
        s = self.settings.of_encoder
        x = self.embed(s, "encoder", source)
        for layer in range(s.encoder_layers):
            name = f"encoder.layers.{layer}"
            x = self.around(s, f"{name}.around_attention", x, lambda x, n=layer: self.selfattend(s, "encoder", n, x))
            x = self.around(s, f"{name}.around_feed_forward", x, lambda x, n=name: self.feed(s, f"{n}.feed_forward", x))
        memory, s = self.norm(s, "encoder.norm", x), self.settings
        x = self.embed(s, "decoder", target)
        for layer in range(s.decoder_layers):
            name = f"decoder.layers.{layer}"
            if s.decoder_mixing == "merged":
                x = self.around(
                    s, f"{name}.around_self", x, lambda x, n=layer: self.selfattend(s, "decoder", n, x, memory)
                )
                x = self.around(
                    s, f"{name}.around_feed_forward", x, lambda x, n=name: self.feed(s, f"{n}.feed_forward", x)
                )
                continue
            keys, values = self.linear(f"{name}.cross_attention.key_value", memory).chunk(2, -1)
            x = self.around(s, f"{name}.around_self", x, lambda x, n=layer: self.selfattend(s, "decoder", n, x))
            x = self.around(s, f"{name}.around_cross", x, lambda x, n=f"{name}.cross_attention", k=keys, v=values:
                            self.attend(s, n, 0, self.linear(f"{n}.query", x), k, v))  # fmt: skip
            x = self.around(s, f"{name}.around_feed_forward", x, lambda x, n=name: self.feed(s, f"{n}.feed_forward", x))
        if s.final_transform:
            x = F.gelu(self.linear("decoder.norm.1", self.norm(s, "decoder.norm.0", x)))
            x = self.norm(s, "decoder.norm.3", x)
        else:
            x = self.norm(s, "decoder.norm", x)
        logits = F.linear(x, self.weights["head.weight"], self.weights.get("head.bias"))
        cap = getattr(s.head, "cap", 0.0)
        return cap * torch.tanh(logits / cap) if cap else logits


def batch():
    generator = torch.Generator().manual_seed(3)
    source, target = (torch.randint(4, SIZE, (2, each), generator=generator) for each in (9, 8))
    mask, target_mask = (torch.arange(each)[None] < torch.tensor([[each], [each - 3]]) for each in (9, 8))
    return source, mask, target, target.roll(-1, 1), target_mask


@pytest.mark.parametrize("name", VARIANTS)
def test_losses_and_gradients_equal_those_of_a_plain_implementation(name):
    settings, model = built(name)
    model.double()
    source, mask, target, labels, target_mask = batch()
    loss = model.loss(source, mask, target, labels, target_mask).objective
    loss.backward()
    found = {each: gradient_of(parameter) for each, parameter in model.named_parameters()}
    model.zero_grad()
    weights = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    plain = Plain(settings, weights)
    wanted = 0.0
    for row in range(2):
        logits = plain.logits(source[row][mask[row]], target[row][target_mask[row]])
        wanted = wanted + F.cross_entropy(logits, labels[row][target_mask[row]], reduction="sum")
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-7)
    for each, parameter in model.named_parameters():
        assert float((gradient_of(parameter) - found[each]).abs().max()) <= LIMIT, each


def gradient_of(parameter):
    """A copy of its gradient; zeros for an expert that no token reads."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


LIMIT = 1e-9


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_all_passes_give_the_same_distributions(name):
    """Packed, padded as on a GPU, token by token in a search, and the weights that an inspection shows."""
    _, model = built(name)
    source, mask, target, labels, target_mask = batch()
    wanted = model.score(source, mask, target, labels, target_mask)
    memory = model.encoder.padded(source, mask)
    hidden = model.decoder.padded(target, memory, mask)
    flat = model.head.score(hidden.flatten(0, 1), labels.flatten(), None).view_as(wanted)
    torch.testing.assert_close(flat.masked_fill(~target_mask, 0.0), wanted, rtol=0, atol=2e-5)
    state, steps = model.start(source, mask), []
    for end in range(1, target.size(1) + 1):
        belief, state = model.step(target[:, :end], state)
        steps.append(belief.log_probs().gather(1, labels[:, end - 1 : end]))
    torch.testing.assert_close(torch.cat(steps, 1).masked_fill(~target_mask, 0.0), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_engine_computes_them_or_names_them(name):
    _, model = built(name)
    if name in ENGINE:
        assert self_test(build_engine(model, "fp32"), model).agrees
        return
    with pytest.raises(EngineError, match=r"engine: model\.\w+: found .*, which the kernels do not have"):
        build_engine(model, "fp32")


def test_a_search_on_a_gpu_names_what_it_does_not_have():
    assert unsupported_by_fixed_decoder(built("windows")[1]) == "model.attention_windows is set"
    assert unsupported_by_fixed_decoder(built("shared keys")[1]) == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key_value_heads": 3}, "model: attention_heads 4 is not divisible by key_value_heads 3"),
        ({"encoder": {"noorm": "pre"}}, "model.encoder: found 'noorm'; did you mean 'norm'?"),
        ({"encoder": {"norm": "middle"}}, "model.norm: found 'middle'; known: pre, post, both"),
        (
            {"global_tokens": 1, "attention_windows": (3, 0)},
            "model: global_tokens is 1 with attention_windows [3, 0], expected windows above 0 in all layers",
        ),
        (
            {"encoder": {"global_tokens": 1, "attention_windows": (3,)}, "positions": "relative"},
            "model: global_tokens is set with positions 'relative', expected sinusoidal, marian, fairseq, interleaved, "
            "learned, rotary, none",
        ),
        (
            {"global_tokens": 1, "global_block": 4, "attention_windows": (3,)},
            "model: global_tokens and global_block are both set, expected one of them",
        ),
        (
            {"encoder": {"width": 8}},
            "model: encoder.width is 8, expected 256, that of the decoder, with head.tie 'all'",
        ),
        (
            {"encoder": {"width": 8}, "head": {"tie": "target"}, "decoder_mixing": "merged"},
            "model: encoder.width is 8 with decoder_mixing 'merged', expected 256, that of the decoder",
        ),
        (
            {"experts": (0, 2), "decoder_mixing": "merged"},
            "model: experts is (0, 2) with decoder_mixing 'merged', expected none",
        ),
        (
            {"shared_layers": True, "attention_windows": (3, 0)},
            "model: attention_windows is [3, 0] with shared_layers, expected one value",
        ),
        (
            {"positions": "rotary", "rotary_width": 66},
            "model: rotary_width is 66, expected an even number up to 64, the width of a head",
        ),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with raises(SettingsError, message):
        ModelSettings(**settings)
