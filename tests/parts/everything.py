"""A part of almost every kind, as a user would write them in one file. `test_parts.py` imports it by --import."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import click
import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from translume.belief import Bias, Logits, NextToken
from translume.config import DecodingSettings, EvaluationSettings, HeadKind, ModelSettings, Settings, TrainingSettings
from translume.decoding import BeamSearch, RuleContext
from translume.documents import Format
from translume.documents.files import PlainText
from translume.evaluation import Score
from translume.heads.chunked_cross_entropy import lse_and_label_logits, softmax_loss
from translume.interchange.certificate import Certificate, forced_targets
from translume.model import Head, HeadLoss, HeadSizes, LossOptions
from translume.model.attention import attend, attention_weights
from translume.model.positions import AttentionPositions, PositionEncoding
from translume.parts import part

__version__ = "3.1"


@part("head", "cosine", interface=1)
class CosineSettings(HeadKind):
    """[model.head] kind = "cosine": a softmax over scaled directions."""

    implementation: ClassVar[str] = "everything:CosineHead"
    kind: Literal["cosine"] = "cosine"
    tie: Literal["all", "target", "none"] = "all"
    scale: float = Field(default=8.0, gt=0.0)
    """What the cosines are multiplied by."""


class CosineHead(Head):
    def __init__(self, settings: CosineSettings, sizes: HeadSizes, tied: nn.Parameter | None) -> None:
        super().__init__()
        self.vocabulary, self.scale = sizes.vocabulary, settings.scale
        self.weight = tied if tied is not None else nn.Parameter(torch.randn(sizes.vocabulary, sizes.width))

    def _direction(self, hidden: Tensor) -> Tensor:
        return self.scale * nn.functional.normalize(hidden, dim=-1)

    def loss(self, hidden: Tensor, labels: Tensor, context: object, options: LossOptions) -> HeadLoss:
        loss = softmax_loss(self._direction(hidden), self.weight, None, labels, options)
        return HeadLoss(loss.objective, loss.nll, labels.numel())

    def score(self, hidden: Tensor, labels: Tensor, context: object) -> Tensor:
        lse, picked = lse_and_label_logits(self._direction(hidden), self.weight, None, labels)
        return picked - lse

    def next_token(self, hidden: Tensor, context: object) -> NextToken:
        return Logits(self._direction(hidden) @ self.weight.mT)


@part("position", "linear", interface=1)
class LinearBias(PositionEncoding):
    in_attention: ClassVar[bool] = True

    def for_attention(self, start: int, count: int, *, causal: bool, device: torch.device) -> AttentionPositions:
        keys = torch.arange(start + count, device=device)
        distances = (keys - torch.arange(start, start + count, device=device)[:, None]).abs()
        return AttentionPositions(bias=-0.5 * distances[None].float().expand(2, -1, -1))


class PowerSettings(Settings):
    power: float = Field(default=2.0, gt=0.0)
    """The exponent p."""


@part("norm", "power", interface=1, settings=PowerSettings)
class PowerNorm(nn.Module):
    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.power = settings.option(PowerSettings).power
        self.weight = nn.Parameter(torch.ones(settings.width))

    def forward(self, x: Tensor) -> Tensor:
        size = x.abs().pow(self.power).mean(-1, keepdim=True).pow(1 / self.power)
        return self.weight * x / (size + 1e-5)


@part("attention", "warm", interface=1)
class WarmAttention(nn.Module):
    """Attention with a trained temperature."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.warmth = nn.Parameter(torch.tensor(0.7))

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        return attend(query * self.warmth, keys, values, mask, **options)

    def weights(self, query: Tensor, keys: Tensor, allowed: Tensor, bias: Tensor | None) -> Tensor:
        return attention_weights(query * self.warmth, keys, allowed, bias)


@part("feed_forward", "square", interface=1)
class Square(nn.Module):
    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.width, settings.feed_forward)
        self.outer = nn.Linear(settings.feed_forward, settings.width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.outer(self.inner(x).relu().square())
        return result


@part("objective", "focal", interface=1)
def focal(settings: TrainingSettings) -> Callable[..., HeadLoss]:
    def loss(head: Head, hidden: Tensor, labels: Tensor, context: Any, options: LossOptions) -> HeadLoss:
        log_prob = head.next_token(hidden, context).log_prob_of(labels[:, None])[:, 0]
        return HeadLoss(-((1 - log_prob.exp()) * log_prob).sum(), -log_prob.sum().detach(), labels.numel())

    return loss


@part("optimizer", "momentum", interface=1)
def momentum(groups: list[dict[str, Any]], settings: TrainingSettings) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.beta1)


@part("schedule", "linear", interface=1)
def linear(update: int, settings: TrainingSettings, width: int) -> float:
    return settings.learning_rate * max(0.0, 1 - (update - 1) / settings.updates)


@part("metric", "length", interface=1)
class LengthRatio:
    """Characters of the translations, in percent of those of the first references."""

    larger_is_better = False

    def __init__(self, settings: EvaluationSettings) -> None:
        pass

    def count(self, texts: Sequence[str], references: Any, sources: Sequence[str] = ()) -> Any:
        pairs = zip(texts, references[0], strict=True)
        return np.array([(len(text), len(reference or "")) for text, reference in pairs], dtype=np.float64)

    def score(self, total: Any) -> Score:
        translated, reference = total.tolist()
        return Score(name="length", title="length", value=100 * translated / reference, signature="unit:characters")


@part("strategy", "narrow", interface=1)
class Narrow(BeamSearch):
    """Beam search of width 2, whatever `beam` is."""

    reads: ClassVar[frozenset[str]] = frozenset({"nbest"})

    @classmethod
    def of(cls, settings: DecodingSettings, keys: Any) -> "Narrow":
        return cls(width=2, nbest=settings.nbest)


@part("rule", "no_repeat", interface=1)
class NoRepeat:
    def __init__(self, settings: DecodingSettings, tokenizer: Any) -> None:
        pass

    def __call__(self, prefix: Any, context: RuleContext) -> Bias | None:
        return Bias.forbid(torch.arange(len(prefix)), torch.as_tensor(prefix[:, -1])) if context.step else None


part("document", ".say", interface=1)(Format(PlainText.from_bytes, "text/plain"))


@part("export", "numpy", interface=1)
def write_numpy(checkpoint: Any, folder: Path, dtype: str) -> Certificate:
    np.savez(folder / "weights.npz", **{name: each.numpy() for name, each in checkpoint.model.state_dict().items()})
    forced = forced_targets(checkpoint)
    scores = []
    for source, target, labels in (map(torch.from_numpy, arrays) for arrays in forced.examples(checkpoint)):
        with torch.no_grad():
            scores.append(checkpoint.model.score(source, source >= 0, target, labels, labels >= 0)[0].tolist())
    return forced.compare(scores, "the same", folder)


@part("command", "hello", interface=1)
@click.command("hello")
def hello() -> None:
    """Say hello."""
    click.echo("hello")
