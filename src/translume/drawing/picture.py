"""A figure without a screen that shows itself in a notebook, and what all pictures of tokens share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO

from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

CHOSEN, USED, DOUBT, AGAINST, OTHERS = "#2563a8", "#1a7f5a", "#d65d0e", "#b3352b", "#c9d3de"
"""The page's colours."""
ROW = 0.27
"""Inches of a row of text."""
LETTER = 0.085
"""Inches that a letter takes, about."""
LONGEST = 18
"""Letters of a token that are shown."""
FAMILIES = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "PingFang SC",
    "Hiragino Sans", "Microsoft YaHei", "Noto Sans Thai", "Noto Sans Arabic", "Noto Sans Devanagari",
)  # fmt: skip
"""Fonts tried in turn for a letter; those that are not here are left out."""


class Picture(Figure):
    """A figure; notebooks show it, whether or not pyplot was ever imported."""

    def _repr_png_(self) -> bytes:
        written = BytesIO()
        self.savefig(written, format="png", dpi=110)
        return written.getvalue()


def picture(*, width: float, height: float) -> Picture:
    """An empty figure, sizes in inches."""
    figure = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def lettering() -> Iterator[None]:
    """Text drawn inside is small, and in whatever of FAMILIES there is."""
    known = set(font_manager.get_font_names())
    families = [name for name in FAMILIES if name in known]
    with rc_context({"font.family": families, "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False,
                     "axes.spines.right": False}):  # fmt: skip
        yield


def short(text: str) -> str:
    """A token as it is shown, cut if it is long."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def signed(number: float, *, digits: int = 2) -> str:
    """A number with its sign, a real minus and no "−0.0"."""
    return f"{number:+z.{digits}f}".replace("-", "−")


def longest(texts: Sequence[str]) -> float:
    """Inches that the longest of some tokens takes."""
    return LETTER * max((len(short(text)) for text in texts), default=0)


def label_rows(axes: Axes, texts: Sequence[str]) -> None:
    """Write tokens beside the rows, first on top."""
    axes.set_yticks(range(len(texts)), [short(text) for text in texts])
    axes.set_ylim(len(texts) - 0.5, -0.5)
    _plainly(axes.get_yticklabels())


def label_columns(axes: Axes, texts: Sequence[str]) -> None:
    """Write tokens above the columns."""
    axes.set_xticks(range(len(texts)), [short(text) for text in texts], rotation=90)
    axes.xaxis.tick_top()
    _plainly(axes.get_xticklabels())


def _plainly(labels: Sequence[object]) -> None:
    for label in labels:
        label.set_parse_math(False)  # type: ignore[attr-defined]  # a Text; "$" in a token is a dollar
