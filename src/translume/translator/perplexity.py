"""Forced decoding of texts by a language model, in overlapping windows, and the perplexities that follow."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from translume.checkpoint import Checkpoint
from translume.translator.planning import batches, padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """How well a language model predicts texts.

    nats: −Σ log p of all tokens, end marks included.  words: of the raw texts, separated by white space.  bytes:
    of UTF-8.  empty: texts without tokens, which count nowhere else.  stride: tokens from one window of
    `context` tokens to the next; each token but the first ones of a text has at least `context` − `stride` before it.
    unknown: tokens that stand for text that is not in the vocabulary. Predicting them is easier than predicting the
    text, so figures by word, byte and character look better than they are.
    """

    nats: float
    documents: int
    tokens: int
    words: int
    characters: int
    bytes: int
    context: int
    stride: int
    empty: int = 0
    unknown: int = 0

    @property
    def perplexity(self) -> float:
        """exp(nats per token); it depends on the tokenizer."""
        return _exp(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """exp(nats per word)."""
        return _exp(self.nats, self.words)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the texts."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def nats_per_character(self) -> float:
        """Nats for each character of the texts."""
        return self.nats / self.characters if self.characters else math.nan

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON object, with null for those that are not finite."""
        values = {
            "perplexity": self.perplexity,
            "word_perplexity": self.word_perplexity,
            "bits_per_byte": self.bits_per_byte,
            "nats_per_character": self.nats_per_character,
            "nats": self.nats,
        }
        return {
            **{name: value if math.isfinite(value) else None for name, value in values.items()},
            "documents": self.documents,
            "empty": self.empty,
            "tokens": self.tokens,
            "unknown": self.unknown,
            "words": self.words,
            "characters": self.characters,
            "bytes": self.bytes,
            "context": self.context,
            "stride": self.stride,
        }


def _exp(nats: float, count: int) -> float:
    mean = nats / count if count else math.nan
    return math.inf if mean > 700 else math.exp(mean)


def spans(count: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield windows (begin, end, scored) over `count` labels: each reads begin…end, and scores scored…end.

    Windows begin at the multiples of `stride`, which is from 1 to `context`. Every label is scored once, in the first
    window that reads it.
    """
    begin, end = 0, min(context, count)
    yield begin, end, 0
    while end < count:
        begin, scored = begin + stride, end
        end = min(begin + context, count)
        yield begin, end, scored


@torch.no_grad()
def label_log_probs(
    checkpoint: Checkpoint, rows: Sequence[Sequence[int]], context: int, stride: int, max_tokens: int
) -> list[list[float]]:
    """Return the log-probability of each label of each row, the first of which follows bos, in nats.

    A label after the first `context` ones is predicted from at least `context` − `stride` tokens before it.
    """
    specials = checkpoint.target_tokenizer.specials
    device = next(checkpoint.model.parameters()).device
    windows = [(row, *span) for row, labels in enumerate(rows) for span in spans(len(labels), context, stride)]
    found = [[0.0] * len(labels) for labels in rows]
    for batch in batches([end - begin for _, begin, end, _ in windows], max_tokens):
        chosen = [windows[index] for index in batch]
        labels, mask = padded([rows[row][begin:end] for row, begin, end, _ in chosen], specials.pad, device)
        given = [
            [rows[row][begin - 1] if begin else specials.bos, *rows[row][begin : end - 1]]
            for row, begin, end, _ in chosen
        ]
        inputs, _ = padded(given, specials.pad, device)
        source = torch.full((len(chosen), 1), specials.eos, device=device)
        model = checkpoint.model
        scores = model.score(source, torch.ones_like(source, dtype=torch.bool), inputs, labels, mask).tolist()
        for (row, begin, end, scored), values in zip(chosen, scores, strict=True):
            found[row][scored:end] = values[scored - begin : end - begin]
    return found
