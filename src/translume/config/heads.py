"""[model.head]: the output head, from hidden states to probabilities; one class a kind."""

from typing import ClassVar, Literal

from translume.config.base import Settings

Tie = Literal["all", "target", "none"]


class SoftmaxSettings(Settings):
    """[model.head] kind = "softmax": one linear map and a softmax."""

    implementation: ClassVar[str] = "translume.heads.softmax:SoftmaxHead"
    kind: Literal["softmax"] = "softmax"
    tie: Tie = "all"
    """Share weights: "all" source embedding, target embedding and head; "target" the last two; "none"."""
    bias: bool = True
    """Add a bias for each token, which starts at zero."""


HeadSettings = SoftmaxSettings
"""Every kind of head, told apart by `kind`; a new one is a class above and its name in this union."""
