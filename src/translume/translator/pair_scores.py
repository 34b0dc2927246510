"""Scores of parallel texts by models, one a pair, of which larger ones are better; to clean and select data."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from translume.data.clean import Scorer
from translume.data.filters import Texts
from translume.translator.generator import Generator
from translume.translator.translator import Translator


def dual_scorer(forward: Translator, backward: Translator, *, source: str = "", target: str = "") -> Scorer:
    """Return dual conditional cross-entropy, exp(−|H_f − H_b| − (H_f + H_b) / 2) (Junczys-Dowmunt 2018).

    H_f and H_b are those of the target given the source and of the source given the target, in nats per token.
    A pair that one of the models cannot read has the score 0.
    source, target: codes of the languages, for models of several.
    """

    def scores(pairs: Sequence[Texts]) -> NDArray[np.float64]:
        first = _entropies(forward, pairs, source, target)
        second = _entropies(backward, [(text, other) for other, text in pairs], target, source)
        with np.errstate(invalid="ignore"):  # both infinite
            return np.nan_to_num(np.exp(-np.abs(first - second) - (first + second) / 2))

    return scores


def _entropies(model: Translator, pairs: Sequence[Texts], source: str, target: str) -> NDArray[np.float64]:
    """Return the nats per token of targets [n]; inf for a pair that is too long."""
    held = model.checkpoint
    longest = min(held.config.longest_source, held.config.model.max_positions) - 2  # EOS and a tag
    lengths = [
        max(len(held.source_tokenizer.encode(one)), len(held.target_tokenizer.encode(other))) for one, other in pairs
    ]
    rows = np.flatnonzero(np.array(lengths) <= longest)
    to, from_ = (target or None, source or None) if model.directions.several else (None, None)
    entropies = np.full(len(pairs), np.inf)
    scored = model.score_all([pairs[row] for row in rows.tolist()], to=to, from_=from_)
    entropies[rows] = [-each.log_prob / len(each.tokens) for each in scored]
    return entropies


def domain_scorer(inside: Generator, general: Generator, *, side: int) -> Scorer:
    """Return how much more likely a language model of a domain finds a text than a general one, in nats per token.

    That is H_general − H_inside, the negative of the criterion of Moore and Lewis (2010). Tokens: those of `general`.
    side: of the pairs, 0 for sources and 1 for targets.
    """

    def scores(pairs: Sequence[Texts]) -> NDArray[np.float64]:
        likely, usual = (model.score_all([pair[side] for pair in pairs]) for model in (inside, general))
        return np.array([(a.log_prob - b.log_prob) / len(b.tokens) for a, b in zip(likely, usual, strict=True)])

    return scores
