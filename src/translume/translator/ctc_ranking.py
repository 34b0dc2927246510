"""Rank the hypotheses of a search by attention and CTC together (Watanabe et al. 2017)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.decoding.ctc_prefix import IMPOSSIBLE
from translume.translator.planning import Piece, padded_sources
from translume.translator.results import TextHypothesis


@torch.inference_mode()
def ctc_log_probs(checkpoint: Checkpoint, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of CTC [B, S, V] and the mask [B, S] of padded sources.

    The model has a CTC output.
    """
    model = checkpoint.model
    assert model.ctc is not None
    source, mask = model.encoder.front(source, mask)
    return model.ctc.log_probs(model.encoder(source, mask)), mask


@torch.inference_mode()
def rank_by_ctc(
    checkpoint: Checkpoint,
    pieces: Sequence[Piece],
    found: Sequence[Sequence[TextHypothesis]],
    weight: float,
    nbest: int,
) -> list[list[TextHypothesis]]:
    """Return the `nbest` hypotheses of each piece by (1 − weight) · log_prob + weight · log p of CTC, best first.

    The search was guided by the same sum (`CtcPrefix`). `score` is this sum.
    """
    specials = checkpoint.target_tokenizer.specials
    device = next(checkpoint.model.parameters()).device
    log_probs, mask = ctc_log_probs(checkpoint, *padded_sources(pieces, checkpoint.source_tokenizer.specials, device))
    log_probs = log_probs.transpose(0, 1)  # [S, B, V]
    ranked = []
    for number, hypotheses in enumerate(found):
        targets = [[id_ for id_ in each.ids if id_ != specials.eos] for each in hypotheses]
        count = len(targets)
        losses = F.ctc_loss(
            log_probs[:, number : number + 1].expand(-1, count, -1),
            torch.tensor([id_ for target in targets for id_ in target], dtype=torch.long, device=mask.device),
            mask[number].sum().expand(count),
            torch.tensor([len(target) for target in targets], device=mask.device),
            blank=specials.bos,
            reduction="none",
        )
        scored = [
            replace(each, score=(1 - weight) * each.log_prob + weight * max(-loss, IMPOSSIBLE), terms=None)
            for each, loss in zip(hypotheses, losses.tolist(), strict=True)
        ]
        ranked.append(sorted(scored, key=lambda each: -each.score)[:nbest])
    return ranked
