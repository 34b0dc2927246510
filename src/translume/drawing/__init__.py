"""Pictures of what inspection found: they read its values and compute nothing.

Figures are imported when one is drawn: matplotlib takes its time.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from translume.drawing.class_page import class_page
from translume.drawing.class_terminal import class_lines
from translume.drawing.page import page
from translume.drawing.terminal import lines
from translume.inspection.plots import register_plots

if TYPE_CHECKING:
    from translume.drawing.class_figures import class_notebook as class_notebook
    from translume.drawing.class_figures import plot_evidence as plot_evidence
    from translume.drawing.embedded import notebook as notebook
    from translume.drawing.figures import plot_attention as plot_attention
    from translume.drawing.figures import plot_attribution as plot_attribution
    from translume.drawing.figures import plot_beliefs as plot_beliefs
    from translume.drawing.figures import plot_gain as plot_gain
    from translume.drawing.figures import plot_lens as plot_lens

_FILES = {
    "class_notebook": "class_figures",
    "notebook": "embedded",
    "plot_attention": "figures",
    "plot_attribution": "figures",
    "plot_beliefs": "figures",
    "plot_evidence": "class_figures",
    "plot_gain": "figures",
    "plot_lens": "figures",
}
"""Where each way to draw is."""

__all__ = [
    "class_lines",
    "class_notebook",
    "class_page",
    "lines",
    "notebook",
    "page",
    "plot_attention",
    "plot_attribution",
    "plot_beliefs",
    "plot_evidence",
    "plot_gain",
    "plot_lens",
]


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _FILES:
        raise AttributeError(f"module 'translume.drawing' has no attribute '{name}'")
    found: Callable[..., Any] = getattr(import_module(f"translume.drawing.{_FILES[name]}"), name)
    return found


register_plots(__getattr__)
