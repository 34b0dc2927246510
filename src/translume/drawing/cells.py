"""Texts and shades of fixed width in a terminal."""

from rich.cells import cell_len, set_cell_size

SHADES = " ░▒▓█"
COLUMN_WIDTH = 14
"""Characters of a token in a column."""


def column(text: str, width: int = COLUMN_WIDTH) -> str:
    """Cut and pad a text to the width of a column. Han and other wide characters take two cells of a terminal."""
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width)


def shade(weight: float) -> str:
    """Return a block for an attention weight; weights from 0.6 on are the darkest."""
    return SHADES[min(len(SHADES) - 1, int(weight * 1.6 * (len(SHADES) - 1) + 0.5))]
