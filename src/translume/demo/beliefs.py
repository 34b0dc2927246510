"""What a model believed at every token that it wrote: its probability, and what it would have written instead."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from translume.translator import TextHypothesis, Translator


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBelief:
    """A written token, its probability given the source and all tokens before it, and the likeliest others."""

    token: str
    probability: float
    runners_up: tuple[tuple[str, float], ...]


def beliefs(
    translator: "Translator", source: str, hypothesis: "TextHypothesis", *, runners_up: int = 3
) -> tuple[TokenBelief, ...]:
    """One belief a token of a single sentence's hypothesis, its end mark included, by going through it once more."""
    import torch

    checkpoint = translator.checkpoint
    ends, target = checkpoint.source_tokenizer.specials, checkpoint.target_tokenizer
    device = next(checkpoint.model.parameters()).device
    found = []
    with torch.no_grad():
        ids = torch.tensor([[*checkpoint.source_tokenizer.encode(source), ends.eos]], device=device)
        state = checkpoint.model.start(ids, torch.ones_like(ids, dtype=torch.bool))
        prefix = torch.tensor([[target.specials.bos, *hypothesis.ids]], device=device)
        for position, chosen in enumerate(hypothesis.ids):
            belief, state = checkpoint.model.step(prefix[:, : position + 1], state)
            best = belief.topk(runners_up + 1)
            others = zip(best.ids[0].tolist(), best.log_probs[0].exp().tolist(), strict=True)
            rest = [(target.tokens([other])[0], probability) for other, probability in others if other != chosen]
            own = belief.log_prob_of(torch.tensor([[chosen]], device=device))
            found.append(
                TokenBelief(
                    token=target.tokens([chosen])[0],
                    probability=own.exp().item(),
                    runners_up=tuple(rest[:runners_up]),
                )
            )
    return tuple(found)
