"""Compare searches in the compiled kernels with the decoding loop in Python.

Each case is a random model (one in four has a copy head), an engine of it in which the kernels compute everything, a
strategy (greedy or beam search with length and coverage penalties, or sampling), rules (banned phrases and a forced
prefix among them), prompts, and sentences that enter the running search one group after another, some of which are
removed. Each hypothesis must equal that of the decoding loop for its sentence alone: tokens, scores and
log-probabilities, bit for bit.

    python benchmarks/fuzz_search.py [COUNT] [--first 0] [--seed 0]

`--first` is the number of the first search, a multiple of 12, to run a long test in parts.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from translume.checkpoint import build_model
from translume.config import CopySettings, ModelSettings, SoftmaxSettings
from translume.decoding import (
    BannedPhrases,
    BeamSearch,
    CompleteSearch,
    Coverage,
    ForbidTokens,
    Greedy,
    Hypothesis,
    LengthPenalty,
    MinimumLength,
    NoRepeatNgram,
    PromptedState,
    PromptedStep,
    RepetitionPenalty,
    Rule,
    Sampling,
    SearchError,
    Spellings,
    Strategy,
    TextPrefix,
    Truncation,
    search,
)
from translume.engine import Engine, build_engine
from translume.heads.copy import CopyHead
from translume.kernels.loading import kernels

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
POSITIONS, SOURCE_SIZE = 97, 17
LETTERS = "ab é"
MIN_LIMIT = 8
"""The forced prefix must fit every limit."""
PROGRESS_EVERY = 240
SEARCHES = 12
"""Searches with one model; building a model takes longer than a search."""


def engine_of(draw: Any) -> Engine:
    """Return an engine of a random model. Many tokens have equal weights, so that ties occur."""
    heads, size = draw.choice([1, 2]), draw.choice([29, 131, 523, 4099])
    head = draw.choice([SoftmaxSettings, SoftmaxSettings, SoftmaxSettings, CopySettings])(tie="none")
    settings = ModelSettings(
        head=head, width=32 * heads, attention_heads=heads, feed_forward=48, encoder_layers=1,
        decoder_layers=draw.choice([1, 2]), dropout=0.0, max_positions=POSITIONS, norm=draw.choice(["pre", "post"]),
        activation=draw.choice(["relu", "gelu", "swiglu", "geglu"]),
        positions=draw.choice(["sinusoidal", "learned", "rotary", "relative"]),
        decoder_mixing=(mixing := draw.choice(["attention", "attention", "ssru"])),
        head_width=draw.choice([0, 16]) if mixing == "attention" else 0,
    )  # fmt: skip
    torch.manual_seed(draw.randrange(1 << 30))
    model = build_model(settings, SOURCE_SIZE, size).eval()
    head_of: Any = model.head
    linear: Any = head_of.softmax if isinstance(head_of, CopyHead) else head_of
    with torch.no_grad():
        linear.weight.mul_(draw.choice([0.3, 3.0]))
        half = size // 2
        linear.weight[half : 2 * half - 3] = linear.weight[3:half].clone()
        linear.bias[2] += draw.choice([0.0, 1.0, 3.0])
        if isinstance(head_of, CopyHead):
            head_of.copied[:] = torch.randint(-1, size, (SOURCE_SIZE,))
            head_of.copied[9:13] = int(head_of.copied[5])
            head_of.gate.bias.fill_(draw.choice([-3.0, 0.0, 3.0]))
    dtype: Any = draw.choice(["fp32", "bf16", "int8"]) if kernels().int8 else "fp32"
    return build_engine(model, dtype)


def strategy_of(draw: Any, keys: torch.Tensor) -> Strategy:
    """Return a strategy for sentences with some keys [B], the same one for the same random numbers."""
    penalty = LengthPenalty(form=draw.choice(["power", "gnmt"]), exponent=draw.choice([0.0, 0.6, 1.0, -0.5]))
    width = draw.randint(1, 5)
    if draw.random() < 0.25:
        truncation = Truncation(
            top_k=draw.choice([0, 0, 5, 300]), top_p=draw.choice([1.0, 0.9, 0.3]), min_p=draw.choice([0.0, 0.1]),
            epsilon=draw.choice([0.0, 3e-3]), eta=draw.choice([0.0, 3e-3]),
        )  # fmt: skip
        return Sampling(keys=keys, width=width, nbest=draw.randint(1, width), seed=draw.randrange(1 << 64),
                        temperature=draw.choice([1.0, 0.3, 1.7]), truncation=truncation,
                        length_penalty=penalty)  # fmt: skip
    coverage = Coverage(weight=draw.choice([0.2, 3.0])) if draw.random() < 0.25 else None
    if width == 1:
        return Greedy(length_penalty=penalty, coverage=coverage)
    nbest, stop = draw.randint(1, width), draw.choice(["optimal", "first"])
    patience = draw.choice([0.3, 1.0, 2.5]) if stop == "first" else 1.0
    return BeamSearch(width=width, nbest=nbest, length_penalty=penalty, coverage=coverage, stop=stop,
                      patience=patience)  # fmt: skip


def rules_of(draw: random.Random, size: int, forced: list[bool]) -> Callable[[slice], list[Rule]]:
    """Return a function that gives the rules of some sentences. Only the rule of a forced prefix depends on them.

    forced: the sentences that begin with a prefix, if there is one among the rules.
    """
    # Each letter is a token, so that some tokens spell every text.
    spelled = [b"", b"", b"", *(each.encode() for each in LETTERS)]
    spelled += ["".join(draw.choices(LETTERS, k=draw.randint(1, 4))).encode() for _ in range(size - len(spelled))]
    prefix = "".join(draw.choices(LETTERS, k=draw.randint(1, 4))).encode()
    phrases = tuple(draw.sample(["ab", "é", "a b", "bbé"], draw.randint(1, 3)))
    forbidden, least, order = tuple(draw.sample(range(3, size), 2)), draw.randint(1, 9), draw.randint(1, 3)
    factor = draw.choice([1.2, 2.0])
    known: list[Callable[[], Rule]] = [  # tables of spellings take longer than a search
        lambda: BannedPhrases(spelled, phrases, str.isalpha),
        lambda: ForbidTokens(forbidden),
        lambda: MinimumLength(least),
        lambda: NoRepeatNgram(order),
        lambda: RepetitionPenalty(factor),
    ]
    chosen = [rule() for rule in draw.sample(known, draw.randint(0, len(known)))]
    if draw.random() < 0.7:
        return lambda some: chosen
    spellings = Spellings(spelled)
    return lambda some: [*chosen, TextPrefix(spellings, prefix, forced[some])]


def failed(draw: random.Random, engine: Engine) -> list[str]:
    """Return the faults of one search."""
    assert engine.head is not None
    count, size = draw.randint(1, 7), engine.head.outputs
    own = draw.random()  # of strategy and rules
    keys, forced = (
        torch.tensor([draw.randrange(1 << 63) for _ in range(count)]),
        [draw.random() < 0.5 for _ in range(count)],
    )
    rules = rules_of(draw, size, forced)
    strategy = strategy_of(random.Random(own), keys)
    covered = strategy.coverage is not None
    prompt = 0 if covered else draw.randint(0, 4)
    start = engine.start_with_attention if covered else engine.start
    lengths = [draw.randint(1, 23) for _ in range(count)]
    source = torch.randint(3, SOURCE_SIZE, (count, max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    limits = torch.tensor([draw.randint(MIN_LIMIT, 60) for _ in range(count)])
    prompts = torch.cat([torch.ones(count, 1, dtype=torch.long), torch.randint(3, size, (count, prompt))], 1)

    def words_of(some: slice) -> dict[str, Any]:
        return {"eos": 2, "strategy": strategy_of(random.Random(own), keys[some]), "rules": rules(some)}

    running: CompleteSearch | None = None
    found: dict[int, list[Hypothesis] | None] = {}
    gone: set[int] = set()

    def run(steps: int) -> None:
        assert running is not None
        found.update({number: running.hypotheses(number) for number in running.run(steps)})

    first = 0
    while first < count:
        some = slice(first, first + draw.randint(1, 3))
        state, words = start(source[some], mask[some]), words_of(some)
        begun = engine.complete_search(state, prompts=prompts[some], limits=limits[some], running=running, **words)
        if begun is None:
            return [f"not supported: {words}"]
        running, first = begun[0], some.stop
        run(draw.choice([0, 1, 1, 5, 30]))
        if draw.random() < 0.2 and (number := draw.randrange(min(first, count))) not in gone | found.keys():
            running.remove(number)
            gone.add(number)
    assert running is not None
    while running.live:
        run(draw.choice([1, 8, 99]))
    faults = [] if found.keys() | gone == set(range(count)) else ["a sentence was not given back"]
    for number, hypotheses in found.items():
        one = slice(number, number + 1)
        state, words = start(source[one, : lengths[number]], mask[one, : lengths[number]]), words_of(one)
        prompted = PromptedState(state, prompts[one])
        try:
            wanted = search(PromptedStep(engine.step), prompted, bos=1, limits=limits[one], **words)[0]
        except SearchError:
            wanted = None
        if hypotheses != wanted:
            faults.append(f"sentence {number} of {count}: {words}, prompt {prompt}, limits {limits.tolist()}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=12 if SHORT else 1000, help="number of searches")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faults, begun = 0, time.monotonic()
    for number in range(options.first, options.first + options.count):
        draw = random.Random(f"{options.seed} {number // SEARCHES}")
        if number % SEARCHES == 0:
            engine = engine_of(draw)
        torch.manual_seed(options.seed + number)
        for fault in failed(random.Random(f"{options.seed} {number} search"), engine):
            faults += 1
            print(f"search {number}: {fault}", flush=True)
        done = number - options.first + 1
        if done % PROGRESS_EVERY == 0:
            left = (time.monotonic() - begun) / done * (options.count - done)
            print(f"{done:,} of {options.count:,} searches, {faults:,} faults, {left:.0f} s left", file=sys.stderr)
    print(f"{options.count:,} searches, {faults:,} faults, {time.monotonic() - begun:.0f} s")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
