"""The interface of output heads: loss, score, distribution and export; the targets of a teacher model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from translume.belief import NextToken, unchecked
from translume.model.compiled import on_device
from translume.model.state import Selectable

Objective = Callable[["Head", Tensor, Tensor, Any, "LossOptions"], "HeadLoss"]
"""Returns the loss of hidden states [n, D] and labels [n], as `Head.loss` does. The first argument is the head."""
PredictRows = Callable[[Tensor], NextToken]
"""Return the predicted distribution of some labels of a batch, given their indices [m]."""


@dataclass(frozen=True, slots=True)
class TeacherTargets:
    """A teacher's distributions for the labels of a batch, computed on demand and without gradient."""

    predict: PredictRows

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Tensor:
        """Return [m, V], fp32: the log-probabilities at some labels, given their indices [m]."""
        with unchecked() if on_device(rows) else nullcontext():
            return self.predict(rows).log_probs()


class TeacherNetwork(Protocol):
    """A network that can be a teacher."""

    def teacher_targets(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> TeacherTargets:
        """Return its distributions for the labels of a batch; arguments as for `loss`."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model in evaluation mode, and the weight of the divergence from it in the loss."""

    network: TeacherNetwork
    share: float


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """A loss over labels: fp32 sums in nats, to be divided once by all tokens of an update.

    objective: the quantity to differentiate.  nll: −Σ log p of the labels under the full distribution; None if not
    defined.  tokens: the number of labels.
    routing: [3], of mixtures of experts in training: their mean balance loss times `tokens`, the choices of experts
    over their capacity, and all choices; None without mixtures.
    """

    objective: Tensor
    nll: Tensor | None
    tokens: int
    routing: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossOptions:
    """The terms of a loss other than the nll.

    label_smoothing: share ε of the target probability that is spread over tokens.
    smoothed: [V], weights by which ε is spread; None: evenly over all tokens.
    z_loss: weight of (log normaliser)².
    confidence_penalty: weight of the negative entropy (Pereyra et al. 2017).
    r_drop: weight α of the divergence of two passes with different dropout (Wu et al. 2021); 0 makes one pass.
    teacher: the model to distil from; None learns from the labels only.
    teacher_targets: the teacher's distributions for one batch.
    ctc_weight: share of the objective that is the loss of `Transformer.ctc`.
    weights: [n], 1 for rows that count and 0 for padding, for heads that `weighs_rows`; None: all rows count.
    objective: what computes the loss of a head; None: the head itself.
    row_losses: computes what `heads.fixed_cross_entropy.row_losses` does, compiled; None: not compiled.
    Heads ignore `confidence_penalty` and the fields after it: `model.penalties` adds these terms for any head. Heads
    with `blends_teacher_loss` add the teacher's term themselves.
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    smoothed: Tensor | None = None
    confidence_penalty: float = 0.0
    r_drop: float = 0.0
    teacher: Teacher | None = None
    teacher_targets: TeacherTargets | None = None
    ctc_weight: float = 0.0
    weights: Tensor | None = None
    row_losses: Callable[..., Any] | None = None
    objective: Objective | None = None

    def loss(self, head: "Head", hidden: Tensor, labels: Tensor, context: Any) -> HeadLoss:
        """Return the loss of a head, or what `objective` makes of it."""
        if self.objective is not None:
            return self.objective(head, hidden, labels, context, self)
        return head.loss(hidden, labels, context, self)

    @property
    def has_penalties(self) -> bool:
        """Whether a part of the loss is computed for rows that count only."""
        return bool(self.confidence_penalty or self.r_drop or self.teacher or self.objective)

    @property
    def share(self) -> float:
        """λ, the weight of the divergence from the teacher; 0 without teacher targets."""
        return 0.0 if self.teacher is None or self.teacher_targets is None else self.teacher.share

    def with_teacher_targets(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> "LossOptions":
        """Return these options with the teacher's targets for a batch; arguments as for `Transformer.loss`."""
        if self.teacher is None:
            return self
        return replace(
            self, teacher_targets=self.teacher.network.teacher_targets(source, source_mask, target, target_mask)
        )


def likelihood(settings: object) -> None:
    """Return None: the loss is that of the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """width: of hidden states, D.  vocabulary: target tokens, V.  source_vocabulary: source tokens."""

    width: int
    vocabulary: int
    source_vocabulary: int


class TrainingPairs(Protocol):
    """The tokenized training pairs, by index."""

    @property
    def pairs(self) -> int: ...

    def source(self, index: int) -> NDArray[Any]:
        """Return the ids [S] of a source, without marks."""

    def target(self, index: int) -> NDArray[Any]:
        """Return the ids [T] of a target, without marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadData:
    """The data from which a head computes its tables before the first update.

    source_pieces, target_pieces: the vocabularies in order of ids.  end: the id of the target's EOS.
    specials: ids of the target's special tokens, EOS among them.
    """

    corpus: TrainingPairs
    source_pieces: Sequence[str]
    target_pieces: Sequence[str]
    end: int
    specials: frozenset[int]


class Head(nn.Module, ABC):
    """An output head: from hidden states to a distribution over the next token.

    Constructed as `Kind(settings, sizes, tied)`, where `tied` is an embedding [V, D] to share, or None, by
    `settings.tie`.
    normalised: probabilities sum to one.  full_support: every token has a positive one.  exact_loss: the objective
    without smoothing and z-loss is the nll.
    """

    normalised: bool = True
    full_support: bool = True
    exact_loss: bool = True
    exact_smoothing: bool = True
    """Whether label smoothing is (1−ε)·nll − ε·mean log p; else the head's docstring defines it."""
    weighs_rows: bool = False
    """Whether `loss` reads `LossOptions.weights`, so that padding, which differs by batch, need not be removed."""
    blends_teacher_loss: bool = False
    """Whether `loss` includes the teacher's term; else it is computed from `next_token`."""
    reads_source: bool = False
    """Whether `begin` returns something computed from the source."""
    vocabulary: int
    """V."""

    @abstractmethod
    def loss(self, hidden: Tensor, labels: Tensor, context: Selectable | None, options: LossOptions) -> HeadLoss:
        """Return the loss of labels [n] after hidden states [n, D]. Must not hold n×V elements.

        There is no padding, unless the head `weighs_rows` and `options` has weights.
        """

    def divergence(self, first: Tensor, second: Tensor) -> Tensor | None:
        """Return Σ over rows of KL(p‖q) + KL(q‖p), in nats, after hidden states `first` and `second` [n, D].

        None, the default: it is computed from `next_token`.
        """
        return None

    @abstractmethod
    def score(self, hidden: Tensor, labels: Tensor, context: Selectable | None) -> Tensor:
        """Return log-probabilities [n], fp32, of labels [n] after hidden states [n, D]. Must not hold n×V elements."""

    @abstractmethod
    def next_token(self, hidden: Tensor, context: Selectable | None) -> NextToken:
        """Return the distribution of the next token after hidden states [N, D]."""

    def terms(self, hidden: Tensor, context: Selectable | None) -> Mapping[str, Tensor]:
        """Return intermediate quantities [N, m] after hidden states [N, D], for inspection. Default: none."""
        return {}

    def learn(self, data: HeadData) -> None:
        """Fill the head's tables (buffers, saved with the weights) from the training pairs. Default: no tables."""

    def begin(self, source: Tensor, mask: Tensor, memory: Tensor) -> Selectable | None:
        """Return the head's context of a source: ids and mask [B, S], memory [B, S, D]. Called once; default: None."""
        return None

    def plain(self) -> Mapping[str, Tensor]:
        """Return `weight` [V, D] and optionally `bias` [V] if the head is one linear map and a softmax; else empty.

        Export formats that support only such heads use this and reject other heads. Default: empty.
        """
        return {}
