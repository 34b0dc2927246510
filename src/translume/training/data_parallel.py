"""Data parallelism on a CPU: replicas of the network share its weights, and each computes a part of every batch.

Parallelism within operations synchronises all threads after each operation, and most operations of translation models
are too short for that: two threads on one batch are hardly faster than one, whereas two half batches on one thread each
take little more than half the time.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import torch
from torch import Tensor

from translume.model import HeadLoss
from translume.model.classifier import Network
from translume.model.dropout import seeded_masks

MAX_REPLICAS = 4
"""Maximum number of replicas. Each has its own gradients; more replicas would need too much memory for their speed."""

Share = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""source, source_mask, target, labels and target_mask of some rows of a batch."""


def replica_count(threads: int, device: torch.device) -> int:
    """Return the number of replicas for a number of threads; one on any device other than a CPU."""
    return max(1, min(threads, MAX_REPLICAS)) if device.type == "cpu" else 1


def replica_of(model: Network) -> Network:
    """Return a network that shares every weight and buffer of `model` but not its gradients."""
    replica = deepcopy(model)
    for own, shared in zip(_tensors(replica), _tensors(model), strict=True):
        own.data, own.grad = shared.data, None
    return replica


def _tensors(model: Network) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def shares_of(batch: Share, count: int) -> list[Share]:
    """Distribute the rows of a batch in turn to `count` shares, and cut each share to its longest row."""
    shares = []
    for first in range(min(count, batch[0].size(0))):
        source, source_mask, target, labels, target_mask = (tensor[first::count] for tensor in batch)
        sources, targets = (int(mask.sum(1).max()) for mask in (source_mask, target_mask))
        cut = (source[:, :sources], source_mask[:, :sources])
        shares.append((*cut, target[:, :targets], labels[:, :targets], target_mask[:, :targets]))
    return shares


class ReplicaPool:
    """Threads that run one share each, with independent random numbers and an equal number of cores."""

    def __init__(self, count: int, threads: int) -> None:
        each = max(1, threads // count)
        self._pool = ThreadPoolExecutor(count, "replica", initializer=torch.set_num_threads, initargs=(each,))

    def map(self, function: Callable[[int], float], items: Iterable[int]) -> list[float]:
        """Return the results of a function for some items, in their order."""
        return list(self._pool.map(function, items))

    def run(self, jobs: Sequence[Callable[[], HeadLoss]]) -> HeadLoss:
        """Run the jobs and return the sum of their losses, added in order.

        Dropout of job i depends on i and on the state of torch's generator.
        """
        seeds = torch.randint(0, 2**63 - 1, (len(jobs),)).tolist()
        futures = [self._pool.submit(_seeded, job, seed) for job, seed in zip(jobs, seeds, strict=True)]
        losses = [future.result() for future in futures]
        objective, nll, tokens = losses[0].objective, losses[0].nll, losses[0].tokens
        for loss in losses[1:]:
            objective, tokens = objective + loss.objective, tokens + loss.tokens
            nll = None if nll is None or loss.nll is None else nll + loss.nll
        routings = [loss.routing for loss in losses if loss.routing is not None]
        return HeadLoss(objective, nll, tokens, torch.stack(routings).sum(0) if routings else None)


def _seeded(job: Callable[[], HeadLoss], seed: int) -> HeadLoss:
    with seeded_masks(seed):
        return job()
