"""Which next tokens may be drawn: each truncation of a distribution is one function.

Each looks at the same p_used, before any of the others: what is drawn is what all of them keep. So their order does not
matter, and since each keeps a likeliest token, so do they together.

p_used is given as log-probabilities [N, V], fp32, the same base for all: rules, reshaping and temperature included.
"""

import math
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from translume.belief import exact_topk
from translume.config import DecodingSettings

FIRST_LOOK, GROWTH = 32, 4
"""Tokens among which the nucleus is looked for first, and how many times more each time it is larger."""


def top_k(log_probs: Tensor, k: int) -> Tensor:
    """[N, V], True for the k likeliest tokens, ties by smaller id (Fan et al. 2018, section 5.1)."""
    ids = exact_topk(log_probs, min(k, log_probs.size(1)))[1]
    return torch.zeros_like(log_probs, dtype=torch.bool).scatter_(1, ids, value=True)


def top_p(log_probs: Tensor, p: float) -> Tensor:
    """[N, V], True for the nucleus: the fewest likeliest tokens that have `p` together (Holtzman et al. 2020, eq. 2-3).

    Looks among the k likeliest, and for rows whose k have less than `p` among more: nothing is sorted that is not
    asked for.
    """
    kept = torch.zeros_like(log_probs, dtype=torch.bool)
    rows = torch.arange(len(log_probs), device=log_probs.device)
    k = FIRST_LOOK
    while rows.numel():
        values, ids = exact_topk(log_probs[rows], min(k, log_probs.size(1)))
        before = values.double().exp().cumsum(-1) - values.double().exp()  # mass of those ahead
        inside = before < p
        inside[:, 0] = True
        enough = ~inside[:, -1] | (ids.size(1) == log_probs.size(1))
        kept[rows[enough][:, None], ids[enough]] = inside[enough]
        rows, k = rows[~enough], k * GROWTH
    return kept


def min_p(log_probs: Tensor, p: float) -> Tensor:
    """[N, V], True for tokens with at least `p` times the likeliest one's probability (Nguyen et al. 2024, eq. 1-2)."""
    return log_probs >= log_probs.amax(-1, keepdim=True) + math.log(p)


def epsilon(log_probs: Tensor, least: float) -> Tensor:
    """[N, V], True for tokens of probability `least` and more, and the likeliest (Hewitt et al. 2022, section 4.2)."""
    peak = log_probs.amax(-1, keepdim=True)
    return log_probs >= peak.clamp(max=math.log(least))


def eta(log_probs: Tensor, least: float) -> Tensor:
    """[N, V], True for tokens of min(ε, √ε · e^−H) and more, H their row's entropy, and the likeliest.

    least: ε.  Hewitt et al. 2022, equation 4, with α = √ε as there.
    """
    entropy = torch.special.entr(log_probs.exp()).sum(-1, keepdim=True)
    threshold = (0.5 * math.log(least) - entropy).clamp(max=math.log(least))
    return log_probs >= torch.minimum(log_probs.amax(-1, keepdim=True), threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """The truncations of [decoding] by their parameters; 0, and 1 for top_p, asks for none."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    epsilon: float = 0.0
    eta: float = 0.0

    @classmethod
    def of(cls, settings: DecodingSettings) -> Self:
        """The truncations of [decoding]."""
        return cls(**{each.name: getattr(settings, each.name) for each in fields(cls)})

    @property
    def nothing(self) -> bool:
        """Whether every token is kept."""
        return self == type(self)()

    @property
    def only_best(self) -> bool:
        """Whether the `top_k` best tokens alone, without all others' share, tell what is kept."""
        return bool(self.top_k) and self.top_p == 1.0 and not self.epsilon and not self.eta

    def kept(self, log_probs: Tensor) -> Tensor:
        """[N, V], True for tokens of p_used [N, V] that every truncation keeps: at least one in each row."""
        parts = [
            *([top_k(log_probs, self.top_k)] if self.top_k else []),
            *([top_p(log_probs, self.top_p)] if self.top_p < 1.0 else []),
            *([min_p(log_probs, self.min_p)] if self.min_p else []),
            *([epsilon(log_probs, self.epsilon)] if self.epsilon else []),
            *([eta(log_probs, self.eta)] if self.eta else []),
        ]
        kept = torch.ones_like(log_probs, dtype=torch.bool)
        for part in parts:
            kept &= part
        return kept
