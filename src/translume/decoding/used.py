"""p_used: the distribution that next tokens are drawn from, as opposed to p_model, which hypotheses are priced by."""

import math

import torch
from torch import Tensor

from translume.belief import Bias, NextToken
from translume.decoding.reshaped import own_belief


def used_log_probs(belief: NextToken, bias: Bias | None, temperature: float = 1.0) -> Tensor:
    """[N, V], fp32: log p_used, the belief with the rules' bias to the power of 1/temperature; sums to one.

    A row without a possible token that is allowed is −inf throughout.
    """
    scores = _biased(belief, bias)
    lost = scores.amax(-1, keepdim=True).isneginf()
    own = own_belief(belief)
    if own is not belief and bool(lost.any()):
        # As a search ranks them: what a new shape holds for impossible may still be forced.
        scores = torch.where(lost, _biased(own, bias), scores)
        lost = scores.amax(-1, keepdim=True).isneginf()
    return (scores.float() / temperature).log_softmax(-1).masked_fill_(lost, -math.inf)


def priced(belief: NextToken, ids: Tensor, bias: Bias | None) -> tuple[Tensor, Tensor]:
    """What tokens `ids` [N, m] that were drawn add to a hypothesis's log_prob and to its total, [N, m] each.

    The one is of the model's own belief; the other of its new shape, if it has one, with the rules' bias.
    """
    own = own_belief(belief)
    log_probs = own.log_prob_of(ids).float()
    ranks = log_probs
    if own is not belief:
        ranks = belief.log_prob_of(ids).float()
        ranks = torch.where(ranks.isneginf(), log_probs, ranks)
    return log_probs, ranks if bias is None else ranks + bias.of(ids)


def _biased(belief: NextToken, bias: Bias | None) -> Tensor:
    log_probs = belief.log_probs()
    return log_probs if bias is None else bias.add_to(log_probs)
