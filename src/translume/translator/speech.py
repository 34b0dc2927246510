"""Recordings: the language that is spoken in them."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from translume.checkpoint import Checkpoint
from translume.decoding import Stepper
from translume.text.speech import UNKNOWN_LANGUAGE, SpeechTokens
from translume.translator.planning import Piece, batches, padded_sources


@torch.inference_mode()
def with_languages(
    checkpoint: Checkpoint, pieces: Sequence[Piece], stepper: Stepper, max_tokens: int
) -> tuple[Piece, ...]:
    """Return pieces whose prompts name the language: the most likely one after the begin mark, where it is unknown."""
    unknown = [number for number, piece in enumerate(pieces) if UNKNOWN_LANGUAGE in piece.target_tags]
    if not unknown:
        return tuple(pieces)
    tokenizer, found = checkpoint.target_tokenizer, list(pieces)
    tokens, device = SpeechTokens.of(tokenizer), next(checkpoint.model.parameters()).device
    ids = torch.tensor([*tokens.languages.values()], device=device)
    for batch in batches([len(pieces[number].ids) for number in unknown], max_tokens):
        numbers = [unknown[place] for place in batch]
        state = stepper.start(*padded_sources([pieces[number] for number in numbers], tokenizer.specials, device))
        begin = torch.full((len(numbers), 1), tokenizer.specials.bos, device=device)
        belief, _ = stepper.step(begin, state)
        best = ids[belief.log_prob_of(ids.expand(len(numbers), -1)).argmax(1)]
        for number, language in zip(numbers, best.tolist(), strict=True):
            prompt = tokens.with_language(pieces[number].target_tags, language)
            found[number] = replace(pieces[number], target_tags=prompt)
    return tuple(found)
