"""Attribution of target tokens to source tokens: occlusion, input times gradient, integrated gradients."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from translume.errors import SettingsError, needed_by
from translume.inspection.passes import (
    Pass,
    Sentence,
    context_of,
    decode,
    encode,
    front,
    layout_of,
    positions_in,
    separators_in,
)
from translume.inspection.values import Attribution, Contributions, Matrix, Method
from translume.lazy import Tensor, torch

if TYPE_CHECKING:
    from translume.model.classifier import Classifier
    from translume.model.layout import Layout
    from translume.model.transformer import Encoder, Transformer

MAX_NUMBERS = 2**25
"""Maximum number of intermediate results of one pass, roughly, unless one row has more; 128 MB in fp32."""
DECIMALS = 6
"""Decimals of attributions, attention weights and a head's own terms."""
STEPS = 32
"""Points on the path of integrated gradients (Gauss-Legendre quadrature)."""

Scores = Callable[[Tensor, Tensor], Tensor]
"""Returns log p [R] for embedded sources [R, S, D] and the numbers [R] of outputs."""
REMOVED = "the source without the token"
MASKED = "the memory without the token's place"
UNKNOWN = "the unknown token in the token's place"
NO_VECTOR = "no token vector, its position alone"


def rows_per_pass(model: "Transformer | Classifier", source: int, target: int = 0, *, gradients: bool = False) -> int:
    """Return how many rows of `source` and `target` tokens one pass may have, at least 1.

    gradients: whether all layers' results are kept, not only those of one.
    """
    from translume.model.transformer import Transformer

    layers: list[tuple[torch.nn.Module, int, int]] = [(each, source, source * source) for each in model.encoder.stack]
    scores = 0
    if isinstance(model, Transformer):
        layers += [(each, target, target * (target + source)) for each in model.decoder.stack]
        scores = target * model.decoder.embedding.table.num_embeddings
    kept = []
    for layer, length, pairs in layers:
        weights = [each for each in layer.parameters() if each.ndim == 2]
        results = sum(each.numel() // min(each.shape) for each in weights)  # of linear maps, per token
        kept.append(length * results + getattr(layer.self_attention, "heads", 0) * pairs)
    numbers = scores + (3 * sum(kept) if gradients else max(kept, default=0))
    return max(1, MAX_NUMBERS // max(1, numbers))


def log_probs_after(model: "Transformer", sentence: Sentence, sources: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return log-probabilities [B, t], fp32, of the labels given each of the sources, ids [B, S'] or frames [B, L, F].

    mask: [B, S'], False at padding; None without padding.
    """
    if mask is None:
        mask = torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device)
    tags = len(sentence.tags.target)
    rows = rows_per_pass(model, sources.size(1), tags + len(sentence.labels))
    padded = torch.nn.functional.pad(sentence.labels, (tags, 0))  # labels of tags are not predicted
    scores = []
    for start in range(0, len(sources), rows):
        part = sources[start : start + rows]
        given, labels = (each.expand(len(part), -1) for each in (sentence.given, padded))
        scores.append(model.score(part, mask[start : start + rows], given, labels, torch.ones_like(given).bool()))
    return torch.cat(scores).float()[:, tags:]


def occluded(
    model: "Transformer", sentence: Sentence, computed: Pass, method: Method, unknown: int | None
) -> Attribution:
    """Return the effect of occluding each source token by one of three methods.

    Sources: Zeiler and Fergus 2014, section 4.2; Li et al. 2016.

    Raises SettingsError for "occlusion-unknown" if the tokenizer has no unknown token.
    """
    from translume.model.embedding import SegmentEmbedding

    if method == "occlusion-mask":
        without, baseline = _masked(model, sentence, computed), MASKED
    else:
        sources, mask, baseline = occluded_sources(model.encoder, sentence.source, method, unknown)
        without = log_probs_after(model, sentence, sources, mask)
    whole = model.head.score(computed.hidden, sentence.labels, computed.context).float()
    if isinstance(model.encoder.embedding, SegmentEmbedding):
        baseline = baseline.replace("the token", "the segment")
    return Attribution(method=method, values=differences(whole, without), baseline=baseline, error=None)


def occluded_sources(
    encoder: "Encoder", source: Tensor, method: Method, unknown: int | None
) -> tuple[Tensor, Tensor, str]:
    """Return the ids [S] in P rows, each without those of one position, or with unknown tokens in their place.

    Also return the rows' mask and the name of the baseline. Raises SettingsError if `unknown` is None but needed.
    """
    positions = positions_in(encoder, source)
    elsewhere = positions != torch.arange(int(positions[-1]) + 1, device=positions.device)[:, None]  # [P, S]
    if method == "occlusion":
        order = (~elsewhere).sort(stable=True).indices[:, : max(1, int(elsewhere.sum(1).max()))]
        return source[order], elsewhere.gather(1, order), REMOVED
    if unknown is None:
        raise SettingsError(
            "show: found 'occlusion-unknown', expected 'occlusion' or 'occlusion-mask' "
            "with a tokenizer that has no unknown token"
        )
    kept = separators_in(encoder, source)  # else two segments would become one
    return torch.where(elsewhere | kept, source, unknown), torch.ones_like(elsewhere), UNKNOWN


def differences(whole: Tensor, without: Tensor) -> Contributions:
    """Return whole [t] minus without [S, t], as [t, S]; None if either is −inf."""
    return rounded((whole.double() - without.double()).T)


def _masked(model: "Transformer", sentence: Sentence, computed: Pass) -> Tensor:
    """Return log-probabilities [S, t] of the labels, in each row with one memory position masked."""
    size, length = computed.memory.size(1), len(sentence.labels)
    rows, scores = rows_per_pass(model, size, length), []
    for start in range(0, size, rows):
        mask = ~torch.eye(size, dtype=torch.bool, device=sentence.source.device)[start : start + rows]
        memory_layout, given = layout_of(mask), sentence.given.expand(len(mask), -1)
        layout = layout_of(torch.ones_like(given, dtype=torch.bool))
        memory = memory_layout.pack(computed.memory.expand(len(mask), -1, -1))
        hidden = decode(model.decoder, given, layout, memory, memory_layout)
        hidden = hidden[layout.places >= model.target_tags]
        owners = torch.arange(len(mask), device=mask.device).repeat_interleave(length)
        sources = sentence.source.expand(len(mask), *sentence.source.shape), mask, memory_layout.unpack(memory)
        score = model.head.score(hidden, sentence.labels.repeat(len(mask)), context_of(model, sources, owners))
        scores.append(score.view(len(mask), length))
    return torch.cat(scores)


def embedded(encoder: "Encoder", source: Tensor) -> tuple[Tensor, Tensor]:
    """Return the embedded ids [S] or frames [L, F], and the baseline without token embeddings: [S, D] each.

    If the encoder's norm stands directly on the embeddings, both are normalised vectors. The norm removes the length of
    a vector, so a gradient with respect to the vector itself is orthogonal to it: input times gradient would be 0 for
    every token without a position.
    """
    positions, mask = front(encoder, source[None])
    layout = layout_of(mask)
    whole = encoder.embed(positions, layout)
    baseline = encoder.embed(positions, layout, without_tokens=True)
    if len(encoder.layers):
        return whole, baseline
    return encoder.norm(whole), encoder.norm(baseline)


def encode_embedded(encoder: "Encoder", vectors: Tensor, layout: "Layout") -> Tensor:
    """Return the memory [n, D] of vectors [n, D] as `embedded` returns them."""
    return encode(encoder, vectors, layout) if len(encoder.layers) else vectors


def scores_of(model: "Transformer", sentence: Sentence) -> Scores:
    """Return a differentiable function of embedded sources [R, S, D] and target positions [R].

    It returns [R]: log p of the target token at each row's position.
    """

    def scores(sources: Tensor, places: Tensor) -> Tensor:
        rows = len(sources)
        mask = torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device)
        source_layout = layout_of(mask)
        memory = encode_embedded(model.encoder, sources.flatten(0, 1), source_layout)
        given = sentence.given.expand(rows, -1)
        ends = places + model.target_tags
        layout = layout_of(torch.arange(given.size(1), device=places.device) <= ends[:, None])
        hidden = decode(model.decoder, given, layout, memory, source_layout)
        last = hidden.index_select(0, (ends + 1).cumsum(0) - 1)
        whole = sentence.source.expand(rows, *sentence.source.shape), mask, source_layout.unpack(memory)
        context = context_of(model, whole, torch.arange(rows, device=places.device))
        return model.head.next_token(last, context).log_prob_of(sentence.labels[places, None])[:, 0]

    return scores


def gradients(model: "Transformer", sentence: Sentence, method: Method) -> Attribution:
    """Return input times gradient or integrated gradients over the source, with one row per target token."""
    source, baseline = embedded(model.encoder, sentence.source)
    places = torch.arange(len(sentence.labels), device=source.device)
    attribute = input_times_gradient if method == "input-gradient" else integrate
    rows = rows_per_pass(model, len(source), len(sentence.given), gradients=True)
    return attribute(scores_of(model, sentence), source, baseline, places, rows)


def input_times_gradient(scores: Scores, source: Tensor, baseline: Tensor, outputs: Tensor, rows: int) -> Attribution:
    """Return input times gradient (Simonyan et al. 2014; Shrikumar et al. 2016) of R outputs over S tokens.

    See `integrate`.
    """
    values = []
    for part in torch.split(outputs, rows):
        with torch.enable_grad():
            sources = source.detach().expand(len(part), -1, -1).clone().requires_grad_()
            (slopes,) = torch.autograd.grad(scores(sources, part).sum(), sources)
        values.append((slopes * (source - baseline)).sum(-1))
    return Attribution(method="input-gradient", values=rounded(torch.cat(values)), baseline=NO_VECTOR, error=None)


def rounded(values: Tensor) -> Contributions:
    """Return a matrix as nested tuples; None for non-finite values, such as gradients of an impossible token."""
    return tuple(tuple(value if math.isfinite(value) else None for value in row) for row in matrix(values))


def matrix(values: Tensor) -> Matrix:
    """Return a matrix as nested tuples of rounded numbers."""
    return tuple(map(tuple, values.double().round(decimals=DECIMALS).tolist()))


def integrate(scores: Scores, source: Tensor, baseline: Tensor, outputs: Tensor, rows: int) -> Attribution:
    """Return integrated gradients (Sundararajan et al. 2017) of R outputs over S tokens.

    scores: [R] of embedded sources [R, S, D] and output numbers [R].  source, baseline: [S, D].
    rows: maximum number of sources in one pass.
    Raises SettingsError if captum is not installed.
    """
    with needed_by("show: 'integrated-gradients'"):
        from captum.attr import IntegratedGradients  # type: ignore[import-untyped]  # captum has no types
    values, errors = [], []
    for part in torch.split(outputs, max(1, rows // STEPS)):  # captum makes the sources of all steps at once
        with torch.enable_grad():
            value, delta = IntegratedGradients(scores, multiply_by_inputs=True).attribute(
                source.detach().expand(len(part), -1, -1).clone(),
                baselines=baseline.detach().expand(len(part), -1, -1).clone(),
                additional_forward_args=(part,),
                n_steps=STEPS,
                internal_batch_size=max(rows, len(part)),
                return_convergence_delta=True,
            )
        values.append(value.sum(-1))
        errors.append(delta)
    largest_error = float(torch.cat(errors).abs().max())
    return Attribution(
        method="integrated-gradients", values=rounded(torch.cat(values)), baseline=NO_VECTOR, error=largest_error
    )
