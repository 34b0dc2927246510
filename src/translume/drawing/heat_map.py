"""A heat map between two lists of tokens."""

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from translume.drawing.picture import label_columns, label_rows, lettering, longest, picture

CELL = 0.27
"""Inches of a cell."""


def heat_map(
    values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
    texts: tuple[list[str], list[str]],
    title: str,
    colours: str,
    *,
    limits: tuple[float, float],
    unit: str,
) -> Figure:
    """A cell for each of values [rows, columns], grey where there is none, between the texts of both."""
    rows, columns = texts
    with lettering():
        width = CELL * len(columns) + longest(rows) + 1.3
        figure = picture(width=max(width, 0.075 * len(title) + 0.4), height=CELL * len(rows) + longest(columns) + 0.7)
        axes = figure.subplots()
        scale = colormaps[colours].with_extremes(bad="0.85")
        shown = axes.imshow(values, cmap=scale, vmin=limits[0], vmax=limits[1], aspect="equal")
        label_rows(axes, rows)
        label_columns(axes, columns)
        axes.tick_params(length=0)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.colorbar(shown, label=unit, shrink=0.8, aspect=25)
    return figure
