"""Sources of frames in a trace: positions, levels to draw, and the part that each target token belongs to."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from translume.config import FrameSettings
from translume.config.sources import ImageSettings
from translume.inspection.inputs import TraceInputs
from translume.inspection.passes import Pass
from translume.inspection.values import Frames, Token

FRAMES_PER_SECOND = 100.0
"""Of recordings."""
_LEVELS = 255


def traced_frames(inputs: TraceInputs, found: Pass) -> tuple[tuple[Token, ...], Frames]:
    """Return the positions of a source of frames as tokens, and the source itself."""
    frames, settings = inputs.piece.frames, inputs.checkpoint.config.data.source
    assert frames is not None
    assert isinstance(settings, FrameSettings)
    if settings.window:
        frames = frames[: _end_of_sound(frames)]
    stride = 1 << settings.convolutions
    timed = settings.kind in ("audio", "whisper")
    tokens = []
    for place in range(found.memory.size(1)):
        begin, end = (min(each * stride, len(frames)) for each in (place, place + 1))
        text = f"{place * stride / FRAMES_PER_SECOND:.2f}" if timed else str(place * stride)
        tokens.append(Token(id=0, text=text, begin=begin, end=end))
    spans, aligned_by = _spans(inputs, found)
    low, high = (0.0, 1.0) if settings.kind == "image" else (float(frames.min()), float(frames.max()))
    levels = np.rint((frames - low) * (_LEVELS / ((high - low) or 1.0))).astype(int)
    return tuple(tokens), Frames(
        kind=settings.kind,
        per_second=FRAMES_PER_SECOND if timed else 0.0,
        colors=settings.size // settings.height if isinstance(settings, ImageSettings) else 1,
        low=low,
        high=high,
        levels=tuple(map(tuple, levels.tolist())),
        spans=tuple((tokens[first].begin, tokens[last - 1].end) if last > first else (0, 0) for first, last in spans),
        aligned_by=aligned_by,
    )


def _end_of_sound(frames: NDArray[np.float32]) -> int:
    """Return the number of frames before the silence with which a window is filled up; at least 1."""
    sounding = np.flatnonzero(frames.max(1) > frames.min())
    return int(sounding[-1]) + 1 if len(sounding) else 1


def _spans(inputs: TraceInputs, found: Pass) -> tuple[list[tuple[int, int]], Literal["", "ctc", "attention"]]:
    """Return the positions [first, last) of each target token, and how they were found."""
    model, specials = inputs.checkpoint.model, inputs.checkpoint.target_tokenizer.specials
    count = len(inputs.target) - (inputs.finished_by == "eos")
    end = [(0, 0)] * (len(inputs.target) - count)
    if model.ctc is not None:
        log_probs = model.ctc.log_probs(found.memory)[0].double().cpu().numpy()
        spans = ctc_alignment(log_probs, inputs.target[:count], specials.bos)
        if spans is not None:
            return spans + end, "ctc"
    if not found.layers.cross:
        return [(0, 0)] * len(inputs.target), ""
    weights = found.layers.cross[max(0, len(found.layers.cross) - 2)][0].mean(0)  # [t, S]
    places = torch.argmax(weights[:count], 1).tolist()
    return [(place, place + 1) for place in places] + end, "attention"


def ctc_alignment(log_probs: NDArray[np.float64], target: Sequence[int], blank: int) -> list[tuple[int, int]] | None:
    """Return the positions [first, last) of each token in the most likely alignment of a target with its source.

    log_probs: [S, V], of tokens and the blank.  None if the target needs more positions than the source has.
    """
    states = [blank]
    for id_ in target:
        states += [id_, blank]
    scores = log_probs[:, states]  # [S, 2t + 1]
    count = len(states)
    skips = np.array([place % 2 == 1 and place > 1 and states[place] != states[place - 2] for place in range(count)])
    best = np.full(count, -np.inf)
    best[:2] = scores[0, :2]
    moves = np.zeros(scores.shape, np.int8)
    for place in range(1, len(scores)):
        options = np.full((3, count), -np.inf)
        options[0] = best
        options[1, 1:] = best[:-1]
        options[2, 2:] = np.where(skips[2:], best[:-2], -np.inf)
        moves[place] = options.argmax(0)
        best = options.max(0) + scores[place]
    state = count - 1 if count == 1 or best[-1] >= best[-2] else count - 2
    if best[state] == -np.inf:
        return None
    spans = [(0, 0)] * len(target)
    for place in range(len(scores) - 1, -1, -1):
        if state % 2:
            last = spans[state // 2][1] or place + 1
            spans[state // 2] = (place, last)
        state -= int(moves[place][state])
    return spans
