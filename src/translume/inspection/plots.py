"""The plot methods of traces. `translume.drawing` registers the functions behind them when it is imported.

So this package does not depend on matplotlib, and `trace.plot_attention()` works in every session that imported
`translume.drawing`; the lazy names of `translume` do this.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AttentionKind = Literal["cross", "decoder", "encoder"]
HeadChoice = int | Literal["mean", "all"]

PlotRegistry = Callable[[str], Callable[..., Any]]
"""Maps the name of a plot to the function that draws it; its first argument is the trace."""

_registered: list[PlotRegistry] = []


def register_plots(plots: PlotRegistry) -> None:
    """Draw all plots with the functions of `plots` from now on."""
    _registered[:] = [plots]


def _function(name: str) -> Callable[..., Any]:
    if not _registered:
        raise RuntimeError(f"{name}: import translume.drawing first")
    return _registered[0](name)


class TracePlots:
    """Matplotlib figures of a trace. Notebooks display them; `savefig` writes them to a file.

    Each method raises SettingsError if the trace lacks the part that it plots.
    """

    __slots__ = ()

    def plot_attention(
        self, *, kind: AttentionKind = "cross", layer: int | None = None, head: HeadChoice = "mean"
    ) -> "Figure":
        """Plot attention weights as a heat map; rows attend to columns.

        layer: from 1; None for the last but one, whose cross-attention usually aligns best.
        head: a number from 1, "mean", or "all" for one small map per head.
        """
        figure: Figure = _function("plot_attention")(self, kind=kind, layer=layer, head=head)
        return figure

    def plot_beliefs(self) -> "Figure":
        """Plot the likeliest tokens of every step as a stacked bar of length 1, all other tokens at its end."""
        figure: Figure = _function("plot_beliefs")(self)
        return figure

    def plot_lens(self) -> "Figure":
        """Plot the likeliest token after each decoder layer (logit lens), shaded by p of the chosen token."""
        figure: Figure = _function("plot_lens")(self)
        return figure

    def plot_gain(self) -> "Figure":
        """Plot the gain of each token, log p(y | x, prefix) − log p(y | prefix), in nats."""
        figure: Figure = _function("plot_gain")(self)
        return figure

    def plot_attribution(self, method: str | None = None) -> "Figure":
        """Plot the attribution of target tokens to source tokens; method None: the first in the trace."""
        figure: Figure = _function("plot_attribution")(self, method=method)
        return figure

    def _repr_html_(self) -> str | None:
        """Return the tokens coloured by probability, for notebooks; None if translume.drawing is not imported."""
        drawn: str | None = _function("notebook")(self) if _registered else None
        return drawn


class ClassTracePlots:
    """Matplotlib figures of a classification; see `TracePlots`."""

    __slots__ = ()

    def plot_evidence(self, method: str | None = None) -> "Figure":
        """Plot the evidence of each token for the first classes; method None: the first in the trace."""
        figure: Figure = _function("plot_evidence")(self, method=method)
        return figure

    def _repr_html_(self) -> str | None:
        """Return the text coloured by evidence, for notebooks; None if translume.drawing is not imported."""
        drawn: str | None = _function("class_notebook")(self) if _registered else None
        return drawn
