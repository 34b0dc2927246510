"""Several searches, each as far as it is, that take their steps together."""

from collections.abc import Sequence
from typing import Any

import torch

from translume.decoding.beam import Beam
from translume.decoding.error import SearchError
from translume.decoding.joint import stepped
from translume.decoding.loop import Search


@torch.inference_mode()
def advance(searches: Sequence[Search[Any]]) -> list[Beam | SearchError]:
    """One step of each search that is not over, those with equal steps at once; the beam of each after it.

    A search that began later is not as far: its prefix is shorter, and nothing of it waits for the others. What each
    finds is what it finds alone. A SearchError, of a search that can find nothing more, does not concern the others.
    """
    found: dict[int, Beam | SearchError] = {}
    rest = list(range(len(searches)))
    while rest:
        step = searches[rest[0]].step
        chosen = [number for number in rest if searches[number].step == step]
        rest = [number for number in rest if number not in chosen]
        readings = [(searches[number].prefix, searches[number].state) for number in chosen]
        for number, (belief, state) in zip(chosen, stepped(step, readings), strict=True):
            try:
                found[number] = searches[number].take(belief, state)
            except SearchError as error:
                found[number] = error
    return [found[number] for number in range(len(searches))]
