"""The distributions of every step, before and after decoding rules: entropy, rank, top candidates, logit lens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translume.belief import Bias, NextToken, exact_topk
from translume.config import DecodingSettings
from translume.decoding import Rule, RuleContext, Truncation
from translume.decoding.used_distribution import own_belief, used_log_probs
from translume.inspection.passes import Pass, Sentence
from translume.inspection.values import Candidate, LensLayer, RuleEffect, Top
from translume.model.transformer import Transformer
from translume.text import Tokenizer


@dataclass(frozen=True, slots=True)
class UsedDistributions:
    """log p_used [t, V] of one sentence, and the rules that changed each step."""

    log_probs: Tensor
    effects: tuple[tuple[RuleEffect, ...], ...]


def used_distributions(
    belief: NextToken, sentence: Sentence, rules: Sequence[Rule], *, limit: int, eos: int, settings: DecodingSettings
) -> UsedDistributions:
    """Apply rules, temperature and truncation to the predicted distributions [t, V] of a finished target.

    belief: reshaped as in the search.  limit: the length limit of the search.
    The rules are evaluated on each prefix of the target, as the search evaluates them.
    """
    prefix = torch.cat([sentence.labels.new_tensor([sentence.bos]), sentence.labels])[None]
    none = sentence.labels.new_zeros(1)
    own = own_belief(belief).log_probs().double()
    biases: list[Bias] = []
    effects: list[list[RuleEffect]] = [[] for _ in sentence.labels]
    for step in range(len(sentence.labels)):
        context = RuleContext(eos=eos, size=belief.size, step=step, sentences=none, limits=none + limit)
        for rule in rules:
            bias = rule(prefix[:, : 1 + step], context)
            if bias is not None:
                effects[step].append(RuleEffect(name=type(rule).__name__, moved=_moved(own[step, None], bias)))
                biases.append(_at(bias, step, len(sentence.labels), belief.size))
    drawing = settings.strategy in ("sampling", "stochastic")
    used = used_log_probs(belief, Bias.join(biases), settings.temperature if drawing else 1.0).double()
    if settings.strategy == "sampling":
        used = _truncated(used, Truncation.of(settings), effects)
    return UsedDistributions(used, tuple(map(tuple, effects)))


def _at(bias: Bias, step: int, steps: int, size: int) -> Bias:
    """Move the bias of a single row to row `step` of `steps` rows."""
    allowed = None
    if bias.allowed is not None:
        allowed = torch.ones(steps, size, dtype=torch.bool, device=bias.allowed.device)
        allowed[step] = bias.allowed
    return Bias(bias.rows + step, bias.ids, bias.values, allowed)


def _moved(log_probs: Tensor, bias: Bias) -> float:
    """Return the total variation between a distribution [1, V] and the same with the bias, renormalised.

    1 if the bias forbids all tokens.
    """
    own = log_probs.softmax(-1)
    biased = bias.add_to(log_probs)
    if bool(biased.isneginf().all()):
        return 1.0
    return min(1.0, float((biased.softmax(-1) - own).abs().sum()) / 2)


def _truncated(used: Tensor, truncation: Truncation, effects: list[list[RuleEffect]]) -> Tensor:
    """Restrict log p_used to the tokens that sampling draws from; record each cut as one more effect."""
    if truncation.nothing:
        return used
    possible = ~used.isneginf().all(-1, keepdim=True)
    kept = truncation.kept(used) | ~possible
    cut = used.exp().masked_fill(kept, 0.0).sum(-1).tolist()
    for step, mass in enumerate(cut):
        if mass > 0.0:
            effects[step].append(RuleEffect(name="Truncation", moved=mass))
    return torch.where(possible, used.masked_fill(~kept, -torch.inf).log_softmax(-1), used)


def entropies(log_probs: Tensor) -> Tensor:
    """Return the entropies [t], −Σ p log p, of log-probabilities [t, V], in nats."""
    entropy: Tensor = torch.special.entr(log_probs.exp()).sum(-1)
    return entropy


def ranks(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return the rank [t] of each label by log-probabilities [t, V], from 1; ties by smaller id."""
    own = log_probs.gather(1, labels[:, None])
    ids = torch.arange(log_probs.size(1), device=labels.device)
    before = (log_probs > own) | ((log_probs == own) & (ids < labels[:, None]))
    return before.sum(-1) + 1


def margins(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return [t]: the probability of each label minus the largest probability of any other token."""
    own = log_probs.gather(1, labels[:, None])[:, 0].exp()
    others = log_probs.scatter(1, labels[:, None], -torch.inf).amax(-1).exp()
    return own - others


def top_candidates(
    log_probs: Tensor, k: int, tokenizer: Tokenizer, model: Tensor, used: Tensor | None = None
) -> list[Top]:
    """Return the k likeliest possible tokens of each row of log-probabilities [t, V], and the mass of all others.

    model, used: log p_model and log p_used [t, V], which every candidate reports; used is None in a logit lens.
    """
    values, ids = exact_topk(log_probs, min(k, log_probs.size(1)))
    tails = log_probs.exp().scatter_(1, ids, 0.0).sum(-1).tolist()
    possible = (~values.isneginf()).sum(-1).clamp_(min=1).tolist()
    before = model.gather(1, ids).exp().tolist()
    after = None if used is None else used.gather(1, ids).exp().tolist()
    texts = tokenizer.tokens(ids.flatten().tolist())
    found = []
    for row, numbers in enumerate(ids.tolist()):
        candidates = tuple(
            Candidate(
                id=numbers[place],
                text=texts[row * len(numbers) + place],
                p_model=before[row][place],
                p_used=None if after is None else after[row][place],
            )
            for place in range(possible[row])
        )
        found.append(Top(candidates=candidates, tail=tails[row]))
    return found


def logit_lens(
    model: Transformer, found: Pass, labels: Tensor, k: int, tokenizer: Tokenizer
) -> list[tuple[LensLayer, ...]]:
    """Return the head's prediction of each label [t] after each layer: the logit lens (nostalgebraist 2020).

    In a pre-norm model, states must pass the decoder's last norm before the head; in a post-norm model they are already
    normalised and `decoder.norm` is the identity.
    """
    layers = []
    for number, state in enumerate(found.layers.states, start=1):
        hidden = model.decoder.norm(state)
        log_probs = model.head.next_token(hidden, found.context).log_probs().double()
        own = log_probs.gather(1, labels[:, None])[:, 0].tolist()
        rows = zip(
            own,
            ranks(log_probs, labels).tolist(),
            entropies(log_probs).tolist(),
            top_candidates(log_probs, k, tokenizer, log_probs),
            strict=True,
        )
        layers.append(
            [LensLayer(layer=number, log_p=log_p, rank=rank, entropy=nats, top=top) for log_p, rank, nats, top in rows]
        )
    return list(zip(*layers, strict=True))
