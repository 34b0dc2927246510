"""Measure the cost of the output layer: the loss with its gradients, and the ten best next tokens of a step.

Prints two tables; with --json, one object on one line. Training: time of forward and backward, memory beyond the
inputs, the weights and the gradient of the weights, and errors against fp64, for our softmax_loss and for PyTorch's
functions. Each method and vocabulary runs in a separate process. Rounds go through all of them in turn, and a ratio is
the median of the rounds' ratios, of ours in its faster precision and the best other. `products` is the time as a
multiple of h·Wᵀ, g·W and gᵀ·h alone at the fastest fp32 matrix product seen in the run. Before timing, losses must be
equal: to 1e-4 relative in fp32, to 1e-2 in bf16.

Losses are sums, as in training (any other factor makes ours copy the gradient of the weights). Errors are those of the
nll, and of the gradients in the Frobenius norm, over as many rows as fp64 can process quickly (at most 4096 x 10000
logits). Memory is the peak resident memory (VmHWM, reset before the step) less the memory before the step and one
gradient of the weights. With one thread, time is processor time, which other processes on the core disturb less;
otherwise it is wall-clock time. `chunked` is torch's F.linear_cross_entropy: with its own chunks, which are so small
for a large V that it is skipped above 40,000, and with chunks of as many rows as ours. `adaptive` is a different model,
listed for its time and memory only.

Decoding: `topk(10)` of a distribution over 64 rows of logits, by torch and with the engine's kernels, against
log_softmax and topk; ids must be bit-equal.

    python benchmarks/head_cost.py [--vocabularies 10000 32000 128000 256000] [--rows 4096] [--rounds 3] [--json]
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from translume.belief import Logits
from translume.engine.logits import summarize_logits
from translume.heads.chunked_cross_entropy import chunk_rows, softmax_loss
from translume.kernels import loading
from translume.kernels.cpu import multiplies_bf16
from translume.model import LossOptions

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
WIDTH = 512
OURS = ("ours", "ours, bf16")
EXACT = (*OURS, "fp32", "bf16", "chunked", "chunked, our rows")
WAYS = (*EXACT, "adaptive")
OWN_CHUNKS_UP_TO = 40_000
LOGITS_AT_ONCE = 1 << 28
"""The plain way holds three or four such matrices: rows of the largest vocabulary are cut to this."""
BELIEFS, BEST = 64, 10


def clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def inputs(vocabulary: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, weights (the standard deviation of the logits is 1) and labels, Zipf-distributed."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, WIDTH, generator=generator)
    weight = torch.randn(vocabulary, WIDTH, generator=generator).mul_(WIDTH**-0.5)
    labels = (torch.rand(rows, generator=generator) * math.log(vocabulary)).exp().long().clamp_(0, vocabulary - 1)
    return hidden.requires_grad_(), weight.requires_grad_(), labels


def loss_of(way: str, vocabulary: int, rows: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function that computes the summed nll from hidden states, weights and labels."""
    if way == "ours":
        return lambda h, w, y: softmax_loss(h, w, None, y, LossOptions()).objective
    if way == "ours, bf16":
        return lambda h, w, y: softmax_loss(h.bfloat16(), w.bfloat16(), None, y, LossOptions()).objective
    if way in ("fp32", "bf16"):

        def plain(h: Tensor, w: Tensor, y: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "bf16"):
                return F.cross_entropy(F.linear(h, w), y, reduction="sum")

        return plain
    if way == "adaptive":
        head = torch.nn.AdaptiveLogSoftmaxWithLoss(WIDTH, vocabulary, [vocabulary // 10, vocabulary // 3])
        return lambda h, w, y: head(h, y).loss * len(y)
    options = torch.nn.LinearCrossEntropyOptions()
    if way == "chunked, our rows":
        size = min(chunk_rows(vocabulary), rows)
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=size, chunking_method=None)
    return lambda h, w, y: F.linear_cross_entropy(h, w, y, reduction="sum", options=options)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}: this benchmark needs Linux")


def peak_beyond(step: Callable[[], None]) -> int | None:
    """Return the bytes of resident memory that a step adds at its peak; None if they cannot be read."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = _status("VmRSS")
    step()
    return _status("VmHWM") - before


def errors(way: str, vocabulary: int, rows: int) -> dict[str, float]:
    """Return the errors against fp64, which is computed a few rows at a time."""
    hidden, weight, labels = inputs(vocabulary, rows)
    loss = loss_of(way, vocabulary, rows)(hidden, weight, labels)
    torch.autograd.backward(loss)
    total = 0.0
    h, w = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    for start in range(0, rows, 512):
        part = F.cross_entropy(F.linear(h[start : start + 512], w), labels[start : start + 512], reduction="sum")
        torch.autograd.backward(part)
        total += float(part.detach())
    found = {"loss": abs(float(loss.detach()) - total) / total}
    for name, mine, truth in (("hidden", hidden.grad, h.grad), ("weight", weight.grad, w.grad)):
        assert mine is not None
        assert truth is not None
        found[name] = float((mine - truth).norm() / truth.norm())
    return found


def work(way: str, vocabulary: int, rows: int) -> None:
    """Run a contestant: print its memory and errors, then answer every line of input with the seconds of a step."""
    hidden, weight, labels = inputs(vocabulary, rows)
    loss = loss_of(way, vocabulary, rows)

    def step() -> None:
        hidden.grad = weight.grad = None
        torch.autograd.backward(loss(hidden, weight, labels))

    torch.autograd.backward(loss(hidden[:1], weight, labels[:1]))  # load libraries
    hidden.grad = weight.grad = None
    memory = peak_beyond(step)
    if memory is not None and way != "adaptive":
        memory -= 4 * weight.numel()
    hidden.grad = weight.grad = None
    checked = max(128, min(rows, 4096 * 10_000 // vocabulary))
    found = {} if way == "adaptive" else errors(way, vocabulary, checked)
    print(json.dumps({"memory": memory, "checked_rows": checked, "errors": found}), flush=True)
    for _ in sys.stdin:
        begun = clock()
        step()
        print(clock() - begun, flush=True)
        hidden.grad = weight.grad = None


class Contestant:
    """A worker process that runs a step on request."""

    def __init__(self, way: str, vocabulary: int, rows: int, threads: int) -> None:
        numbers = ["--vocabularies", str(vocabulary), "--rows", str(rows), "--threads", str(threads)]
        command = [sys.executable, __file__, "--worker", way, *numbers]
        self.way = way
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds: list[float] = []
        self.facts: dict[str, Any] = json.loads(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.way} did not run")
        return line

    def run(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.seconds.append(float(self._answer()))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def product_rate() -> float:
    """Measure the FLOP/s of the fastest large fp32 product."""
    left, right = torch.randn(2048, 2048), torch.randn(2048, 2048)
    seconds = []
    for _ in range(4):
        begun = clock()
        torch.mm(left, right)
        seconds.append(clock() - begun)
    return 2 * 2048**3 / min(seconds)


def train(vocabulary: int, rows: int, rounds: int, threads: int) -> dict[str, Any]:
    """Return one vocabulary's part of the table of training."""
    rows = min(rows, max(128, LOGITS_AT_ONCE // vocabulary // 128 * 128))
    ways = [way for way in WAYS if way != "chunked" or vocabulary <= OWN_CHUNKS_UP_TO]
    if not multiplies_bf16():  # a processor without such instructions converts every number
        ways.remove("ours, bf16")
    players = [Contestant(way, vocabulary, rows, threads) for way in ways]
    for player in players:
        allowed = 1e-2 if "bf16" in player.way else 1e-4
        if player.facts["errors"].get("loss", 0.0) > allowed:
            raise SystemExit(f"{player.way} at V = {vocabulary}: its loss is wrong by {player.facts['errors']['loss']}")
    rates = []
    for _ in range(rounds):
        rates.append(product_rate())
        for player in players:
            player.run()
    for player in players:
        player.stop()
    ideal = 6 * rows * WIDTH * vocabulary / max(rates)
    ours, others = (
        min(
            (player for player in players if player.way in EXACT and (player.way in OURS) == own),
            key=lambda player: statistics.median(player.seconds),
        )
        for own in (True, False)
    )
    ratios = sorted(b / a for a, b in zip(ours.seconds, others.seconds, strict=True))
    return {
        "vocabulary": vocabulary, "rows": rows, "ratio": statistics.median(ratios), "range": [ratios[0], ratios[-1]],
        "best": ours.way, "best_other": others.way,
        "ceiling_gflops": max(rates) / 1e9, "chunk_rows": min(chunk_rows(vocabulary), rows),
        "ways": {
            player.way: {
                "seconds": statistics.median(player.seconds), "spread": [min(player.seconds), max(player.seconds)],
                "products": statistics.median(player.seconds) / ideal, **player.facts,
            }
            for player in players
        },
    }  # fmt: skip


def kernels_are_here() -> bool:
    """Return whether the engine has its C kernels on this machine."""
    try:
        loading.kernels()
    except loading.NativeError:
        return False
    return True


def decode(vocabulary: int, rounds: int) -> dict[str, Any]:
    """Return one vocabulary's row of the table of decoding."""
    logits = torch.randn(BELIEFS, vocabulary, generator=torch.Generator().manual_seed(1)) * 3
    ways: list[Callable[[], Tensor]] = [lambda: Logits(logits).topk(BEST).ids]
    ways.append(lambda: logits.log_softmax(-1).topk(BEST).indices)
    if kernels_are_here():
        ways.append(lambda: Logits(logits, summarize_logits(logits.numpy()).summary()).topk(BEST).ids)
    found = [way() for way in ways]
    if not all(torch.equal(each, found[0]) for each in found):
        raise SystemExit(f"the {BEST} best tokens differ at V = {vocabulary}")
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, kept in zip(ways, times, strict=True):
            begun = clock()
            way()
            kept.append(1000 * (clock() - begun))
    ratios = sorted(b / a for a, b in zip(times[0], times[1], strict=True))
    middle = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    engine = [b / a for a, b in zip(times[2], times[1], strict=True)] if len(times) > 2 else [math.nan]
    return {
        "engine_milliseconds": statistics.median(times[2]) if len(times) > 2 else math.nan,
        "ratio_engine": statistics.median(engine),
        "vocabulary": vocabulary, "ours_milliseconds": statistics.median(times[0]),
        "peer_milliseconds": statistics.median(times[1]), "ratio": statistics.median(ratios), "range": middle,
    }  # fmt: skip


def show_training(result: dict[str, Any]) -> None:
    low, high = result["range"]
    print(
        f"V = {result['vocabulary']:,}, {result['rows']:,} rows, ceiling {result['ceiling_gflops']:.0f} GFLOP/s:"
        f" {result['best']} is {result['ratio']:.2f} ({low:.2f}-{high:.2f}) times as fast as {result['best_other']}"
    )
    print(f"  {'way':18} {'s':>7} {'(range)':>15} {'products':>8} {'extra MB':>9} {'loss':>8} {'dh':>8} {'dW':>8}")
    for way, row in result["ways"].items():
        memory = "?" if row["memory"] is None else f"{row['memory'] / 1e6:,.0f}"
        wrong = "".join(f" {value:8.1e}" for value in row["errors"].values())
        spread = f"({row['spread'][0]:.2f}-{row['spread'][1]:.2f})"
        print(f"  {way:18} {row['seconds']:7.2f} {spread:>15} {row['products']:8.2f} {memory:>9}{wrong}", flush=True)


def features() -> str:
    """Return the processor's features for bf16 products."""
    path = Path("/proc/cpuinfo")
    flags = path.read_text(errors="replace").split() if path.exists() else []
    return ", ".join(name for name in ("avx512f", "avx512_bf16", "amx_bf16") if name in flags) or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [1000] if SHORT else [10_000, 32_000, 128_000, 256_000]
    parser.add_argument("--vocabularies", type=int, nargs="+", default=sizes)
    parser.add_argument("--rows", type=int, default=256 if SHORT else 4096, help="number of rows; fewer for a large V")
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=("training", "decoding"), help="one of the two tables")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.worker:
        work(options.worker, options.vocabularies[0], options.rows)
        return
    if not options.json:
        print(f"processor: {features()}; {options.threads} thread(s); d = {WIDTH}")
    steps, beliefs = [], []
    if options.only != "decoding":
        for vocabulary in options.vocabularies:
            steps.append(train(vocabulary, options.rows, options.rounds, options.threads))
            if not options.json:
                show_training(steps[-1])
    if options.only != "training":
        for vocabulary in options.vocabularies:
            beliefs.append(decode(vocabulary, 10 * options.rounds + 1))
            if not options.json:
                row = beliefs[-1]
                print(
                    f"topk({BEST}) of {BELIEFS} rows, V = {vocabulary:,}: {row['ours_milliseconds']:.2f} ms against"
                    f" {row['peer_milliseconds']:.2f}, ratio {row['ratio']:.2f} ({row['range'][0]:.2f}-"
                    f"{row['range'][1]:.2f}); with the engine's kernels {row['engine_milliseconds']:.2f} ms,"
                    f" ratio {row['ratio_engine']:.2f}", flush=True,
                )  # fmt: skip
    if options.json:
        result: dict[str, Any] = {f"ratio_training_{row['vocabulary']}": round(row["ratio"], 3) for row in steps}
        result |= {f"ratio_decoding_{row['vocabulary']}": round(row["ratio"], 3) for row in beliefs}
        result |= {f"ratio_decoding_engine_{row['vocabulary']}": round(row["ratio_engine"], 3) for row in beliefs}
        print(json.dumps({**result, "processor": features(), "training": steps, "decoding": beliefs}))


if __name__ == "__main__":
    main()
