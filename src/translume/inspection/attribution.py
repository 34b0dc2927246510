"""What each source token does for each target token: by leaving it out, and by gradients."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from translume.errors import SettingsError
from translume.inspection.passes import Pass, Sentence, context_of, decode, encode
from translume.inspection.values import Attribution
from translume.model.layout import Layout
from translume.model.transformer import Encoder, Transformer

MOST_TOKENS = 8192
"""Target tokens read at once."""
DECIMALS = 6

Method = Literal["occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients"]
REMOVED = "the source without the token"
MASKED = "the memory without the token's place"
UNKNOWN = "the unknown token in the token's place"
NO_VECTOR = "no token vector, its position alone"


def log_probs_after(model: Transformer, sentence: Sentence, sources: Tensor) -> Tensor:
    """[B, t], fp32: log-probabilities of the labels after each of sources [B, S'], all of whose tokens are read."""
    mask = torch.ones_like(sources, dtype=torch.bool)
    rows = max(1, MOST_TOKENS // len(sentence.labels))
    found = []
    for start in range(0, len(sources), rows):
        part = sources[start : start + rows]
        given, labels = (each.expand(len(part), -1) for each in (sentence.given, sentence.labels))
        found.append(model.score(part, mask[start : start + rows], given, labels, torch.ones_like(given).bool()))
    return torch.cat(found).float()


def occluded(model: Transformer, sentence: Sentence, found: Pass, method: Method, unknown: int | None) -> Attribution:
    """Occlusion by one of its three methods; SettingsError where there is no unknown token to put in a place.

    Zeiler and Fergus (2014, section 4.2) for pixels; for words Li et al. (2016, "erasure").
    """
    source = sentence.source
    size = len(source)
    if method == "occlusion":
        places = torch.arange(size - 1, device=source.device).expand(size, -1)
        places = places + (places >= torch.arange(size, device=source.device)[:, None])
        without, baseline = log_probs_after(model, sentence, source[places]), REMOVED
    elif method == "occlusion-mask":
        without, baseline = _masked(model, sentence, found), MASKED
    else:
        if unknown is None:
            raise SettingsError(
                "show: found 'occlusion-unknown', wanted 'occlusion' or 'occlusion-mask' "
                "with a tokenizer that has no unknown token"
            )
        replaced = source.repeat(size, 1).fill_diagonal_(unknown)
        without, baseline = log_probs_after(model, sentence, replaced), UNKNOWN
    whole = model.head.score(found.hidden, sentence.labels, found.context).float()
    return Attribution(method=method, values=differences(whole, without), baseline=baseline, error=None)


def differences(whole: Tensor, without: Tensor) -> tuple[tuple[float | None, ...], ...]:
    """whole [t] less without [S, t], by target token: [t, S]; None where either is −inf."""
    apart = (whole.double() - without.double()).T
    rows = apart.round(decimals=DECIMALS).tolist()
    if bool(apart.isfinite().all()):
        return tuple(map(tuple, rows))
    known = (whole.isfinite() & without.isfinite()).T.tolist()
    return tuple(
        tuple(value if finite else None for value, finite in zip(*row, strict=True))
        for row in zip(rows, known, strict=True)
    )


def _masked(model: Transformer, sentence: Sentence, found: Pass) -> Tensor:
    """[S, t]: log-probabilities of the labels, each row without one place of the memory."""
    size, length = len(sentence.source), len(sentence.labels)
    rows = max(1, MOST_TOKENS // length)
    scores = []
    for start in range(0, size, rows):
        mask = ~torch.eye(size, dtype=torch.bool, device=sentence.source.device)[start : start + rows]
        memory_layout, given = Layout.of(mask), sentence.given.expand(len(mask), -1)
        layout = Layout.of(torch.ones_like(given, dtype=torch.bool))
        memory = memory_layout.pack(found.memory.expand(len(mask), -1, -1))
        hidden = decode(model.decoder, given, layout, memory, memory_layout)
        owners = torch.arange(len(mask), device=mask.device).repeat_interleave(length)
        sources = sentence.source.expand(len(mask), -1), mask, memory_layout.unpack(memory)
        labels = sentence.labels.repeat(len(mask))
        score = model.head.score(hidden, labels, context_of(model, sources, owners))
        scores.append(score.view(len(mask), length))
    return torch.cat(scores)


def embedded(encoder: Encoder, source: Tensor) -> tuple[Tensor, Tensor]:
    """[S, D] each: what the encoder's first layer reads of ids [S], and the same without the tokens' own vectors."""
    whole = encoder.embed(source[None], Layout.of(torch.ones_like(source[None], dtype=torch.bool)))
    return whole, whole - encoder.embedding.table(source) * encoder.embedding.scale


def scores_of(model: Transformer, sentence: Sentence) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of embedded sources [R, S, D] and numbers of target tokens [R]: [R], log p of that token each.

    Each row reads the target just as far as its own token needs; gradients flow into the sources.
    """

    def scores(sources: Tensor, places: Tensor) -> Tensor:
        rows = len(sources)
        ids = sentence.source.expand(rows, -1)
        mask = torch.ones_like(ids, dtype=torch.bool)
        source_layout = Layout.of(mask)
        memory = encode(model.encoder, sources.flatten(0, 1), source_layout)
        given = sentence.given.expand(rows, -1)
        layout = Layout.of(torch.arange(given.size(1), device=places.device) <= places[:, None])
        hidden = decode(model.decoder, given, layout, memory, source_layout)
        last = hidden.index_select(0, (places + 1).cumsum(0) - 1)
        context = context_of(model, (ids, mask, source_layout.unpack(memory)), torch.arange(rows, device=places.device))
        return model.head.next_token(last, context).log_prob_of(sentence.labels[places, None])[:, 0]

    return scores


def input_gradient(model: Transformer, sentence: Sentence) -> Attribution:
    """Input times gradient (Simonyan et al. 2014; Shrikumar et al. 2016), every target token a row of one pass."""
    source, baseline = embedded(model.encoder, sentence.source)
    places = torch.arange(len(sentence.labels), device=source.device)
    with torch.enable_grad():
        rows = source.detach().expand(len(places), -1, -1).clone().requires_grad_()
        scores = scores_of(model, sentence)(rows, places)
        (slopes,) = torch.autograd.grad(scores.sum(), rows)
    values = (slopes * (source - baseline)).sum(-1)
    return Attribution(method="input-gradient", values=rounded(values), baseline=NO_VECTOR, error=None)


def rounded(values: Tensor) -> tuple[tuple[float | None, ...], ...]:
    """A matrix as a value; None for what is no number (a token without any probability has no slope)."""
    rows = values.double().round(decimals=DECIMALS).tolist()
    return tuple(tuple(value if value - value == 0.0 else None for value in row) for row in rows)
