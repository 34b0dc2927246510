"""The interface of output heads: loss, score, distribution and export; the targets of a teacher model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from translume.belief import NextToken
from translume.model.state import Selectable

Believe = Callable[[Tensor], NextToken]
"""The belief about some of the labels of a batch, given their numbers [m]."""


@dataclass(frozen=True, slots=True)
class TeacherTargets:
    """What a teacher believes about the labels of a batch; worked out when it is asked, and never differentiated."""

    believe: Believe

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Tensor:
        """[m, V], fp32: log-probabilities in the place of some labels, given their numbers [m]."""
        return self.believe(rows).log_probs()


class TeacherNetwork(Protocol):
    """A network that can teach."""

    def teacher_targets(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> TeacherTargets:
        """What it believes about the labels of a batch, as its `loss` is given them."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A model, in evaluation mode, and the share of the loss that is the distance to its beliefs."""

    network: TeacherNetwork
    share: float


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
    """What a loss holds beside the nll.

    label_smoothing: share of the target spread over the tokens as `smoothed` [V] says: marks of those that it is
    spread over evenly, or weights that it is spread in proportion to; None: over all evenly.
    z_loss: weight of (log normaliser)².
    confidence_penalty: weight of the negative entropy (Pereyra et al. 2017).
    r_drop: weight α of the divergence of two passes with other dropout (Wu et al. 2021); 0 makes one pass.
    teacher: whose beliefs take a share of the loss; None learns from the labels alone.
    lesson: what the teacher believes about the labels of one batch.
    All from `confidence_penalty` on is made of any head's beliefs by `model.penalties`; heads leave it alone, but for
    those that `take_lessons`.
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    smoothed: Tensor | None = None
    confidence_penalty: float = 0.0
    r_drop: float = 0.0
    teacher: Teacher | None = None
    teacher_targets: TeacherTargets | None = None

    @property
    def share(self) -> float:
        """λ: the part of the loss that is the distance to what a teacher believes; 0 without a lesson."""
        return 0.0 if self.teacher is None or self.teacher_targets is None else self.teacher.share

    def with_teacher_targets(
        self, source: Tensor, source_mask: Tensor, target: Tensor, target_mask: Tensor
    ) -> "LossOptions":
        """These options with the teacher's lesson about a batch, given as to `Transformer.loss`."""
        if self.teacher is None:
            return self
        return replace(
            self, teacher_targets=self.teacher.network.teacher_targets(source, source_mask, target, target_mask)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """width: of hidden states, D.  vocabulary: target tokens, V.  source_vocabulary: source tokens."""

    width: int
    vocabulary: int
    source_vocabulary: int


class TrainingPairs(Protocol):
    """The tokenized training pairs, read by number."""

    @property
    def pairs(self) -> int: ...

    def source(self, index: int) -> NDArray[Any]:
        """Ids of a source [S], without marks."""

    def target(self, index: int) -> NDArray[Any]:
        """Ids of a target [T], without marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadData:
    """What a head may learn its tables from before the first update.

    source_pieces, target_pieces: the vocabularies in order of ids.  end: the id of the target's end mark.
    specials: ids of the target's special tokens, the end mark among them.
    """

    corpus: TrainingPairs
    source_pieces: Sequence[str]
    target_pieces: Sequence[str]
    end: int
    specials: frozenset[int]


class Head(nn.Module, ABC):
    """Hidden states to a belief about the next token.

    Made as `Kind(settings, sizes, tied)`, where `tied` is an embedding [V, D] to share (received, never copied) or
    None as `settings.tie` says.
    normalised: probabilities sum to one.  full_support: every token has a positive one.  exact_loss: the objective
    without smoothing and z-loss is the nll.
    """

    normalised: bool = True
    full_support: bool = True
    exact_loss: bool = True
    exact_smoothing: bool = True
    """Whether label smoothing is (1−ε)·nll − ε·mean log p; else the head's own page defines it."""
    blends_teacher_loss: bool = False
    """Whether `loss` has blended in the lesson of its options; else that is done from the beliefs."""
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

    def terms(self, hidden: Tensor, context: Selectable | None) -> Mapping[str, Tensor]:
        """What else the head weighs after hidden states [N, D], [N, m] each, to be looked at. Default: nothing."""
        return {}

    def learn(self, data: HeadData) -> None:
        """Fill the head's tables (buffers, saved with the weights) from the training pairs. Default: it has none."""

    def begin(self, source: Tensor, mask: Tensor, memory: Tensor) -> Selectable | None:
        """What the head makes of a source once a sentence: ids and mask [B, S], memory [B, S, D]. Default: nothing."""
        return None

    def plain(self) -> Mapping[str, Tensor]:
        """`weight` [V, D] and perhaps `bias` [V], if the head is one linear map and a softmax; else an empty mapping.

        Export targets that know only such a head ask here, and refuse the others by name. Default: empty.
        """
        return {}
