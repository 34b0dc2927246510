"""What the model believed at every step and what decoding made of it: p_model and p_used, ranks, tops and tails."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translume.belief import Bias, NextToken, exact_topk
from translume.config import DecodingSettings
from translume.decoding import Rule, RuleContext, Truncation
from translume.decoding.reshaped import own_belief
from translume.decoding.used import used_log_probs
from translume.inspection.passes import Sentence
from translume.inspection.values import Candidate, RuleEffect, Top
from translume.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Ruled:
    """What decoding made of the beliefs of one sentence: log p_used [t, V], and the rules that moved each step."""

    log_probs: Tensor
    effects: tuple[tuple[RuleEffect, ...], ...]


def ruled(
    belief: NextToken, sentence: Sentence, rules: Sequence[Rule], *, limit: int, eos: int, settings: DecodingSettings
) -> Ruled:
    """The beliefs [t, V] of a finished target after rules, reshaping, temperature and truncation.

    belief: reshaped as the search's was.  limit: the most tokens that the search allowed.
    The rules are asked again about each prefix of the target, as the search asked them.
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
    return Ruled(used, tuple(map(tuple, effects)))


def _at(bias: Bias, step: int, steps: int, size: int) -> Bias:
    """The bias of one row as one of row `step` of all."""
    allowed = None
    if bias.allowed is not None:
        allowed = torch.ones(steps, size, dtype=torch.bool, device=bias.allowed.device)
        allowed[step] = bias.allowed
    return Bias(bias.rows + step, bias.ids, bias.values, allowed)


def _moved(log_probs: Tensor, bias: Bias) -> float:
    """Total variation between a belief [1, V] and itself with the bias, renormalised; 1 where that leaves nothing."""
    own = log_probs.softmax(-1)
    biased = bias.add_to(log_probs)
    if bool(biased.isneginf().all()):
        return 1.0
    return min(1.0, float((biased.softmax(-1) - own).abs().sum()) / 2)


def _truncated(used: Tensor, truncation: Truncation, effects: list[list[RuleEffect]]) -> Tensor:
    """log p_used among what sampling draws from, written down as one more effect wherever it cuts."""
    if truncation.nothing:
        return used
    possible = ~used.isneginf().all(-1, keepdim=True)
    kept = truncation.kept(used.float()) | ~possible
    cut = used.exp().masked_fill(kept, 0.0).sum(-1).tolist()
    for step, mass in enumerate(cut):
        if mass > 0.0:
            effects[step].append(RuleEffect(name="Truncation", moved=mass))
    return torch.where(possible, used.masked_fill(~kept, -torch.inf).log_softmax(-1), used)


def entropies(log_probs: Tensor) -> Tensor:
    """[t]: −Σ p log p of log-probabilities [t, V], nats."""
    entropy: Tensor = torch.special.entr(log_probs.exp()).sum(-1)
    return entropy


def ranks(log_probs: Tensor, labels: Tensor) -> Tensor:
    """[t]: the place of each label among log-probabilities [t, V], from 1; of equal ones the smaller id is first."""
    own = log_probs.gather(1, labels[:, None])
    ids = torch.arange(log_probs.size(1), device=labels.device)
    before = (log_probs > own) | ((log_probs == own) & (ids < labels[:, None]))
    return before.sum(-1) + 1


def margins(log_probs: Tensor, labels: Tensor) -> Tensor:
    """[t]: the probability of each label less the largest one of any other token."""
    own = log_probs.gather(1, labels[:, None])[:, 0].exp()
    others = log_probs.scatter(1, labels[:, None], -torch.inf).amax(-1).exp()
    return own - others


def tops(log_probs: Tensor, k: int, tokenizer: Tokenizer, model: Tensor, used: Tensor | None = None) -> list[Top]:
    """The k best of each row of log-probabilities [t, V], as far as they are possible, and the mass of all others.

    model: log p_model and used: log p_used [t, V], both shown of each; used is None where nothing was.
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
