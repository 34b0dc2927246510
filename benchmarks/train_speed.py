"""Compare training speed with transformers' MarianMTModel of the same shape, on the same batches, in turns in one run.

    python benchmarks/train_speed.py [--shapes base small tiny base-32k] [--rounds 5] [--json]

Each contestant is a separate process, so that peak memory is measured separately. They take turns, round by round, and
the ratio is the median of the rounds' ratios. Transformers runs at its best setting on this machine: fp32 and bf16
autocast (unless its products are less than a third as fast), eager attention and SDPA are tried first. Ours runs at
`precision = "auto"`. Both use fused Adam, dropout 0.1 and label smoothing 0.1 on batches of 4,096 padded tokens with
Multi30k's lengths. Before timing, both models get the same weights and must have the same loss.

Target tokens exclude padding and include the end token. FLOPs count matrix products of such tokens only, a multiply-add
as two, and backward as twice forward. Utilisation is relative to the fastest matrix product measured in the run.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENS = 4096
PAD, BOS, EOS = 0, 1, 2


@dataclass(frozen=True)
class Shape:
    width: int
    heads: int
    feed_forward: int
    layers: int
    vocabulary: int

    def forward_flops(self, sources: list[int], targets: list[int]) -> int:
        d, f, n = self.width, self.feed_forward, self.layers
        a_source = n * 2 * (4 * d * d + 2 * d * f) + n * 4 * d * d
        a_target = n * 2 * (6 * d * d + 2 * d * f) + 2 * d * self.vocabulary
        attention = sum(4 * d * n * (s * s + t * t + s * t) for s, t in zip(sources, targets, strict=True))
        return sum(sources) * a_source + sum(targets) * a_target + attention


SHAPES = {
    "base": Shape(512, 8, 2048, 6, 10_000),
    "base-32k": Shape(512, 8, 2048, 6, 32_000),
    "small": Shape(256, 4, 1024, 3, 8_000),
    "tiny": Shape(128, 4, 256, 4, 10_000),
}
SETTINGS = [(dtype, attention) for dtype in ("fp32", "bf16") for attention in ("eager", "sdpa")]


def lengths(count: int) -> list[tuple[int, int]]:
    """Return source and target lengths like Multi30k's, in subwords (log-normal, correlated), with the end token."""
    draw = random.Random(1)
    pairs = []
    for _ in range(count):
        source = min(max(round(draw.lognormvariate(2.55, 0.32)), 4), 60)
        target = min(max(round(source * draw.lognormvariate(0.02, 0.18)), 4), 60)
        pairs.append((source + 1, target + 1))
    return pairs


def batches(vocabulary: int, count: int) -> list[dict[str, Any]]:
    """Return batches of sentences of similar length, at most TOKENS padded tokens on the longer side, shuffled."""
    import torch

    pairs = sorted(lengths(29_000), key=lambda pair: (pair[1], pair[0]))
    groups: list[list[tuple[int, int]]] = [[]]
    width = 0
    for pair in pairs:
        width = max(width, *pair)
        if groups[-1] and width * (len(groups[-1]) + 1) > TOKENS:
            groups.append([])
            width = max(pair)
        groups[-1].append(pair)
    random.Random(2).shuffle(groups)
    generator = torch.Generator().manual_seed(3)
    made = []
    for group in groups[:count]:
        sides = []
        for side in (0, 1):
            sizes = torch.tensor([pair[side] for pair in group])[:, None]
            ids = torch.randint(4, vocabulary, (len(group), int(sizes.max())), generator=generator)
            places = torch.arange(ids.size(1))
            sides.append(ids.masked_fill(places == sizes - 1, EOS).masked_fill(places >= sizes, PAD))
        source, labels = sides
        target = torch.cat([torch.full((len(group), 1), BOS), labels[:, :-1]], 1)
        target = target.masked_fill(target == EOS, PAD)
        made.append({"source": source, "target": target, "labels": labels, "group": group})
    return made


def ours(shape: Shape, precision: str) -> Iterator[int]:
    """Run one update per item and yield its number of target tokens."""
    import torch

    from translume.config import TrainingSettings
    from translume.kernels.allocator import keep_freed_memory
    from translume.model import LossOptions
    from translume.training.optimisation import Updater
    from translume.training.precision import choose_precision

    keep_freed_memory()
    settings = TrainingSettings(optimizer="adam", label_smoothing=0.1, clip_norm=0.0)
    data = [ours_batch(batch) for batch in batches(shape.vocabulary, 40)]

    chosen = choose_precision(precision, torch.device("cpu"))  # type: ignore[arg-type]  # from a command line
    model, device = build_ours(shape).train(), torch.device("cpu")
    updater = Updater(model, settings, options=LossOptions(0.1), precision=chosen, device=device)
    yield 0
    while True:
        for batch in data:
            loss = updater.add(batch)
            updater.update(loss.tokens, 3e-4)
            yield loss.tokens


def settings_of(shape: Shape, dropout: float = 0.1) -> Any:
    from translume.config import ModelSettings

    return ModelSettings(
        width=shape.width, feed_forward=shape.feed_forward, encoder_layers=shape.layers, decoder_layers=shape.layers,
        attention_heads=shape.heads, norm="post", dropout=dropout,
    )  # fmt: skip


def build_ours(shape: Shape, dropout: float = 0.1) -> Any:
    from translume.checkpoint import build_model

    return build_model(settings_of(shape, dropout), shape.vocabulary, shape.vocabulary)


def ours_batch(batch: dict[str, Any]) -> Any:
    from translume.data.batch import Batch

    mask = batch["labels"] != PAD
    return Batch(
        source=batch["source"], source_mask=batch["source"] != PAD, target=batch["target"], labels=batch["labels"],
        target_mask=mask, lines=tuple(range(len(mask))), tokens=int(mask.sum()),
    )  # fmt: skip


def build_theirs(shape: Shape, attention: str, dropout: float = 0.1) -> Any:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=shape.vocabulary, d_model=shape.width, encoder_layers=shape.layers, decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads, decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.feed_forward, decoder_ffn_dim=shape.feed_forward, dropout=dropout,
        attention_dropout=0.0, activation_dropout=0.0, activation_function="relu", scale_embedding=True,
        max_position_embeddings=256, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS,
        forced_eos_token_id=EOS, share_encoder_decoder_embeddings=True, tie_word_embeddings=True,
    )  # fmt: skip
    model = MarianMTModel(config)
    model.set_attn_implementation(attention)
    return model


def their_loss(model: Any, batch: dict[str, Any], dtype: str) -> Any:
    import torch
    import torch.nn.functional as F

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        mask = (batch["source"] != PAD).long()
        logits = model(
            input_ids=batch["source"], attention_mask=mask, decoder_input_ids=batch["target"], use_cache=False
        ).logits
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=PAD, label_smoothing=0.1)


def theirs(shape: Shape, dtype: str, attention: str) -> Iterator[int]:
    """Run one update per item and yield its number of target tokens."""
    import torch

    model = build_theirs(shape, attention).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    data = batches(shape.vocabulary, 40)
    counts = [int((batch["labels"] != PAD).sum()) for batch in data]
    yield 0
    while True:
        for batch, count in zip(data, counts, strict=True):
            optimizer.zero_grad(set_to_none=True)
            their_loss(model, batch, dtype).backward()
            optimizer.step()
            yield count


def check_equal(shape: Shape) -> float:
    """Return |Δ| of the two models' losses per token with the same weights and no dropout; raise above 1e-4."""
    import torch

    from translume.interchange.huggingface.bart import Marian

    torch.manual_seed(1)
    model, peer = build_ours(shape, 0.0).eval(), build_theirs(shape, "eager", 0.0).eval()
    model.load_state_dict(Marian().weights_from(peer.state_dict(), settings_of(shape)), strict=False)
    batch = batches(shape.vocabulary, 1)[0]
    from translume.model import LossOptions

    mine = ours_batch(batch)
    with torch.no_grad():
        loss = model.loss(mine.source, mine.source_mask, mine.target, mine.labels, mine.target_mask, LossOptions(0.1))
        difference: float = abs(float(loss.objective) / loss.tokens - float(their_loss(peer, batch, "fp32")))
    if difference > 1e-4:
        raise SystemExit(f"the two models differ: |Δ loss| = {difference:.2e}")
    return difference


def work(arguments: argparse.Namespace) -> None:
    """Run a contestant: answer every line "N" on its input with the seconds and tokens of N updates, as JSON."""
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    shape = SHAPES[arguments.shape]
    kind, *settings = arguments.worker.split(":")
    steps = ours(shape, settings[0]) if kind == "ours" else theirs(shape, settings[0], settings[1])
    next(steps)
    print("ready", flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        tokens = sum(next(steps) for _ in range(int(line)))
        seconds = time.perf_counter() - begun
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "tokens": tokens, "memory": memory}), flush=True)


class Contestant:
    """A worker process that runs updates on request."""

    def __init__(self, name: str, shape: str, threads: int) -> None:
        command = [sys.executable, __file__, "--worker", name, "--shapes", shape, "--threads", str(threads)]
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rates: list[float] = []
        self.memory = 0.0
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{name} did not start")

    def run(self, updates: int) -> float:
        """Return tokens per second over `updates` updates."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{updates}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.memory = answer["memory"]
        return float(answer["tokens"] / answer["seconds"])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def ceiling(threads: int) -> dict[str, float]:
    """Return the fastest matrix product in GFLOP/s, by dtype."""
    import torch

    torch.set_num_threads(threads)
    best: dict[str, float] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        rates: list[float] = []
        for rows, inner, columns in ((4096, 512, 512), (4096, 512, 2048), (4096, 2048, 512), (2048, 2048, 2048)):
            if rates and max(rates) < best.get("fp32", 0) / 3:  # bf16 that the processor only emulates takes minutes
                break
            left, right = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
            out = torch.empty(rows, columns, dtype=dtype)
            for _ in range(8):
                begun = time.perf_counter()
                torch.mm(left, right, out=out)
                rates.append(2 * rows * inner * columns / (time.perf_counter() - begun) / 1e9)
        best[name] = max(rates)
    return best


def compare(name: str, rounds: int, threads: int, updates: int) -> dict[str, Any]:
    """Return one shape's row of the table."""
    shape = SHAPES[name]
    difference = check_equal(shape)
    trials = {}
    peak = ceiling(threads)
    for dtype, attention in SETTINGS:
        if peak[dtype] < max(peak.values()) / 3:
            continue
        contestant = Contestant(f"theirs:{dtype}:{attention}", name, threads)
        contestant.run(1)
        trials[f"{dtype} {attention}"] = (contestant.run(max(1, updates // 2)), contestant.name)
        contestant.stop()
    best = max(trials, key=lambda key: trials[key][0])
    players = [Contestant("ours:auto", name, threads), Contestant(trials[best][1], name, threads)]
    for player in players:
        player.run(2)
    for _ in range(rounds):
        for player in players:
            player.rates.append(player.run(updates))
    mine, peer = players
    ratios = sorted(a / b for a, b in zip(mine.rates, peer.rates, strict=True))
    for player in players:
        player.stop()
    flops = [
        3 * shape.forward_flops([s for s, _ in b["group"]], [t for _, t in b["group"]]) / sum(t for _, t in b["group"])
        for b in batches(shape.vocabulary, 40)
    ]
    rate = statistics.median(mine.rates)
    used = rate * statistics.mean(flops) / 1e9
    return {
        "shape": name, "ours": rate, "peer": statistics.median(peer.rates), "peer_setting": best,
        "ratio": statistics.median(ratios), "ratio_range": [ratios[0], ratios[-1]], "difference": difference,
        "ours_memory_mib": mine.memory, "peer_memory_mib": peer.memory, "utilisation": used / max(peak.values()),
        "peer_utilisation": used / max(peak.values()) * statistics.median(peer.rates) / rate,
        "ceiling_gflops": peak, "trials": {key: value[0] for key, value in trials.items()},
    }  # fmt: skip


def main() -> None:
    short = bool(os.environ.get("TRANSLUME_SHORT"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", "--shape", nargs="+", choices=SHAPES, default=["tiny"] if short else list(SHAPES))
    parser.add_argument("--rounds", type=int, default=1 if short else 5)
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--updates", type=int, default=0, help="updates per round; 0: as many as take some seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
    if arguments.worker:
        arguments.shape = arguments.shapes[0]
        work(arguments)
        return
    rows = []
    if not arguments.json:
        print(f"{'shape':9} {'ours tok/s':>10} {'peer tok/s':>10} {'ratio':>6} {'(range)':>13}  {'MFU':>5} {'peer':>5}"
              f" {'MiB':>6} {'peer':>6}  peer's best setting")  # fmt: skip
    for name in arguments.shapes:
        updates = arguments.updates or {"base": 2, "base-32k": 2, "small": 6, "tiny": 12}[name]
        row = compare(name, arguments.rounds, arguments.threads, updates)
        rows.append(row)
        if not arguments.json:
            low, high = row["ratio_range"]
            print(
                f"{name:9} {row['ours']:10.0f} {row['peer']:10.0f} {row['ratio']:6.2f} {f'({low:.2f}-{high:.2f})':>13}"
                f"  {row['utilisation']:5.0%} {row['peer_utilisation']:5.0%} {row['ours_memory_mib']:6.0f}"
                f" {row['peer_memory_mib']:6.0f}  {row['peer_setting']}",
                flush=True,
            )
    if arguments.json:
        result: dict[str, Any] = {f"ratio_{row['shape']}": round(row["ratio"], 3) for row in rows}
        print(json.dumps({**result, "rows": rows}))


if __name__ == "__main__":
    main()
