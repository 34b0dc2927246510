"""The interface of output heads: one for loss, score, belief and export."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from translume.belief import NextToken
from translume.model.state import Selectable


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """A loss over labels, as fp32 sums in nats, to be divided once by all tokens of an update.

    objective: what is differentiated.  nll: −Σ log p of the labels under the full belief, None where that is not
    defined.  tokens: how many labels.
    """

    objective: Tensor
    nll: Tensor | None
    tokens: int


@dataclass(frozen=True, slots=True)
class LossOptions:
    """label_smoothing: share of the target spread over all V classes.  z_loss: weight of (log normaliser)²."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0


class Head(nn.Module, ABC):
    """Hidden states to a belief about the next token.

    normalised: probabilities sum to one.  full_support: every token has a positive one.  exact_loss: the objective
    without smoothing and z-loss is the nll.
    """

    normalised: bool = True
    full_support: bool = True
    exact_loss: bool = True
    reads_source: bool = False
    """Whether `begin` makes something of the source."""
    vocabulary: int
    """V."""

    @abstractmethod
    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        """The loss of labels [n] after hidden states [n, D]; no padding among them. Never holds n×V."""

    @abstractmethod
    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        """[n], fp32: log-probabilities of labels [n] after hidden states [n, D]. Never holds n×V."""

    @abstractmethod
    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        """The belief after hidden states [N, D]."""

    def begin(self, source: Tensor, mask: Tensor, memory: Tensor) -> Selectable | None:
        """What the head makes of a source once a sentence: ids and mask [B, S], memory [B, S, D]. Default: nothing."""
        return None

    def plain(self) -> Mapping[str, Tensor]:
        """`weight` [V, D] and perhaps `bias` [V], if the head is one linear map and a softmax; else an empty mapping.

        Export targets that know only such a head ask here, and refuse the others by name. Default: empty.
        """
        return {}
