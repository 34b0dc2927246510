"""What a trace can be drawn as. The methods stand here; the room that draws says, when it is imported, what draws.

So data know nothing of drawing, and `trace.plot_attention()` works as soon as `translume.drawing` was imported, which
the package's face does whenever it gives a name of this room.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["cross", "decoder", "encoder"]
Head = int | Literal["mean", "all"]

Draws = Callable[[str], Callable[..., Any]]
"""From the name of a way to draw to the function that does, which gets the value first."""

_hung: list[Draws] = []


def hang(draws: Draws) -> None:
    """Have pictures be drawn by what `draws` names from now on."""
    _hung[:] = [draws]


def _function(name: str) -> Callable[..., Any]:
    if not _hung:
        raise RuntimeError(f"{name}: translume.drawing draws it; import that first")
    return _hung[0](name)


class Pictured:
    """Pictures of a trace, by matplotlib; a figure shows itself in a notebook and `savefig` writes it to a file.

    Each raises SettingsError where the trace holds nothing of what is wanted.
    """

    __slots__ = ()

    def plot_attention(self, *, kind: Kind = "cross", layer: int | None = None, head: Head = "mean") -> "Figure":
        """Attention weights as a heat map, rows reading columns.

        layer: from 1; None for the last but one, whose cross-attention aligns best as a rule.
        head: a number from 1, "mean", or "all" for a small map of each.
        """
        figure: Figure = _function("plot_attention")(self, kind=kind, layer=layer, head=head)
        return figure

    def plot_beliefs(self) -> "Figure":
        """The likeliest tokens of every step as parts of a bar of length one, the mass of all others at its end."""
        figure: Figure = _function("plot_beliefs")(self)
        return figure

    def plot_lens(self) -> "Figure":
        """After each decoder layer the token that the head would say, shaded by what it gives the chosen one."""
        figure: Figure = _function("plot_lens")(self)
        return figure

    def plot_gain(self) -> "Figure":
        """What the source says for each token, log p(y | x, prefix) − log p(y | prefix), in nats."""
        figure: Figure = _function("plot_gain")(self)
        return figure

    def plot_attribution(self, method: str | None = None) -> "Figure":
        """How much each source token speaks for each target token, by a method; None for the first that there is."""
        figure: Figure = _function("plot_attribution")(self, method=method)
        return figure

    def _repr_html_(self) -> str | None:
        """The tokens coloured by probability, for a notebook; None where nothing draws."""
        drawn: str | None = _function("notebook")(self) if _hung else None
        return drawn


class PicturedClass:
    """Pictures of a classifier's answer, as `Pictured` are of a translation."""

    __slots__ = ()

    def plot_evidence(self, method: str | None = None) -> "Figure":
        """What each token says for each of the first classes, by a method; None for the first that there is."""
        figure: Figure = _function("plot_evidence")(self, method=method)
        return figure

    def _repr_html_(self) -> str | None:
        """The text with its evidence, for a notebook; None where nothing draws."""
        drawn: str | None = _function("class_notebook")(self) if _hung else None
        return drawn
