"""From the pieces of lines to hypotheses: what settings ask of a search, put together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding import (
    ForbidTokens,
    ForcedPrefix,
    Hypothesis,
    MinimumLength,
    Rule,
    Stepper,
    reshaped,
    search,
    strategy_from,
)
from translume.translator.plan import Piece
from translume.translator.tensors import padded


@torch.inference_mode()
def search_pieces(
    checkpoint: Checkpoint, pieces: Sequence[Piece], settings: DecodingSettings, stepper: Stepper | None = None
) -> list[list[Hypothesis]]:
    """For each piece its best hypotheses, best first.

    stepper: what steps instead of the checkpoint's plain model, whose vocabularies it shares.
    Raises SearchError for a piece that cannot be searched.
    """
    steps: Stepper = stepper or checkpoint.model
    specials, end = checkpoint.target_tokenizer.specials, checkpoint.source_tokenizer.specials
    device = next(checkpoint.model.parameters()).device
    source, mask = padded([[*piece.ids, end.eos] for piece in pieces], end.pad, device)
    forced = checkpoint.target_tokenizer.encode(settings.prefix)
    prefixes = [forced if piece.first else [] for piece in pieces]
    longest = checkpoint.config.model.max_positions
    limits = [
        limit_of(len(piece.ids), len(prefix), settings, longest) for piece, prefix in zip(pieces, prefixes, strict=True)
    ]
    temperature = checkpoint.temperature if settings.calibrated else None
    return search(
        reshaped(steps.step, temperature=temperature.value if temperature else 1.0, unsmooth=settings.unsmooth),
        steps.start(source, mask),
        bos=specials.bos,
        eos=specials.eos,
        strategy=strategy_from(settings, keys_of(pieces).to(device)),
        limits=torch.tensor(limits, device=device),
        rules=_rules(checkpoint, prefixes, settings),
    )


def limit_of(length: int, prefix: int, settings: DecodingSettings, longest: int) -> int:
    """Most target tokens, end mark counted, for a source of `length` tokens, its end mark not counted.

    prefix: how many tokens of the target are given.  longest: the most that the model can count to.
    """
    limit = int(settings.max_length_ratio * length) + settings.max_length_extra + prefix
    if settings.max_length:
        limit = min(limit, settings.max_length)
    return min(limit, longest)


def keys_of(pieces: Sequence[Piece]) -> Tensor:
    """[B], a number for each piece that its ids alone decide: what is drawn for a text does not depend on its place."""
    return torch.tensor([_key(piece.ids) for piece in pieces], dtype=torch.long)


def _key(ids: Sequence[int]) -> int:
    """FNV-1a over ids, in 63 bits."""
    key = 0xCBF29CE484222325
    for each in ids:
        key = ((key ^ (each + 1)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return key >> 1


def _rules(checkpoint: Checkpoint, prefixes: Sequence[Sequence[int]], settings: DecodingSettings) -> list[Rule]:
    """What [decoding] forbids and forces.  prefixes: ids that each piece's target begins with."""
    specials = checkpoint.target_tokenizer.specials
    rules: list[Rule] = [ForbidTokens(tuple(sorted({specials.pad, specials.bos} - {specials.eos})))]
    if settings.min_length:
        rules.append(MinimumLength(settings.min_length))
    if any(prefixes):
        rules.append(ForcedPrefix(prefixes))
    return rules
