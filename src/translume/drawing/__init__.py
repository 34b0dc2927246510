"""Drawings of inspection results, for terminals, HTML pages, notebooks and figures.

Modules with figures are imported on first use, because matplotlib loads slowly.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from translume.drawing.pages import class_page, corpus_page, text_page, trace_page
from translume.drawing.terminal import (
    class_lines,
    corpus_lines,
    edited_lines,
    forced_lines,
    trace_lines,
    why_not_lines,
)
from translume.inspection.values import register_plots

if TYPE_CHECKING:
    from translume.drawing.figures import plot_attention as plot_attention
    from translume.drawing.figures import plot_attribution as plot_attribution
    from translume.drawing.figures import plot_beliefs as plot_beliefs
    from translume.drawing.figures import plot_evidence as plot_evidence
    from translume.drawing.figures import plot_gain as plot_gain
    from translume.drawing.figures import plot_lens as plot_lens
    from translume.drawing.notebooks import class_notebook as class_notebook
    from translume.drawing.notebooks import notebook as notebook

_MODULES = {
    "class_notebook": "notebooks",
    "notebook": "notebooks",
    "plot_attention": "figures",
    "plot_attribution": "figures",
    "plot_beliefs": "figures",
    "plot_evidence": "figures",
    "plot_gain": "figures",
    "plot_lens": "figures",
}
"""The module of each function that is imported on first use."""

__all__ = [
    "class_lines",
    "class_notebook",
    "class_page",
    "corpus_lines",
    "corpus_page",
    "edited_lines",
    "forced_lines",
    "notebook",
    "plot_attention",
    "plot_attribution",
    "plot_beliefs",
    "plot_evidence",
    "plot_gain",
    "plot_lens",
    "text_page",
    "trace_lines",
    "trace_page",
    "why_not_lines",
]


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _MODULES:
        raise AttributeError(f"module 'translume.drawing' has no attribute '{name}'")
    found: Callable[..., Any] = getattr(import_module(f"translume.drawing.{_MODULES[name]}"), name)
    return found


register_plots(__getattr__)
