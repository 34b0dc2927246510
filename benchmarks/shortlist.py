"""Compare two candidate lists for a source: a table of translations, and a selector learned from encoder states.

    python benchmarks/shortlist.py MODEL [--updates 2000] [--candidates 5 20 100] [--thresholds 0.01 0.001 0.0001]

MODEL is a folder whose model has a softmax head. Its weights stay unchanged. The table is computed from its training
pairs, and the learned selector is trained on its encoder's states for `--updates` updates of 32 pairs each. In a
training with `selector = "learned"` the selector's loss sends no gradient to the rest of the model either, but the
states change while it learns. Then every list is measured on the validation pairs; all lists include the frequent
tokens (`--frequent`).

size: mean number of candidates per sentence.  missed: share of the reference tokens, including end tokens, that are not
listed.  bleu: of `--sentences` validation sentences, with the model's [decoding] and [evaluation].  batch ms, alone ms:
milliseconds per sentence, all in one call and one per call; the fastest of `--rounds`, in which the heads take turns.
"""

import argparse
import copy
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

LEARNING_RATE, TOGETHER = 0.003, 32


def grouped(corpus: Any, seed: int) -> Iterator[list[int]]:
    """Return the numbers of pairs grouped by similar source length, in a shuffled order."""
    order = sorted(range(corpus.pairs), key=lambda number: len(corpus.source(number)))
    groups = [order[start : start + TOGETHER] for start in range(0, len(order), TOGETHER)]
    random.Random(seed).shuffle(groups)
    yield from groups


def batch(checkpoint: Any, corpus: Any, numbers: list[int]) -> tuple[torch.Tensor, ...]:
    """Return source ids and mask [B, S], and owners and labels [n] of the targets' tokens."""
    from translume.translator.planning import padded_arrays, tensors_of

    source, target = checkpoint.source_tokenizer.specials, checkpoint.target_tokenizer.specials
    ids = [[*corpus.source(number).tolist(), source.eos] for number in numbers]
    labels = [[*corpus.target(number).tolist(), target.eos] for number in numbers]
    owners = [row for row, each in enumerate(labels) for _ in each]
    arrays = tensors_of(padded_arrays(ids, source.pad), torch.device("cpu"))
    return *arrays, torch.tensor(owners), torch.tensor(list(chain(*labels)))


def learn(checkpoint: Any, head: Any, corpus: Any, updates: int) -> float:
    """Train the head's selector on states of the encoder with its dropout; return the seconds it took."""
    begun = time.perf_counter()
    optimizer = torch.optim.Adam(head.selector.parameters(), betas=(0.9, 0.98))
    encoder = checkpoint.model.encoder.train()
    groups = (group for seed in count() for group in grouped(corpus, seed))
    for update, numbers in enumerate(islice(groups, updates)):
        source, mask, owners, labels = batch(checkpoint, corpus, numbers)
        with torch.no_grad():
            memory = encoder(source, mask)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * update / updates))
        optimizer.zero_grad()
        (head.selector.loss(memory, mask, head.softmax.weight, owners, labels) / len(numbers)).backward()
        optimizer.step()
    encoder.eval()
    return time.perf_counter() - begun


def with_head(checkpoint: Any, settings: Any, data: Any) -> Any:
    """Return the checkpoint with a shortlist head of the same weights; `data` fills its table unless it is None."""
    from translume.heads.shortlist import ShortlistHead
    from translume.model import HeadSizes

    model = copy.deepcopy(checkpoint.model)
    old = model.head
    sizes = HeadSizes(
        width=old.weight.size(1), vocabulary=old.vocabulary, source_vocabulary=len(checkpoint.source_tokenizer)
    )
    settings = settings.model_copy(update={"bias": old.bias is not None})
    model.head = ShortlistHead(settings, sizes, old.weight)
    model.head.softmax.bias = old.bias
    if data is not None:
        model.head.learn(data)
    network = checkpoint.config.model.model_copy(update={"head": settings})  # the engine reads the head's settings
    config = checkpoint.config.model_copy(update={"model": network})
    return replace(checkpoint, config=config, model=model.eval())


def contenders(checkpoint: Any, corpus: Any, options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield a name and a checkpoint for each list."""
    from translume.config import ShortlistSettings
    from translume.model import HeadData

    pieces = checkpoint.source_tokenizer.pieces(), checkpoint.target_tokenizer.pieces()
    specials = checkpoint.target_tokenizer.specials
    marks = frozenset(each for each in (specials.pad, specials.bos, specials.eos, specials.unk) if each is not None)
    data = HeadData(
        corpus=corpus, source_pieces=pieces[0], target_pieces=pieces[1], end=specials.eos, specials=marks
    )  # fmt: skip
    yield "softmax", checkpoint
    tie = checkpoint.config.model.head.tie
    for each in options.candidates:
        chosen = ShortlistSettings(tie=tie, frequent=options.frequent, candidates=each)
        yield f"table, {each} a token", with_head(checkpoint, chosen, data)
    base = ShortlistSettings(tie=tie, selector="learned", frequent=options.frequent, rank=options.rank)
    learned = with_head(checkpoint, base, data)
    selector = learned.model.head.selector
    if options.selector is not None and options.selector.exists():
        selector.load_state_dict(load_file(options.selector))
    else:
        seconds = learn(learned, learned.model.head, corpus, options.updates)
        print(f"selector: {options.updates} updates, {seconds:.0f} s", file=sys.stderr, flush=True)
        if options.selector is not None:
            save_file(selector.state_dict(), options.selector)
    for threshold in options.thresholds:
        made = with_head(checkpoint, base.model_copy(update={"threshold": threshold}), None)
        made.model.head.load_state_dict(learned.model.head.state_dict())
        yield f"learned, {threshold:g}", made


@torch.no_grad()
def listed(checkpoint: Any, corpus: Any) -> dict[str, float]:
    """Return size and missed over all pairs of a corpus; nothing for a softmax."""
    size = missed = tokens = 0
    if not checkpoint.model.head.reads_source:
        return {}
    for start in range(0, corpus.pairs, TOGETHER):
        numbers = list(range(start, min(start + TOGETHER, corpus.pairs)))
        source, mask, owners, labels = batch(checkpoint, corpus, numbers)
        lists = checkpoint.model.head.begin(source, mask, checkpoint.model.encoder(source, mask)).lists
        size += sum(lists.lengths)
        found = (lists.ids[owners] == labels[:, None]).any(1)
        missed, tokens = missed + int((~found).sum()), tokens + len(labels)
    return {"size": size / corpus.pairs, "missed": missed / tokens}


def measured(found: list[tuple[str, Any]], valid: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each contender."""
    from translume.data.corpus import texts_of
    from translume.evaluation import measure
    from translume.training.validation import spread
    from translume.translator import Translator

    sources, references = texts_of(valid, spread(valid.pairs, options.sentences))
    rows: list[dict[str, Any]] = [{"list": name, **listed(made, valid)} for name, made in found]
    players = [Translator(made).compile() for _, made in found]
    for _ in range(options.rounds):
        for row, player in zip(rows, players, strict=True):
            begun = time.perf_counter()
            translations = [str(each) for each in player.translate_all(sources)]
            middle = time.perf_counter()
            for source in sources[: options.alone]:
                player.translate(source)
            last = time.perf_counter()
            together, alone = (middle - begun) / len(sources), (last - middle) / max(1, options.alone)
            row["batch_ms"] = min(row.get("batch_ms", math.inf), 1000 * together)
            row["alone_ms"] = min(row.get("alone_ms", math.inf), 1000 * alone)
            row["bleu"] = measure(translations, references, player.config.evaluation).scores[0].value
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table in Markdown."""
    print("| list | size | missed | bleu | batch ms | alone ms |")
    print("|:--|--:|--:|--:|--:|--:|")
    for row in rows:
        size = f"{row['size']:,.0f} | {row['missed']:.2%}" if "size" in row else "all | –"
        print(f"| {row['list']} | {size} | {row['bleu']:.2f} | {row['batch_ms']:.2f} | {row['alone_ms']:.2f} |")


def main() -> None:
    """Measure the chosen lists."""
    short = bool(os.environ.get("TRANSLUME_SHORT"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="folder of a model with a softmax")
    parser.add_argument("--updates", type=int, default=20 if short else 2000, help="updates of the selector")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--selector", type=Path, help="file of the trained selector; trained only if it does not exist")
    parser.add_argument("--frequent", type=int, default=100)
    parser.add_argument("--candidates", type=int, nargs="*", default=[5, 20, 100])
    parser.add_argument("--thresholds", type=float, nargs="*", default=[0.01, 0.001, 0.0001])
    parser.add_argument(
        "--sentences", type=int, default=100 if short else 0, help="number of validation sentences; 0 for all"
    )
    parser.add_argument(
        "--alone", type=int, default=10 if short else 100, help="number of sentences also translated one per call"
    )
    parser.add_argument("--rounds", type=int, default=1 if short else 3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    options = parser.parse_args()
    if options.model is None:
        print("skipped: expected MODEL")
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
    from translume.data.token_cache import prepare
    from translume.translator import load

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    checkpoint = load(options.model, device="cpu", threads=options.threads).checkpoint
    tokenizers = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    data, positions = checkpoint.config.data, checkpoint.config.model.positions_of_sides
    train, valid = (
        prepare(data, *tokenizers, options.model / "cache", split=split, max_positions=positions)
        for split in ("train", "valid")
    )
    rows = measured(list(contenders(checkpoint, train, options)), valid, options)
    if options.json:
        print(json.dumps({"updates": options.updates, "rank": options.rank, "rows": rows}))
    else:
        show(rows)


if __name__ == "__main__":
    main()
