"""Whether an engine gives what the plain model gives here, and whether numbers depend on a sentence's neighbours."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from translume.decoding.step import Stepper
from translume.engine.engine import Engine
from translume.model import Transformer

SENTENCES, STEPS = 7, 11
TOLERANCES = {"fp32": 1e-3, "bf16": 0.5, "int8": 0.5}
"""Largest difference from the plain model, in nats, of the log-probabilities of likely tokens."""
LIKELY = -7.0
"""Log-probability of p_model above which a token counts as likely: what lies deep in the tail never wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a self-test found.

    difference: the largest one, in nats, between the plain model's log-probability of a likely token and the engine's.
    agrees: whether that is within the tolerance of the engine's dtype.
    alone_equals_batched: whether every part of the engine claims that numbers are the same, bit for bit, in a batch and
        alone, and they were; None if not tested.
    """

    difference: float
    agrees: bool
    alone_equals_batched: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON knows them."""
        return {
            "difference": self.difference,
            "agrees": self.agrees,
            "alone_equals_batched": self.alone_equals_batched,
        }


@torch.inference_mode()
def self_test(engine: Engine, model: Transformer, *, alone: bool = True) -> Findings:
    """Have the engine and the model it was made of read the same sentences of random ids, of unequal lengths.

    alone: whether to read each sentence alone, too.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = (model.encoder.embedding.table, model.decoder.embedding.table)
    source_size, target_size = (int(table.num_embeddings) for table in sizes)
    device = next(model.parameters()).device
    longest = 3 * SENTENCES
    source = torch.randint(source_size, (SENTENCES, longest), generator=generator).to(device)
    mask = torch.arange(longest, device=device) < torch.arange(longest, 0, -3, device=device)[:, None]
    target = torch.randint(target_size, (SENTENCES, STEPS), generator=generator).to(device)
    wanted = _read(model, source, mask, target)
    found = _read(engine, source, mask, target)
    likely = wanted > LIKELY
    difference = float((found - wanted)[likely].abs().max()) if bool(likely.any()) else 0.0
    findings = Findings(difference=difference, agrees=difference <= TOLERANCES[engine.choice.dtype])
    if not alone:
        return findings
    apart = [
        _read(engine, source[row : row + 1, mask[row]], mask[row : row + 1, mask[row]], target[row : row + 1])
        for row in range(SENTENCES)
    ]
    same = engine.rows_are_independent() and torch.equal(found, torch.cat(apart, 1))
    return replace(findings, alone_equals_batched=same)


def _read(stepper: Stepper, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    """[STEPS, B, V], the log-probabilities after each prefix of target [B, STEPS]."""
    state = stepper.start(source, mask)
    beliefs = []
    for length in range(1, target.size(1) + 1):
        belief, state = stepper.step(target[:, :length], state)
        beliefs.append(belief.log_probs())
    return torch.stack(beliefs)
