"""Attribution of target tokens to source tokens: occlusion, input times gradient, integrated gradients."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from translume.errors import SettingsError
from translume.inspection.passes import Pass, Sentence, context_of, decode, encode, front, positions_in, separators_in
from translume.inspection.values import Attribution
from translume.model.embedding import SegmentEmbedding
from translume.model.layout import Layout
from translume.model.transformer import Encoder, Transformer

MOST_TOKENS = 8192
"""Maximum number of tokens in one forward pass."""
MOST_STATES = 65_536
"""Maximum number of encoder states that one forward pass of the decoder reads."""
DECIMALS = 6
"""Decimals of attributions, attention weights and a head's own terms."""
STEPS = 32
"""Points on the path of integrated gradients (Gauss-Legendre quadrature)."""
ROWS = 256
"""Sources in one forward pass of integrated gradients."""

Method = Literal["occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients"]
REMOVED = "the source without the token"
MASKED = "the memory without the token's place"
UNKNOWN = "the unknown token in the token's place"
NO_VECTOR = "no token vector, its position alone"


def log_probs_after(model: Transformer, sentence: Sentence, sources: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return log-probabilities [B, t], fp32, of the labels given each of the sources, ids [B, S'] or frames [B, L, F].

    mask: [B, S'], False at padding; None without padding.
    """
    if mask is None:
        mask = torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device)
    rows, tags = max(1, MOST_TOKENS // len(sentence.labels)), len(sentence.tags.target)
    padded = functional.pad(sentence.labels, (tags, 0))  # labels of tags are not predicted
    found = []
    for start in range(0, len(sources), rows):
        part = sources[start : start + rows]
        given, labels = (each.expand(len(part), -1) for each in (sentence.given, padded))
        found.append(model.score(part, mask[start : start + rows], given, labels, torch.ones_like(given).bool()))
    return torch.cat(found).float()[:, tags:]


def occluded(model: Transformer, sentence: Sentence, found: Pass, method: Method, unknown: int | None) -> Attribution:
    """Return the effect of occluding each source token by one of three methods.

    Sources: Zeiler and Fergus 2014, section 4.2; Li et al. 2016.

    Raises SettingsError for "occlusion-unknown" if the tokenizer has no unknown token.
    """
    if method == "occlusion-mask":
        without, baseline = _masked(model, sentence, found), MASKED
    elif method == "occlusion":
        shorter, mask = removed(sentence.source, positions_in(model.encoder, sentence.source))
        without, baseline = log_probs_after(model, sentence, shorter, mask), REMOVED
    else:
        kept = separators_in(model.encoder, sentence.source)  # else two segments would become one
        unclear = replaced(sentence.source, positions_in(model.encoder, sentence.source), unknown, kept)
        without, baseline = log_probs_after(model, sentence, unclear), UNKNOWN
    whole = model.head.score(found.hidden, sentence.labels, found.context).float()
    if isinstance(model.encoder.embedding, SegmentEmbedding):
        baseline = baseline.replace("the token", "the segment")
    return Attribution(method=method, values=differences(whole, without), baseline=baseline, error=None)


def removed(source: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return [P, S'] and its mask: in each row the ids [S] without those of one position; see `positions_in`."""
    left = _elsewhere(positions)
    order = (~left).sort(stable=True).indices[:, : max(1, int(left.sum(1).max()))]
    return source[order], left.gather(1, order)


def replaced(source: Tensor, positions: Tensor, unknown: int | None, kept: Tensor) -> Tensor:
    """Return [P, S]: in each row the ids [S] with those of one position replaced, except where `kept` [S] is True.

    Raises SettingsError if `unknown` is None.
    """
    if unknown is None:
        raise SettingsError(
            "show: found 'occlusion-unknown', expected 'occlusion' or 'occlusion-mask' "
            "with a tokenizer that has no unknown token"
        )
    return torch.where(_elsewhere(positions) | kept, source, unknown)


def _elsewhere(positions: Tensor) -> Tensor:
    """Return [P, S]: in each row False for the ids of one position, else True."""
    return positions != torch.arange(int(positions[-1]) + 1, device=positions.device)[:, None]


def differences(whole: Tensor, without: Tensor) -> tuple[tuple[float | None, ...], ...]:
    """Return whole [t] minus without [S, t], as [t, S]; None if either is −inf."""
    difference = (whole.double() - without.double()).T
    rows = difference.round(decimals=DECIMALS).tolist()
    if bool(difference.isfinite().all()):
        return tuple(map(tuple, rows))
    known = (whole.isfinite() & without.isfinite()).T.tolist()
    return tuple(
        tuple(value if finite else None for value, finite in zip(*row, strict=True))
        for row in zip(rows, known, strict=True)
    )


def _masked(model: Transformer, sentence: Sentence, found: Pass) -> Tensor:
    """Return log-probabilities [S, t] of the labels, in each row with one memory position masked."""
    size, length = found.memory.size(1), len(sentence.labels)
    rows = max(1, min(MOST_TOKENS // length, MOST_STATES // size))
    scores = []
    for start in range(0, size, rows):
        mask = ~torch.eye(size, dtype=torch.bool, device=sentence.source.device)[start : start + rows]
        memory_layout, given = Layout.of(mask), sentence.given.expand(len(mask), -1)
        layout = Layout.of(torch.ones_like(given, dtype=torch.bool))
        memory = memory_layout.pack(found.memory.expand(len(mask), -1, -1))
        hidden = decode(model.decoder, given, layout, memory, memory_layout)
        hidden = hidden[layout.places >= model.target_tags]
        owners = torch.arange(len(mask), device=mask.device).repeat_interleave(length)
        sources = _repeated(sentence.source, len(mask)), mask, memory_layout.unpack(memory)
        labels = sentence.labels.repeat(len(mask))
        score = model.head.score(hidden, labels, context_of(model, sources, owners))
        scores.append(score.view(len(mask), length))
    return torch.cat(scores)


def _repeated(source: Tensor, rows: int) -> Tensor:
    return source.expand(rows, *source.shape)


def embedded(encoder: Encoder, source: Tensor) -> tuple[Tensor, Tensor]:
    """Return the embedded ids [S] or frames [L, F], and the baseline without token embeddings: [S, D] each.

    If the encoder's norm stands directly on the embeddings, both are normalised vectors. The norm removes the length of
    a vector, so a gradient with respect to the vector itself is orthogonal to it: input times gradient would be 0 for
    every token without a position.
    """
    positions, mask = front(encoder, source[None])
    layout = Layout.of(mask)
    whole = encoder.embed(positions, layout)
    baseline = encoder.embed(positions, layout, without_tokens=True)
    if len(encoder.layers):
        return whole, baseline
    return encoder.norm(whole), encoder.norm(baseline)


def encode_embedded(encoder: Encoder, vectors: Tensor, layout: Layout) -> Tensor:
    """Return the memory [n, D] of vectors [n, D] as `embedded` returns them."""
    return encode(encoder, vectors, layout) if len(encoder.layers) else vectors


def scores_of(model: Transformer, sentence: Sentence) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a differentiable function of embedded sources [R, S, D] and target positions [R].

    It returns [R]: log p of the target token at each row's position.
    """

    def scores(sources: Tensor, places: Tensor) -> Tensor:
        rows = len(sources)
        mask = torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device)
        source_layout = Layout.of(mask)
        memory = encode_embedded(model.encoder, sources.flatten(0, 1), source_layout)
        given = sentence.given.expand(rows, -1)
        ends = places + model.target_tags
        layout = Layout.of(torch.arange(given.size(1), device=places.device) <= ends[:, None])
        hidden = decode(model.decoder, given, layout, memory, source_layout)
        last = hidden.index_select(0, (ends + 1).cumsum(0) - 1)
        whole = _repeated(sentence.source, rows), mask, source_layout.unpack(memory)
        context = context_of(model, whole, torch.arange(rows, device=places.device))
        return model.head.next_token(last, context).log_prob_of(sentence.labels[places, None])[:, 0]

    return scores


def input_gradient(model: Transformer, sentence: Sentence) -> Attribution:
    """Return input times gradient (Simonyan et al. 2014; Shrikumar et al. 2016), with one row per target token."""
    source, baseline = embedded(model.encoder, sentence.source)
    places = torch.arange(len(sentence.labels), device=source.device)
    with torch.enable_grad():
        rows = source.detach().expand(len(places), -1, -1).clone().requires_grad_()
        scores = scores_of(model, sentence)(rows, places)
        (slopes,) = torch.autograd.grad(scores.sum(), rows)
    values = (slopes * (source - baseline)).sum(-1)
    return Attribution(method="input-gradient", values=rounded(values), baseline=NO_VECTOR, error=None)


def rounded(values: Tensor) -> tuple[tuple[float | None, ...], ...]:
    """Return a matrix as nested tuples; None for non-finite values, such as gradients of an impossible token."""
    rows = values.double().round(decimals=DECIMALS).tolist()
    return tuple(tuple(value if value - value == 0.0 else None for value in row) for row in rows)


def integrated_gradients(model: Transformer, sentence: Sentence) -> Attribution:
    """Return integrated gradients of every target token over the source embeddings (Sundararajan et al. 2017)."""
    places = torch.arange(len(sentence.labels), device=sentence.source.device)
    source, baseline = embedded(model.encoder, sentence.source)
    values, error = integrate(scores_of(model, sentence), source, baseline, places)
    return Attribution(method="integrated-gradients", values=rounded(values), baseline=NO_VECTOR, error=error)


def integrate(
    scores: Callable[[Tensor, Tensor], Tensor], source: Tensor, baseline: Tensor, outputs: Tensor
) -> tuple[Tensor, float]:
    """Return integrated gradients [R, S] of R outputs over S tokens, and their largest approximation error.

    scores: [R] of embedded sources [R, S, D] and output numbers [R].  source, baseline: [S, D].
    Raises SettingsError if captum is not installed.
    """
    try:
        from captum.attr import IntegratedGradients  # type: ignore[import-untyped]  # captum has no types
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"show: 'integrated-gradients': {error.name} is not installed; pip install 'translume[inspect]'"
        ) from None
    size = len(outputs)
    with torch.enable_grad():
        values, errors = IntegratedGradients(scores, multiply_by_inputs=True).attribute(
            source.detach().expand(size, -1, -1).clone(),
            baselines=baseline.detach().expand(size, -1, -1).clone(),
            additional_forward_args=(outputs,),
            n_steps=STEPS,
            internal_batch_size=max(size, ROWS),
            return_convergence_delta=True,
        )
    return values.sum(-1), float(errors.abs().max())
