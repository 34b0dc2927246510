"""Encoder and decoder layers (Vaswani et al. 2017, figure 1; norms before sub-layers: Xiong et al. 2020)."""

from collections.abc import Callable

from torch import Tensor, nn

from translume.config import ModelSettings
from translume.model.attention import CrossAttention, SelfAttention
from translume.model.dropout import Dropout
from translume.model.feed_forward import FeedForward
from translume.model.ssru import Ssru

SubLayer = Callable[[Tensor], Tensor]


def norm_of(settings: ModelSettings) -> nn.Module:
    """A fresh norm over D, as the settings say."""
    if settings.normalization == "rms":
        return nn.RMSNorm(settings.width, eps=settings.norm_epsilon)
    return nn.LayerNorm(settings.width, eps=settings.norm_epsilon, bias=settings.bias)


class Residual(nn.Module):
    """x + drop(sublayer(norm(x))) with norm "pre", norm(x + drop(sublayer(x))) with "post"."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.norm = norm_of(settings)
        self.drop = Dropout(settings.dropout)
        self.before = settings.norm == "pre"

    def forward(self, x: Tensor, sublayer: SubLayer) -> Tensor:
        """x of any shape [..., D] to the same shape."""
        if self.before:
            result: Tensor = self.drop(sublayer(self.norm(x)), x)
        else:
            result = self.norm(self.drop(sublayer(x), x))
        return result


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention = SelfAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.around_attention, self.around_feed_forward = Residual(settings), Residual(settings)

    def forward(self, x: Tensor, attend: SubLayer) -> Tensor:
        """x [n, D] to the same shape; `attend` applies this layer's self-attention."""
        x = self.around_attention(x, attend)
        result: Tensor = self.around_feed_forward(x, self.feed_forward)
        return result


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, or an SSRU in its place; cross-attention over the memory; feed-forward."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention: SelfAttention | Ssru
        self.self_attention = Ssru(settings) if settings.decoder_mixing == "ssru" else SelfAttention(settings)
        self.cross_attention = CrossAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.around_self, self.around_cross = Residual(settings), Residual(settings)
        self.around_feed_forward = Residual(settings)

    def forward(self, x: Tensor, attend: SubLayer, look: SubLayer) -> Tensor:
        """x [..., D] to the same shape; `attend` and `look` apply what this layer reads target and memory by."""
        x = self.around_self(x, attend)
        x = self.around_cross(x, look)
        result: Tensor = self.around_feed_forward(x, self.feed_forward)
        return result
