"""The logit lens: what the head would say after each decoder layer (nostalgebraist 2020, "interpreting GPT")."""

from torch import Tensor

from translume.inspection.beliefs import entropies, ranks, tops
from translume.inspection.passes import Pass
from translume.inspection.values import LensLayer
from translume.model.transformer import Transformer
from translume.text import Tokenizer


def lens(model: Transformer, found: Pass, labels: Tensor, k: int, tokenizer: Tokenizer) -> list[tuple[LensLayer, ...]]:
    """For each of labels [t] what was believed about it after each layer, first to last.

    With norms before sub-layers a state is a sum that only the decoder's last norm makes fit for the head; with norms
    behind them it is normed already, and there is no last norm. `decoder.norm` is right for both.
    """
    layers = []
    for number, state in enumerate(found.seen.states, start=1):
        hidden = model.decoder.norm(state)
        log_probs = model.head.next_token(hidden, found.context).log_probs().double()
        own = log_probs.gather(1, labels[:, None])[:, 0].tolist()
        rows = zip(
            own,
            ranks(log_probs, labels).tolist(),
            entropies(log_probs).tolist(),
            tops(log_probs, k, tokenizer, log_probs),
            strict=True,
        )
        layers.append(
            [LensLayer(layer=number, log_p=log_p, rank=rank, entropy=nats, top=top) for log_p, rank, nats, top in rows]
        )
    return list(zip(*layers, strict=True))
