"""What int8 costs in precision: log-probabilities and BLEU, with paired bootstrap intervals, and processor time.

For each case MODEL:SOURCE:TARGET[:LANGUAGE] it compares, with the plain fp32 model:

- int8 throughout, which `--dtype int8` uses;
- int8 except for the keys and values of the memory;
- int8 in the decoder alone.

Errors are root mean squares over the log-probabilities of tokens with a probability above e⁻⁷, of the references'
prefixes. BLEU is that of beam search; its difference from fp32 is given with the 95 % interval of a paired bootstrap.

    python benchmarks/int8_precision.py models/en-de:test.en:test.de [CASE …] [--beam 5] [--lines 1000]
"""

import argparse
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from sacrebleu import BLEU

import translume
from translume.decoding.step import Stepper
from translume.engine import Engine
from translume.engine.layers import Layers
from translume.engine.packing import LINEAR, Dtype

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
RESAMPLES = 20 if SHORT else 300
LIKELY = -7.0
SCORED_LINES = 5 if SHORT else 60


def pack(engine: Engine, encoder: Dtype, key_values: Dtype) -> None:
    """Pack the encoder, and the keys and values of the memory, for the kernels."""
    engine._sources = None  # reads sources with the parts that are replaced here
    engine.encoder = Layers(engine.network, "encoder", encoder)
    layers = range(engine.decoder.shape.count)
    kind = LINEAR[key_values]
    engine.key_values = [kind(kind.pack(*engine.decoder.padded(engine.network.key_value(number)))) for number in layers]


@torch.inference_mode()
def rms_error(translator: translume.Translator, engine: Engine, pairs: Sequence[tuple[str, str]]) -> float:
    """Return the error of the engine's log-probabilities on the prefixes of references."""
    checkpoint, total, count = translator.checkpoint, 0.0, 0
    steppers: tuple[Stepper, Stepper] = engine, checkpoint.model
    for source, target in pairs:
        ids = torch.tensor([[*checkpoint.source_tokenizer.encode(source), checkpoint.source_tokenizer.specials.eos]])
        prefix = torch.tensor([[checkpoint.target_tokenizer.specials.bos, *checkpoint.target_tokenizer.encode(target)]])
        mask = torch.ones_like(ids, dtype=torch.bool)
        states = [each.start(ids, mask) for each in steppers]
        for end in range(1, prefix.size(1) + 1):
            (ours, first), (plain, second) = (
                each.step(prefix[:, :end], state) for each, state in zip(steppers, states, strict=True)
            )
            states = [first, second]
            wanted = plain.log_probs()
            likely = wanted > LIKELY
            total += float((ours.log_probs() - wanted)[likely].square().sum())
            count += int(likely.sum())
    return float((total / max(count, 1)) ** 0.5)


def interval(found: Sequence[str], plain: Sequence[str], references: Sequence[str], metric: BLEU) -> tuple[float, ...]:
    """Return the difference of BLEU, found − plain, and the ends of its 95 % interval by a paired bootstrap."""
    statistics = [metric._extract_corpus_statistics(each, [references]) for each in (found, plain)]
    draw, differences = random.Random(1), []

    def difference(rows: Sequence[int]) -> float:
        scores = [metric._aggregate_and_compute([each[row] for row in rows]).score for each in statistics]
        return float(scores[0] - scores[1])

    everything = range(len(references))
    for _ in range(RESAMPLES):
        differences.append(difference(draw.choices(everything, k=len(references))))
    differences.sort()
    return difference(everything), differences[RESAMPLES // 40], differences[-RESAMPLES // 40 - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL:SOURCE:TARGET[:LANGUAGE]")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--lines", type=int, default=20 if SHORT else 1000)
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's tokenizer")
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in options.cases:
        model, source, target, *language = case.split(":")
        pairs = list(
            zip(
                *(Path(each).read_text(encoding="utf-8").splitlines()[: options.lines] for each in (source, target)),
                strict=True,
            )
        )
        measure(model, pairs, {"to": language[0]} if language else {}, options)


def measure(folder: str, pairs: Sequence[tuple[str, str]], words: dict[str, str], options: argparse.Namespace) -> None:
    """Print a row for each way to compute."""
    sources, references = zip(*pairs, strict=True)
    plain = translume.load(folder, device="cpu")
    translators = {"fp32": plain.compile("fp32")}
    kinds: dict[str, tuple[Dtype, Dtype]] = {
        "int8 throughout": ("int8", "int8"),
        "keys and values in fp32": ("int8", "fp32"),
        "decoder alone": ("fp32", "fp32"),
    }
    for name, parts in kinds.items():
        translators[name] = plain.compile("int8")
        pack(engine_of(translators[name]), *parts)
    chinese = any("\u4e00" <= letter <= "\u9fff" for letter in references[0])
    metric = BLEU(tokenize="zh" if chinese else options.tokenize, force=True)
    texts, seconds = {}, dict.fromkeys(translators, float("inf"))
    for _ in range(options.rounds):
        for name, translator in translators.items():
            begun = time.process_time()
            found = translator.translate_all(sources, beam=options.beam, **words)
            texts[name] = [each.text for each in found]
            seconds[name] = min(seconds[name], time.process_time() - begun)
    print(f"{folder} {' '.join(words.values())}, {len(pairs):,} lines, beam {options.beam}")
    for name, found in texts.items():
        score = metric.corpus_score(found, [references]).score
        delta, low, high = interval(found, texts["fp32"], references, metric)
        scored = (
            0.0
            if words
            else rms_error(plain, engine_of(translators[name]), pairs[:: max(1, len(pairs) // SCORED_LINES)])
        )
        same = sum(one == other for one, other in zip(found, texts["fp32"], strict=True)) / len(found)
        print(
            f"  {name}: BLEU {score:.2f}, difference {delta:+.2f} ({low:+.2f} to {high:+.2f}), same texts {same:.1%}, "
            f"rms error {scored:.4f} nats, {seconds[name]:.2f} s"
        )


def engine_of(translator: translume.Translator) -> Engine:
    engine = translator.models.members[0].engine
    assert isinstance(engine, Engine)
    return engine


if __name__ == "__main__":
    main()
