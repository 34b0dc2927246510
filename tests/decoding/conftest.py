"""A toy step whose complete targets can be enumerated."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from translume.belief import Logits

BOS, EOS = 0, 1


@dataclass(frozen=True)
class ToyState:
    """State that keeps the sentence and a fingerprint of each row's prefix, and records every selection of rows."""

    sentences: torch.Tensor
    read: torch.Tensor
    selections: list

    def select(self, rows):
        self.selections.append(rows)
        return ToyState(self.sentences[rows], self.read[rows], self.selections)


class Toy:
    """A step whose logits are drawn once per sentence and prefix, so that its output depends on the whole prefix."""

    def __init__(self, seed, size=5, longest=4, sharpness=1.0, sentences=3):
        generator = torch.Generator().manual_seed(seed)
        self.size, self.longest, self.sentences = size, longest, sentences
        self.logits = [torch.randn(sentences, size**t, size, generator=generator) * sharpness for t in range(longest)]
        self.rows = []

    def start(self, sentences=None):
        sentences = torch.arange(self.sentences) if sentences is None else torch.tensor(sentences)
        return ToyState(sentences, torch.full_like(sentences, -1), [])

    def fingerprint(self, tokens):
        weights = self.size ** torch.arange(tokens.size(1)).flip(0)
        return (tokens * weights).sum(1) + 1000 * tokens.size(1)

    def __call__(self, prefix, state):
        self.rows.append(prefix.size(0))
        assert (prefix[:, 0] == BOS).all()
        before = self.fingerprint(prefix[:, 1:-1]) if prefix.size(1) > 1 else torch.full_like(state.read, -1)
        assert torch.equal(before, state.read), "the state has read another prefix"
        after = self.fingerprint(prefix[:, 1:])
        place = after - 1000 * (prefix.size(1) - 1)
        logits = self.logits[prefix.size(1) - 1][state.sentences, place]
        return Logits(logits), ToyState(state.sentences, after, state.selections)

    def log_prob(self, sentence, tokens):
        total = 0.0
        for t, token in enumerate(tokens):
            place = sum(id * self.size ** (t - 1 - i) for i, id in enumerate(tokens[:t]))
            total += self.logits[t][sentence, place].double().log_softmax(-1)[token].item()
        return total

    def complete(self, sentence, limit, score=lambda log_prob, length: log_prob):
        """All targets that a search can return, best first, as (score, tokens)."""
        found = [
            (score(self.log_prob(sentence, ids), length), ids)
            for length in range(1, limit + 1)
            for ids in itertools.product(range(self.size), repeat=length)
            if EOS not in ids[:-1] and (ids[-1] == EOS or length == limit)
        ]
        return sorted((each for each in found if each[0] > -math.inf), reverse=True)


@pytest.fixture(scope="session")
def toy():
    return Toy


@pytest.fixture(scope="session")
def follows_distribution():
    """Check counts [m] against probabilities [m] by Pearson's chi-square test; rare outcomes are pooled."""

    def judge(counts, probabilities):
        counts = torch.as_tensor(counts, dtype=torch.float64)
        expected = torch.as_tensor(probabilities, dtype=torch.float64) * counts.sum()
        assert (counts[expected == 0] == 0).all(), "what is impossible came out"
        often = expected >= 5
        counts = torch.cat([counts[often], counts[~often].sum()[None]])
        expected = torch.cat([expected[often], expected[~often].sum()[None]])
        seen = expected > 0
        chi = float(((counts - expected).square() / expected)[seen].sum())
        freedom = int(seen.sum()) - 1
        return chi <= freedom + 4.5 * math.sqrt(2 * max(freedom, 1))

    return judge
