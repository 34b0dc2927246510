"""Sums over all tokens of a corpus, whatever batches they come in: a vocabulary's worth of memory, never a corpus's."""

import torch
from torch import Tensor

from translume.inspection.corpus_values import BandView, NeverPredicted, PlaceView, RankCount
from translume.reliability import BINS, Bins
from translume.text import Tokenizer
from translume.translator.scoring import JudgedTokens

RANKS = (1, 2, 5, 10, 100)
"""Upper ends of the ranks that are counted together; the last group is of all above."""
PLACES = 30
"""Places of a target that are looked at one by one; the last one is of all beyond."""
BANDS = (0, 9, 99, 999, 9_999, 99_999)
"""Upper ends of the frequencies that are looked at together; the last band is of all above."""


class Tally:
    """What is counted of each token's belief."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        size = len(tokenizer)
        self.tokenizer, self.end_mark = tokenizer, tokenizer.specials.eos
        self.tokens = 0
        self.impossible = 0
        self.normalised = True
        self.nll = 0.0
        self.bins = Bins(BINS, size)  # by the likeliest token
        self.ends = Bins()
        self._wanted = torch.zeros(size, 3, dtype=torch.float64)  # by reference token: how often, first, nll
        self._predicted = torch.zeros(size, dtype=torch.bool)
        self._ranks = torch.zeros(len(RANKS) + 1, dtype=torch.long)
        self._places = torch.zeros(PLACES, 3, dtype=torch.float64)  # how often, entropy, nll

    def add(self, judged: JudgedTokens) -> Tensor:
        """Count some tokens; their own log p [m], on the CPU."""
        belief, labels = judged.belief, judged.labels
        log_probs = belief.log_probs()
        own = log_probs.gather(1, labels[:, None])[:, 0]
        confidence, best = log_probs.max(-1)
        ended = log_probs[:, self.end_mark].exp()
        above = (log_probs > own[:, None]).count_nonzero(-1).cpu()
        # Where p is 0 nothing is added, not 0 · −∞.
        least = torch.finfo(log_probs.dtype).min
        entropy = -log_probs.exp().mul_(log_probs.clamp(min=least)).sum(-1).double().cpu()
        labels, best, own = labels.cpu(), best.cpu(), own.double().cpu()
        right = best == labels
        rank = torch.where(right, 1, above.clamp(min=1) + 1)
        self.bins.add(confidence.exp(), right, best)
        self.ends.add(ended, labels == self.end_mark)
        self.normalised = self.normalised and belief.normalised
        self.tokens += len(labels)
        self.impossible += int(own.isneginf().sum())
        self.nll -= float(own.sum())
        self._predicted[best] = True
        one = torch.ones_like(own)
        self._wanted.index_add_(0, labels, torch.stack([one, right.double(), -own], 1))
        self._ranks += torch.bucketize(rank, torch.tensor(RANKS)).bincount(minlength=len(RANKS) + 1)
        places = judged.places.cpu().clamp(max=PLACES - 1)
        self._places.index_add_(0, places, torch.stack([one, entropy, -own], 1))
        return own

    def mean(self, nll: float, tokens: float) -> float | None:
        """A sum of nll by a token; None where it means nothing."""
        return nll / tokens if self.normalised and tokens and nll < torch.inf else None

    def ranks(self) -> tuple[RankCount, ...]:
        """How many tokens of each group of ranks."""
        return tuple(
            RankCount(most=most, tokens=count) for most, count in zip((*RANKS, None), self._ranks.tolist(), strict=True)
        )

    def places(self) -> tuple[PlaceView, ...]:
        """Entropy and nll by place."""
        return tuple(
            PlaceView(
                place=number,
                tokens=int(tokens),
                entropy=entropy / tokens if self.normalised else None,
                nll=self.mean(nll, tokens),
            )
            for number, (tokens, entropy, nll) in enumerate(self._places.tolist(), start=1)
            if tokens
        )

    def bands(self, frequencies: Tensor | None) -> tuple[BandView, ...]:
        """Tokens by `frequencies` [V], or by their number in the corpus; bands without any are left out."""
        counts = self._wanted[:, 0] if frequencies is None else frequencies
        band = torch.bucketize(counts.long(), torch.tensor(BANDS))
        band[self.end_mark] = -1
        views = []
        for number, (least, most) in enumerate(zip((0, *(each + 1 for each in BANDS)), (*BANDS, None), strict=True)):
            ids = (band == number).nonzero()[:, 0]
            tokens, first, nll = self._wanted[ids].sum(0).tolist()
            steps = bool(self._predicted[ids].any())
            if not tokens and not steps:
                continue
            views.append(
                BandView(
                    least=least,
                    most=most,
                    types=int((self._wanted[ids, 0] > 0).sum()),
                    tokens=int(tokens),
                    nll=self.mean(nll, tokens),
                    first=first / tokens if tokens else None,
                    reliability=self.bins.reliability(ids) if steps else None,
                )
            )
        return tuple(views)

    def types(self) -> int:
        """How many distinct tokens references hold."""
        return int((self._wanted[:, 0] > 0).sum())

    def never_predicted(self) -> tuple[NeverPredicted, ...]:
        """Reference tokens that were nowhere the likeliest, the most frequent ones first, ties by smaller id."""
        counts = self._wanted[:, 0].masked_fill(self._predicted, 0.0)
        ids = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
        names = self.tokenizer.tokens(ids.tolist())
        return tuple(
            NeverPredicted(text=name, tokens=int(count))
            for name, count in zip(names, counts[ids].tolist(), strict=True)
        )
