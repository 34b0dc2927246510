"""Integrated gradients, by captum."""

from collections.abc import Callable

import torch
from captum.attr import IntegratedGradients  # type: ignore[import-untyped]  # captum has no types
from torch import Tensor

from translume.inspection.attribution import NO_VECTOR, embedded, rounded, scores_of
from translume.inspection.passes import Sentence
from translume.inspection.values import Attribution
from translume.model.transformer import Transformer

STEPS = 32
"""Points on the way from the baseline, by Gauss and Legendre."""
ROWS = 256
"""Sources read at once."""


def integrated_gradients(model: Transformer, sentence: Sentence) -> Attribution:
    """Integrated gradients of every target token (Sundararajan et al. 2017, equation 1) over the source's vectors."""
    places = torch.arange(len(sentence.labels), device=sentence.source.device)
    values, error = integrated(scores_of(model, sentence), embedded(model.encoder, sentence.source), places)
    return Attribution(method="integrated-gradients", values=rounded(values), baseline=NO_VECTOR, error=error)


def integrated(
    scores: Callable[[Tensor, Tensor], Tensor], vectors: tuple[Tensor, Tensor], wanted: Tensor
) -> tuple[Tensor, float]:
    """[R, S] integrated gradients of R scores over the vectors' S tokens, and by how much they miss at most.

    scores: [R] of embedded sources [R, S, D] and what is wanted of each, [R].  vectors: the source's and the
    baseline's, [S, D].
    """
    source, baseline = vectors
    size = len(wanted)
    with torch.enable_grad():
        values, apart = IntegratedGradients(scores, multiply_by_inputs=True).attribute(
            source.detach().expand(size, -1, -1).clone(),
            baselines=baseline.detach().expand(size, -1, -1).clone(),
            additional_forward_args=(wanted,),
            n_steps=STEPS,
            internal_batch_size=max(size, ROWS),
            return_convergence_delta=True,
        )
    return values.sum(-1), float(apart.abs().max())
