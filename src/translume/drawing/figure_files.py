"""Pictures: a figure to draw on without a screen, and a file written whole or not at all."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from translume.atomic import write_file
from translume.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(path: Path, *, width: float, height: float) -> "Figure":
    """An empty figure, sizes in inches; DataError if the ending of `path` names no format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if path.suffix.removeprefix(".") not in FigureCanvasAgg(figure).get_supported_filetypes():
        raise DataError(f"{path}: found '{path.suffix}', wanted a picture's ending such as .png, .svg or .pdf")
    return figure


def write_figure(figure: "Figure", path: Path) -> None:
    """Write the figure in the format that the ending of `path` names."""
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix("."), dpi=120)
    write_file(path, picture.getvalue())
