"""Integrated gradients, by captum."""

import torch
from captum.attr import IntegratedGradients  # type: ignore[import-untyped]  # captum has no types

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
    source, baseline = embedded(model, sentence)
    places = torch.arange(len(sentence.labels), device=source.device)
    size = len(places)
    scores = scores_of(model, sentence)
    with torch.enable_grad():
        values, apart = IntegratedGradients(scores, multiply_by_inputs=True).attribute(
            source.detach().expand(size, -1, -1).clone(),
            baselines=baseline.detach().expand(size, -1, -1).clone(),
            additional_forward_args=(places,),
            n_steps=STEPS,
            internal_batch_size=max(size, ROWS),
            return_convergence_delta=True,
        )
    return Attribution(
        method="integrated-gradients",
        values=rounded(values.sum(-1)),
        baseline=NO_VECTOR,
        error=float(apart.abs().max()),
    )
