"""Measure the cost of inspection: of supporting it while translating, and of a trace.

Off: translate texts with the decoding loop, and with a loop that keeps nothing that only inspection reads (token
log-probabilities, score terms, attention). Both take turns, batch by batch, in one process. The ratio of a round is the
processor time of the reduced loop over that of the full loop (1: equal; larger is better for the full loop); the output
is the median over all rounds, with quartiles. `--before SRC` compares with another version of the package instead, each
in a process of its own.
On: trace a sentence of 25 tokens into 25 tokens at the base shape (width 512, 8 heads, 2048, 6 + 6 layers, V = 10,000)
with random weights: the default parts, then single parts and further methods.

Memory: `--memory S T` traces S source and T target tokens at the base shape with each part, each in a process of its
own: the most resident memory of the process, and how much of it the trace added. A part is stopped after 20 s of
processor time: by then it is among its blocks, which are all alike.

    python benchmarks/inspect_cost.py [--model MODEL] [--rounds 40] [--threads 1] [--before SRC] [--json]
    python benchmarks/inspect_cost.py --memory 1000 100 [--json]

Without MODEL the tiny shape (128, 4 heads, 256, 4 + 4) with random weights writes 25 tokens for each of 64 sentences.
"""

import argparse
import json
import math
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
TOKENS, SENTENCES, VOCABULARY, BEAM = 25, 64, 10_000, 5
SECONDS = 20
TINY = {"width": 128, "feed_forward": 256, "attention_heads": 4, "encoder_layers": 4, "decoder_layers": 4}
BASE = {"width": 512, "feed_forward": 2048, "attention_heads": 8, "encoder_layers": 6, "decoder_layers": 6}


def translator_of(shape: dict[str, int], positions: int = 128) -> Any:
    """Return a translator with random weights, whose words are numbers."""
    import torch

    from translume.checkpoint import Checkpoint, build_model
    from translume.config import Config, ModelSettings, TokenizerSettings
    from translume.text import train_tokenizer
    from translume.translator import Translator

    words = " ".join(f"w{number}" for number in range(VOCABULARY))
    tokenizer = train_tokenizer(TokenizerSettings(kind="word", size=VOCABULARY, unknown="token"), [words])
    settings = ModelSettings(**shape, max_positions=positions)  # type: ignore[arg-type]  # only numbers
    torch.manual_seed(1)
    model = build_model(settings, len(tokenizer), len(tokenizer)).eval()
    limits = (f"decoding.max_length={TOKENS}", f"decoding.min_length={TOKENS}", "decoding.max_length_ratio=99")
    config = Config(model=settings).change(*limits, f"decoding.beam={BEAM}")
    return Translator(Checkpoint(config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer))


def loaded(model: str | None, threads: int) -> Any:
    """Return the translator to measure."""
    import torch

    from translume.translator import load

    torch.set_num_threads(threads)
    return translator_of(TINY) if model is None else load(model, device="cpu", dtype="fp32", threads=threads)


def sentences(translator: Any, count: int, length: int = TOKENS) -> list[str]:
    """Return sentences of known tokens; the last of `length` is the end token."""
    draw = random.Random(0)
    tokenizer = translator.checkpoint.source_tokenizer
    words = [piece.removeprefix("▁") for piece in tokenizer.pieces() if piece.startswith("▁") and len(piece) > 1]
    found: list[str] = []
    while len(found) < count:
        text = " ".join(draw.choice(words) for _ in range(length - 1))
        if len(tokenizer.encode(text)) == length - 1:
            found.append(text)
    return found


@contextmanager
def without_hooks() -> Iterator[None]:
    """Make the decoding loop keep nothing that only inspection reads, within the block."""
    import torch

    from translume.decoding import loop
    from translume.decoding.beam import Ending, Hypothesis, ScoreTerms

    own = loop.Search

    class Bare(loop.Search[Any]):
        def read(self, state: Any) -> None:
            pass

        def leave(self, rows: Any, count: int) -> Any:
            self.log_probs = self.log_probs[: self.tokens.size(0)]
            return super().leave(rows, count)

        def _append(self, rows: Any, going: Any) -> None:
            if rows is not None:
                self.tokens = self.tokens.index_select(0, rows)
            self.length += 1
            if self.length == self.tokens.size(1):
                self.tokens = torch.nn.functional.pad(self.tokens, (0, loop.CHUNK))
            self.tokens[:, self.length] = going.token.flatten()

        def _endings(self, candidates: Any, which: Any, first: Any, by: Any) -> list[Any]:
            scores, _ = self._scores(candidates)
            nowhere = scores.masked_fill(~which, -math.inf).view(*self.ended.shape, -1)
            self.best = torch.cat([self.best, nowhere], 2).topk(self.best.size(2), 2).values
            self.ended = self.ended + which.view(*self.ended.shape, -1).sum(2)
            sentence, place = which.nonzero(as_tuple=True)
            origin = candidates.origin[sentence, place]
            row = first[sentence, 0] + origin
            tokens = torch.cat([self.tokens[row, 1 : 1 + self.length], candidates.token[sentence, place, None]], 1)
            columns = (
                self.beam.sentences[sentence].tolist(),
                origin.tolist(),
                (place // self.each).tolist(),
                tokens.tolist(),
                candidates.log_prob[sentence, place].tolist(),
                scores[sentence, place].tolist(),
            )
            return [
                Ending(
                    sentence=number,
                    origin=parent,
                    group=group,
                    hypothesis=Hypothesis(
                        tokens=tuple(ids),
                        log_prob=log_prob,
                        log_probs=(),
                        score=score,
                        terms=no_terms,
                        finished_by=by,
                    ),
                )
                for number, parent, group, ids, log_prob, score in zip(*columns, strict=True)
            ]

    no_terms = ScoreTerms(total=0.0, divisor=1.0, coverage=0.0)
    loop.Search = Bare  # type: ignore[misc]  # within the block
    try:
        yield
    finally:
        loop.Search = own  # type: ignore[misc]  # as it was


def seconds_of(translator: Any, texts: Sequence[str]) -> tuple[float, list[str]]:
    """Return the processor time of translating, and the translations."""
    began = time.process_time()
    found = [each.text for each in translator.translate_all(texts, strategy="beam")]
    return time.process_time() - began, found


def quartiles(ratios: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {"ratio": middle, "ratio_low": low, "ratio_high": high}


def off(model: str | None, threads: int, rounds: int) -> dict[str, Any]:
    """Compare the decoding loop with the reduced one."""
    translator = loaded(model, threads)
    texts = sentences(translator, SENTENCES)
    own, bare = seconds_of(translator, texts)[1], []
    with without_hooks():
        bare = seconds_of(translator, texts)[1]
    assert own == bare, "the bare loop translates otherwise"
    ours, theirs = [], []
    for number in range(rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            if side:
                ours.append(seconds_of(translator, texts)[0])
            else:
                with without_hooks():
                    theirs.append(seconds_of(translator, texts)[0])
    ratios = [other / one for one, other in zip(ours, theirs, strict=True)]
    return {"against": "the loop without hooks", "seconds": statistics.median(ours), **quartiles(ratios)}


def off_before(model: str | None, threads: int, rounds: int, before: str) -> dict[str, Any]:
    """Compare this version with another one, each in a separate process."""
    sides = [worker(model, threads, source) for source in (None, before)]
    seconds: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            process = sides[side]
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            answer = float(process.stdout.readline())
            if number:
                seconds[side].append(answer)
    for process in sides:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    ratios = [other / one for one, other in zip(*seconds, strict=True)]
    return {"against": before, "seconds": statistics.median(seconds[0]), **quartiles(ratios)}


def worker(model: str | None, threads: int, source: str | None) -> "subprocess.Popen[str]":
    environment = dict(os.environ) if source is None else {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, __file__, "--work", "--threads", str(threads), *(["--model", model] if model else [])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def work(model: str | None, threads: int) -> None:
    """Translate at every line of standard input and print how long it took."""
    translator = loaded(model, threads)
    texts = sentences(translator, SENTENCES)
    for _ in sys.stdin:
        print(seconds_of(translator, texts)[0], flush=True)


def on(rounds: int) -> dict[str, dict[str, float]]:
    """Return the median wall-clock and processor time of a trace, by default and by its parts."""
    import translume
    from translume.inspection.tracing import DEFAULT_PARTS, PARTS

    translator = translator_of(BASE)
    source, target = sentences(translator, 2)
    more = [part for part in PARTS if part not in DEFAULT_PARTS and not (SHORT and part == "integrated-gradients")]
    ways: dict[str, tuple[str, ...]] = {"everything": DEFAULT_PARTS, "distributions only": ()}
    ways.update({part: (part,) for part in (*DEFAULT_PARTS, *more)})
    found = {}
    for name, show in ways.items():
        taken: list[tuple[float, float]] = []
        for _ in range(rounds if name != "integrated-gradients" else 1):
            began, worked = time.perf_counter(), time.process_time()
            try:
                translume.trace(translator, source, target, show=show).to_dict()  # type: ignore[arg-type]  # known parts
            except translume.SettingsError:
                break  # captum is not installed
            taken.append((time.perf_counter() - began, time.process_time() - worked))
        if taken:
            clock, processor = (statistics.median(each) for each in zip(*taken, strict=True))
            found[name] = {"seconds": clock, "processor_seconds": processor}
    return found


def traced(source: int, target: int, part: str) -> None:
    """Print the process's most memory before a trace with one part and after it, in MB."""
    import translume
    from translume.inspection.tracing import DEFAULT_PARTS

    translator = translator_of(BASE, positions=max(source, target) + 1)
    [text] = sentences(translator, 1, source)
    [wanted] = sentences(translator, 1, target)
    translume.trace(translator, "w1", "w1", show=())  # loads what a trace imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    show = {"everything": DEFAULT_PARTS, "distributions only": ()}.get(part, (part,))
    signal.signal(signal.SIGPROF, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    with suppress(KeyboardInterrupt):
        translume.trace(translator, text, wanted, show=show)  # type: ignore[arg-type]  # known parts
    signal.setitimer(signal.ITIMER_PROF, 0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"most_mb": after / 1024, "added_mb": (after - before) / 1024}))


def memory(source: int, target: int, threads: int) -> dict[str, dict[str, float]]:
    """Return the memory of a trace by its parts, each in a process of its own."""
    from translume.inspection.tracing import PARTS

    found = {}
    for part in ("distributions only", *PARTS, "everything"):
        command = [sys.executable, __file__, "--memory", str(source), str(target), "--part", part]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        began = time.perf_counter()
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout
        found[part] = {**json.loads(answer), "seconds": time.perf_counter() - began}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=2 if SHORT else 40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--before", metavar="SRC")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory", nargs=2, type=int, metavar=("S", "T"))
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.part:
        traced(options.memory[0], options.memory[1], options.part)
        return
    if options.memory:
        sizes = memory(options.memory[0], options.memory[1], options.threads)
        if options.json:
            print(json.dumps(sizes))
            return
        print(f"  {'':24} {'most MB':>9} {'added MB':>9} {'seconds':>9}")
        for name, size in sizes.items():
            print(f"  {name:24} {size['most_mb']:9.0f} {size['added_mb']:9.0f} {size['seconds']:9.1f}")
        return
    if options.work:
        work(options.model, options.threads)
        return
    if options.before:
        nothing = off_before(options.model, options.threads, options.rounds, options.before)
    else:
        nothing = off(options.model, options.threads, options.rounds)
    seconds = on(1 if SHORT else 5)
    if options.json:
        print(json.dumps({"off": nothing, "trace": seconds}))
        return
    print(f"translating without inspection, against {nothing['against']}, {options.rounds} rounds:")
    low, high = nothing["ratio_low"], nothing["ratio_high"]
    print(f"  ratio {nothing['ratio']:.3f} (quartiles {low:.3f} to {high:.3f}); {nothing['seconds']:.3f} s per round")
    print(f"the trace of {TOKENS} tokens into {TOKENS} at the base shape:")
    print(f"  {'':24} {'seconds':>9} {'of processor':>14}")
    for name, taken in seconds.items():
        print(f"  {name:24} {taken['seconds']:9.3f} {taken['processor_seconds']:14.3f}")


if __name__ == "__main__":
    main()
