"""The memory of a GPU that a training needs, estimated from the shape of its network, and the batch that fits in it."""

from dataclasses import dataclass
from typing import Self

from translume.config import Config, ModelSettings, TrainingSettings
from translume.config.model import GATED
from translume.device import GIB
from translume.heads.fixed_cross_entropy import CHUNK_ELEMENTS
from translume.model.classifier import Network
from translume.model.layers import DecoderLayer, EncoderLayer
from translume.training.optimisation import Precision

STEP, MIN_TOKENS, MAX_TOKENS = 1024, 1024, 65_536
"""`max_tokens = "auto"` is a multiple of STEP from MIN_TOKENS to MAX_TOKENS: more tokens keep no GPU busier."""

SHARE = 0.8
"""Share of the free memory that is planned with; the rest is for what the allocator cannot use."""
RESERVED = GIB
"""Bytes for workspaces of libraries, compiled kernels and CUDA graphs."""
MARGIN = 1.25
"""Memory of activations as a multiple of what the backward pass needs of them: its temporary tensors come on top."""
LOGIT_BYTES = 20
"""Memory of a logit with its gradient in an update that is not compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """Bytes that a training needs in a process.

    state: of weights, gradients, moments and averages, and of the network that validates.  token: of the activations
    of a token, which both sides have.  vocabulary: number V of logits of a token.
    """

    state: int
    token: int
    vocabulary: int

    @classmethod
    def from_network(
        cls, network: Network, config: Config, vocabulary: int, precision: Precision, processes: int
    ) -> Self:
        """Return the needs for a network, whose parameters may be without values.  vocabulary: of the target."""
        parameters = sum(parameter.numel() for parameter in network.parameters())
        loss = 6 * vocabulary * config.model.width  # gradients of the output weights: a sum, and what is added to it
        return cls(
            state=parameters * parameter_bytes(config.training, precision, processes) + loss,
            token=token_bytes(network, config.model, config.training, 4 if precision == "fp32" else 2),
            vocabulary=vocabulary,
        )

    def batch(self, tokens: int) -> int:
        """Return the bytes for a batch of so many tokens."""
        return self.token * tokens + LOGIT_BYTES * min(CHUNK_ELEMENTS, tokens * self.vocabulary)

    def tokens(self, free: int) -> int:
        """Return the tokens of the batch that fits in `free` bytes: a multiple of `STEP` within the limits above."""
        room = int(SHARE * free) - RESERVED - self.state
        most = max(
            room // (self.token + LOGIT_BYTES * self.vocabulary), (room - LOGIT_BYTES * CHUNK_ELEMENTS) // self.token
        )
        return min(max(most // STEP * STEP, MIN_TOKENS), MAX_TOKENS)


def parameter_bytes(settings: TrainingSettings, precision: Precision, processes: int) -> int:
    """Return the bytes of a parameter in a process: an upper limit, since Muon has one moment instead of two."""
    narrow = 0 if precision == "fp32" else 2
    validated = 4
    if settings.lora_rank:  # the adapters, which alone are trained, are small
        return (narrow or 4) + validated
    moments = 8
    whole = (4 + narrow) + (4 + narrow) + moments + (4 if settings.ema else 0)  # weight, gradient, …, moving average
    divided = {"none": 0, "optimizer": moments, "full": whole}[settings.shard]
    return whole - divided + -(-divided // processes) + validated


def token_bytes(network: Network, model: ModelSettings, settings: TrainingSettings, number: int) -> int:
    """Return the bytes of the activations of a token of both sides.  number: bytes of one number.

    What a layer keeps for its backward pass: inputs and outputs of the norms, queries, keys, values and what attention
    returns, the hidden layer of the feed-forward block before and after its activation, and dropout's bits.
    """
    width, inner, hidden = model.width, model.attention_width, model.feed_forward * model.experts_per_token
    parts = 4 if model.activation in GATED else 2
    block = number * (4 * width + 4 * inner + parts * hidden) + 2 * width
    cross = number * (2 * width + 4 * inner) + width
    layers = [block for each in network.modules() if isinstance(each, EncoderLayer)]
    layers += [block + each.crosses * cross for each in network.modules() if isinstance(each, DecoderLayer)]
    kept = sum(layers)
    if settings.activation_checkpointing:
        kept = number * width * len(layers) + max(layers, default=0)
    passes = 2 if settings.r_drop else 1
    outside = (number + 4) * 3 * width  # embeddings, the last hidden states and their gradients
    return int(MARGIN * passes * (kept + outside))
