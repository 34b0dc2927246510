"""Compare an engine with the plain model on this machine, and check that results do not depend on the batch."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from translume.engine.classes import ClassEngine
from translume.engine.engine import Engine
from translume.lazy import Tensor, inference_mode, torch

if TYPE_CHECKING:
    from translume.model import Transformer
    from translume.model.classifier import Classifier

SENTENCES, STEPS = 7, 11
MIN_STEPS, STEP_WORK = 3, 1 << 29
"""A model reads fewer steps, but not fewer than MIN_STEPS, if parameters times steps would exceed STEP_WORK."""
TOLERANCES = {"fp32": 1e-3, "bf16": 0.5, "int8": 0.5}
"""Largest difference from the plain model, in nats, of the log-probabilities of likely tokens."""
LIKELY = -7.0
"""Log-probability above which a token counts as likely. Less likely tokens do not affect a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a self-test.

    difference: largest difference, in nats, between the log-probabilities of a likely token by the two.
    agrees: whether that is within the tolerance of the engine's dtype.
    alone_equals_batched: whether every part of the engine guarantees that results are the same, bit for bit, alone and
        in a batch, and the test confirmed it; None if not tested.
    """

    difference: float
    agrees: bool
    alone_equals_batched: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as a JSON object."""
        return asdict(self)


@inference_mode()
def self_test(engine: Engine | ClassEngine, model: "Transformer | Classifier", *, alone: bool = True) -> Findings:
    """Compare the engine with its model on random sources of different lengths; a classifier's tokens are its labels.

    alone: whether to compare each sentence alone with the batch, too.
    """
    generator = torch.Generator().manual_seed(0)
    device = next(model.parameters()).device
    longest = min(3 * SENTENCES, model.encoder.embedding.positions.longest)
    shape = torch.arange(longest) < torch.arange(3 * SENTENCES, 0, -3)[:, None]
    source, mask = (each.to(device) for each in model.encoder.embedding.example(shape, generator))
    target = torch.zeros(SENTENCES, 0)
    if isinstance(engine, Engine):
        read: Any = cast("Transformer", model).decoder.embedding
        parameters = sum(each.numel() for each in model.parameters())
        steps = min(STEPS, max(MIN_STEPS, STEP_WORK // parameters), read.positions.longest)
        target = torch.randint(read.table.num_embeddings, (SENTENCES, steps), generator=generator).to(device)
    expected = _read(model, source, mask, target)
    computed = _read(engine, source, mask, target)
    likely = expected > LIKELY
    difference = float((computed - expected)[likely].abs().max()) if bool(likely.any()) else 0.0
    findings = Findings(difference=difference, agrees=difference <= TOLERANCES[engine.dtype])
    if not alone:
        return findings
    one_by_one = [
        _read(engine, source[row : row + 1, mask[row]], mask[row : row + 1, mask[row]], target[row : row + 1])
        for row in range(SENTENCES)
    ]
    same = isinstance(engine, Engine) and engine.head is not None and torch.equal(computed, torch.cat(one_by_one, 1))
    return replace(findings, alone_equals_batched=same)


def _read(stepper: Any, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    """Return the log-probabilities [STEPS, B, V] after each prefix of target [B, STEPS], or [1, B, C] of classes."""
    if isinstance(stepper, ClassEngine):
        return torch.from_numpy(stepper.probabilities(source.numpy(), mask.numpy())).log()[None]
    if not target.size(1):
        return cast(Tensor, stepper.belief(source, mask).log_probs()[None])
    state = stepper.start(source, mask)
    distributions = []
    for length in range(1, target.size(1) + 1):
        next_token, state = stepper.step(target[:, :length], state)
        distributions.append(next_token.log_probs())
    return torch.stack(distributions)
