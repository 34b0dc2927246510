"""From settings to what a loss holds beside the nll."""

import torch

from translume.config import TrainingSettings
from translume.model import LossOptions
from translume.text import SpecialIds


def loss_options(settings: TrainingSettings, vocabulary: int, specials: SpecialIds) -> LossOptions:
    """The options of a loss over `vocabulary` target tokens.

    Three definitions of label smoothing ε: "all" puts ε/V on every token (Szegedy et al. 2016; PyTorch, Marian);
    "others" ε/(V−1) on all but the label (fairseq), which is the first with ε·V/(V−1); "text" spreads ε over all but
    padding, the begin mark and the unknown token, which no target holds (as JoeyNMT leaves out padding).
    """
    smoothing, smoothed = settings.label_smoothing, None
    if smoothing and settings.label_smoothing_over == "others":
        smoothing = smoothing * vocabulary / (vocabulary - 1)
    elif smoothing and settings.label_smoothing_over == "text":
        smoothed = torch.ones(vocabulary, dtype=torch.bool)
        smoothed[[each for each in (specials.pad, specials.bos, specials.unk) if each is not None]] = False
    return LossOptions(smoothing, settings.z_loss, smoothed, settings.confidence_penalty, settings.r_drop)
