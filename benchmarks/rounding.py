"""Train one model twice in one process, with gradients that are summed in two orders, in fp32 and in fp64.

The second run computes each batch in two shares of its rows, as two processes do, and adds their gradients. If the
difference of the weights comes from rounding, it shrinks with fp64 by the ratio of the two precisions, 2²⁹; an error in
the second run would stay. A third run changes the initial weights by one part in 2²³ instead. The corpus and the
settings are those of world_sizes.py.

    python benchmarks/rounding.py [--updates 200] [--width 64]
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from world_sizes import KEY_BIASES, write_run

from translume.config import Config
from translume.data.batch import Batch
from translume.model import HeadLoss
from translume.training import Progress, train
from translume.training.data_parallel import shares_of
from translume.training.optimisation import Updater

Change = Callable[[Updater], None]


def in_shares(updater: Updater) -> None:
    """Compute each batch in two shares, one after the other."""

    def add(batch: Batch) -> HeadLoss:
        tensors = (batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask)
        gradients, losses = updater.gradients(), []
        before, whole = [each.clone() for each in gradients], [torch.zeros_like(each) for each in gradients]
        for share in shares_of(tensors, 2):
            updater.clear()
            losses.append(updater._differentiate(updater.model, share))
            for gradient, total in zip(gradients, whole, strict=True):
                total += gradient
        for gradient, kept, total in zip(gradients, before, whole, strict=True):
            gradient.copy_(kept + total)
        objective, nll = torch.zeros(()), torch.zeros(())
        for loss in losses:
            assert loss.nll is not None
            objective, nll = objective + loss.objective, nll + loss.nll
        return HeadLoss(objective, nll, sum(loss.tokens for loss in losses))

    patch.object(updater, "add", add).start()


def nudged(updater: Updater) -> None:
    """Multiply the initial weights by 1 ± 2⁻²³."""
    draw = torch.Generator().manual_seed(5)
    for flat in updater._flats:
        signs = torch.randint(0, 2, flat.master.shape, generator=draw) * 2 - 1
        flat.master.data *= 1 + signs * 2.0**-23


def run(folder: Path, name: str, change: Change | None) -> tuple[dict[int, dict[str, Tensor]], float]:
    """Train. Return the weights after each tenth of the updates, by their number, and the last loss."""
    made: list[Updater] = []
    original = Updater.__init__

    def remember(self: Updater, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made.append(self)

    weights: dict[int, dict[str, Tensor]] = {}
    loss = 0.0
    with patch.object(Updater, "__init__", remember):
        for event in train(Config.read(folder / "run.toml"), folder / name, threads=1):
            if change is not None and made:
                change(made[0])
                change = None
            if isinstance(event, Progress):
                loss = event.loss
                if event.update % (event.updates // 10) == 0:
                    values = made[0].parameters_fp32()
                    weights[event.update] = {key: value.detach().double().clone() for key, value in values.items()}
    return weights, loss


def difference(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """Return the relative difference of two models, as world_sizes.py does."""
    names = [name for name in one if not name.endswith(KEY_BIASES)]
    distance = sum(float((two[name] - one[name]).square().sum()) for name in names)
    return float((distance / sum(float(one[name].square().sum()) for name in names)) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=2048)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_run(folder, options.updates, (options.width, 3), options.max_tokens, "none")
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            first, loss = run(folder, f"{dtype}-whole", None)
            for name, change in (("two shares", in_shares), ("initial weights · (1 ± 2⁻²³)", nudged)):
                found, other = run(folder, f"{dtype}-{change.__name__}", change)
                apart = ", ".join(f"{update}: {difference(first[update], found[update]):.1e}" for update in first)
                print(f"{dtype}, {name}: weights differ by {apart}; losses {loss:.9f} and {other:.9f}", flush=True)


if __name__ == "__main__":
    main()
