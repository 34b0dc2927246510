"""How good weights are on the validation set: nats per token, and a metric of what they translate."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from translume.config import Config
from translume.data import Batch, BatchPlan, TokenizedCorpus
from translume.model.classifier import Network

HIGHER_IS_BETTER = {
    "nll": False,
    "bleu": True,
    "chrf": True,
    "exact_match": True,
    "wer": False,
    "accuracy": True,
    "macro_f1": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """nll: nats per target token.  metrics: decoded ones by name."""

    nll: float
    metrics: Mapping[str, float]

    def value(self, metric: str) -> float:
        """What `training.metric` names."""
        return self.nll if metric == "nll" else self.metrics[metric]


def better(metric: str, value: float, best: float | None) -> bool:
    """Whether a value beats the best so far; a NaN beats nothing."""
    if best is None:
        return value == value
    return value > best if HIGHER_IS_BETTER[metric] else value < best


def measured_by(config: Config, corpus: TokenizedCorpus) -> str:
    """A digest of all that a value of `training.metric` depends on besides the weights; others are not comparable."""
    parts = [corpus.digest, *map(repr, corpus.weights)]
    if config.training.metric != "nll":
        parts += [str(config.training.validation_sentences), config.decoding.model_dump_json()]
        parts += [config.scoring.model_dump_json(exclude={"metrics"})]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """Measures weights on the validation set, in fp32, with a model of its own that training never touches.

    decode: the metrics of the model as it is now, by name, given a function that says when to stop; None where
    `training.metric` needs no translating.
    """

    model: Network
    corpus: TokenizedCorpus
    max_tokens: int
    device: torch.device
    decode: Callable[[Callable[[], bool]], Mapping[str, float] | None] | None

    def measure(self, weights: Mapping[str, Tensor], stop: Callable[[], bool]) -> Quality | None:
        """How good weights are; None soon after `stop` turns true."""
        load_weights(self.model, weights)
        self.model.eval()
        total, tokens = 0.0, 0
        longest = max(
            int(lengths.max(initial=0)) for lengths in (self.corpus.source_lengths, self.corpus.target_lengths)
        )
        # Validation files keep pairs that training would drop as too long: such a pair is a batch of its own.
        plan = BatchPlan(self.corpus, max_tokens=max(self.max_tokens, longest + 1), seed=0, epoch=0)
        for index in range(len(plan)):
            if stop():
                return None
            batch = plan.batch(index).to(self.device)
            total += nll_of(self.model, batch)
            tokens += batch.tokens
        metrics = self.decode(stop) if self.decode else {}
        if metrics is None:
            return None
        return Quality(nll=total / max(1, tokens), metrics=metrics)


def nll_of(model: Network, batch: Batch) -> float:
    """−Σ log p of a batch in nats; the objective without smoothing where a head has no −log p of its own."""
    with torch.no_grad():
        loss = model.loss(batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask)
    return float(loss.objective if loss.nll is None else loss.nll)


def load_weights(model: Network, values: Mapping[str, Tensor]) -> None:
    """Copy weights by name into a model, which keeps its dtype and device; names it lacks raise KeyError."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
