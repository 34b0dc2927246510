"""Tables that map our weight names to those of another toolkit, in both directions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translume.errors import ModelFolderError

Part = tuple[str, int]
"""The name of a tensor, and its share of the rows of the concatenation that it belongs to."""


@dataclass(frozen=True, slots=True)
class Row:
    """The same weights under two sets of names: `ours` concatenated equal `theirs` concatenated."""

    ours: tuple[Part, ...]
    theirs: tuple[Part, ...]


def same(ours: str, theirs: str) -> list[Row]:
    """Return the rows of the weight and the bias of one linear layer or norm."""
    return stacked([(ours, 1)], [(theirs, 1)])


def stacked(ours: Sequence[Part], theirs: Sequence[Part]) -> list[Row]:
    """Return the rows of the weights and the biases of concatenated linear layers."""
    return [
        Row(*(tuple((f"{name}.{kind}", share) for name, share in parts) for parts in (ours, theirs)))
        for kind in ("weight", "bias")
    ]


def to_theirs(rows: Iterable[Row], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights under their names, concatenated ones as copies. Raises ModelFolderError for a missing one."""
    return _renamed(((row.ours, row.theirs) for row in rows), weights)


def to_ours(rows: Iterable[Row], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return their weights under our names, concatenated ones as copies. Raises ModelFolderError for a missing one."""
    return _renamed(((row.theirs, row.ours) for row in rows), weights)


def _renamed(
    pairs: Iterable[tuple[tuple[Part, ...], tuple[Part, ...]]], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for given, wanted in pairs:
        for name, _ in given:
            if name not in weights:
                raise ModelFolderError(f"{name}: no such weights, expected them for {wanted[0][0]}")
        found = [weights[name].detach() for name, _ in given]
        if len(found) == len(wanted) == 1:
            renamed[wanted[0][0]] = found[0]
            continue
        whole = found[0] if len(found) == 1 else torch.cat(found)
        unit = whole.size(0) // sum(share for _, share in wanted)
        parts = torch.split(whole, [unit * share for _, share in wanted])
        one = len(parts) == 1
        renamed.update({name: part if one else part.clone() for (name, _), part in zip(wanted, parts, strict=True)})
    return renamed
