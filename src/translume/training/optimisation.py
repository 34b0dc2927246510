"""Optimisation: learning rate schedules, loss options, Adam on fp32 weights, averages of weights."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from translume.config import TrainingSettings
from translume.model import HeadLoss, LossOptions
from translume.model.classifier import Network
from translume.text import Labels, SpecialIds, Tokenizer
from translume.training.data_parallel import Crew, Share, replica_count, replica_of, shares_of
from translume.training.precision import Precision


def inverse_sqrt(update: int, settings: TrainingSettings, width: int) -> float:
    """rate · min(u / w, √(w / u)): linear warm-up, then 1/√u (Vaswani et al. 2017, equation 3, by its peak)."""
    warmup = max(1, settings.warmup_updates)
    return settings.learning_rate * min(update / warmup, math.sqrt(warmup / update))


def noam(update: int, settings: TrainingSettings, width: int) -> float:
    """rate · D^-½ · min(u^-½, u · w^-1.5) (Vaswani et al. 2017, equation 3, with `learning_rate` as a factor)."""
    warmup = max(1, settings.warmup_updates)
    return settings.learning_rate / math.sqrt(width) * min(1 / math.sqrt(update), update / math.pow(warmup, 1.5))


def cosine(update: int, settings: TrainingSettings, width: int) -> float:
    """Linear warm-up, then rate · ½ (1 + cos(π (u − w) / (U − w))) (Loshchilov and Hutter 2017, equation 5)."""
    warmup = settings.warmup_updates
    if update <= warmup:
        return settings.learning_rate * update / warmup
    share = min(1.0, (update - warmup) / max(1, settings.updates - warmup))
    return settings.learning_rate * 0.5 * (1.0 + math.cos(math.pi * share))


def constant(update: int, settings: TrainingSettings, width: int) -> float:
    """Linear warm-up to rate, which then stays."""
    return settings.learning_rate * min(1.0, update / max(1, settings.warmup_updates))


SCHEDULES: dict[str, Callable[[int, TrainingSettings, int], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "noam": noam,
    "cosine": cosine,
    "constant": constant,
}


def learning_rate(update: int, settings: TrainingSettings, width: int) -> float:
    """The rate of the update-th step of the optimiser, counted from 1, in a model of `width` D."""
    return SCHEDULES[settings.schedule](update, settings, width)


def token_loss_options(settings: TrainingSettings, target: Tokenizer) -> LossOptions:
    """Return the options of a loss over target tokens."""
    return loss_options(settings, len(target), target.specials)


def loss_options(settings: TrainingSettings, vocabulary: int, specials: SpecialIds) -> LossOptions:
    """Return the options of a loss over `vocabulary` target tokens.

    Three definitions of label smoothing ε: "all" puts ε/V on every token (Szegedy et al. 2016; PyTorch, Marian);
    "others" ε/(V−1) on all but the label (fairseq), which is the first with ε·V/(V−1); "text" spreads ε over all but
    padding, the begin mark and the unknown token, which no target holds (as JoeyNMT leaves out padding).
    """
    smoothing, smoothed = settings.label_smoothing, None
    if smoothing and settings.label_smoothing_over == "others":
        smoothing = smoothing * vocabulary / (vocabulary - 1)
    elif smoothing and settings.label_smoothing_over == "text":
        smoothed = torch.ones(vocabulary, dtype=torch.bool)
        smoothed[[each for each in (specials.pad, specials.bos, specials.unk) if each is not None]] = False
    return LossOptions(smoothing, settings.z_loss, smoothed, settings.confidence_penalty, settings.r_drop)


def class_loss_options(settings: TrainingSettings, labels: Labels) -> LossOptions:
    """Return the options of a loss over classes, none of which is special: smoothing over "text" is over "all"."""
    smoothing = settings.label_smoothing
    if settings.label_smoothing_over == "others":
        smoothing = smoothing * len(labels) / (len(labels) - 1)
    return LossOptions(smoothing, settings.z_loss, None, settings.confidence_penalty, settings.r_drop)


class TrainingBatch(Protocol):
    """What an update needs of a batch: ids and masks [B, S] and [B, T]."""

    @property
    def source(self) -> Tensor: ...
    @property
    def source_mask(self) -> Tensor: ...
    @property
    def target(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def target_mask(self) -> Tensor: ...


class _Flat:
    """Parameters side by side in one fp32 vector, so that a step is a few operations however many there are.

    The network's own parameters become views of a vector: of this one, or of a bf16 copy of it.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], precision: Precision) -> None:
        self.named = dict(named)
        sizes = [p.numel() for p in self.named.values()]
        offsets = [0, *accumulate(sizes)]
        self._places = {
            name: (offset, size, p.shape)
            for (name, p), offset, size in zip(self.named.items(), offsets, sizes, strict=False)
        }
        device = next(iter(self.named.values())).device
        self.master = nn.Parameter(torch.empty(offsets[-1], device=device))
        self.master.grad = torch.zeros_like(self.master)
        for name, view in self.views(self.master.data).items():
            view.copy_(self.named[name].detach())
        self._apart = precision == "bf16"
        self.working = self.master.data.to(torch.bfloat16) if self._apart else self.master.data
        self.gradients: list[Tensor] = []
        for name, view in self.views(self.working).items():
            self.named[name].data = view

    def give_gradients(self, model: Network) -> None:
        """Have the parameters of `model`, the network or a replica of it, add their gradients to a vector here."""
        own = None if self._apart or self.gradients else self.master.grad
        self.gradients.append(torch.zeros_like(self.working) if own is None else own)
        parameters = dict(model.named_parameters())
        for name, view in self.views(self.gradients[-1]).items():
            parameters[name].grad = view

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts of a vector by name, in the parameters' shapes."""
        return {name: flat[offset : offset + size].view(shape) for name, (offset, size, shape) in self._places.items()}

    def gather(self) -> None:
        """Add the gradients that are not the master's own to the master's."""
        for gradient in self.gradients:
            if gradient is not self.master.grad and self.master.grad is not None:
                self.master.grad += gradient
                gradient.zero_()

    def clear(self) -> None:
        """Throw gradients away."""
        for gradient in self.gradients:
            gradient.zero_()
        if self.master.grad is not None:
            self.master.grad.zero_()

    def refresh(self) -> None:
        """Round the master to the working weights."""
        if self._apart:
            self.working.copy_(self.master.detach())


class Updater:
    """Sums gradients over batches, and steps Adam on fp32 weights.

    With bf16 the network holds rounded working copies, refreshed after each step; gradients of several batches are
    summed in fp32. On a CPU the threads torch has when this is made are spread over replicas of the network.
    """

    def __init__(
        self,
        model: Network,
        settings: TrainingSettings,
        *,
        options: LossOptions,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self._options = options
        self.model, self.settings, self.precision, self.device = model, settings, precision, device
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._fixed = {name: p.detach().float() for name, p in model.named_parameters() if not p.requires_grad}
        groups: list[dict[str, Any]] = []
        self._flats: list[_Flat] = []
        kept = {id(p) for p in model.partly_frozen()}  # without weight decay
        for matrices, decay in ((True, settings.weight_decay), (False, 0.0)):
            part = {name: p for name, p in named.items() if (p.dim() > 1 and id(p) not in kept) == matrices}
            if part:
                self._flats.append(_Flat(part, precision))
                groups.append({"params": [self._flats[-1].master], "weight_decay": decay})
        if precision == "bf16":
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(torch.bfloat16)
            for name, buffer in model.named_buffers():
                if buffer.is_floating_point() and not name.startswith("head."):  # a head's tables stay as they are
                    buffer.data = buffer.data.to(torch.bfloat16)
        count = 1 if kept else replica_count(torch.get_num_threads(), device)  # what freezes rows is not replicated
        self._replicas = [model, *(replica_of(model) for _ in range(count - 1))]
        for replica in self._replicas:
            for flat in self._flats:
                flat.give_gradients(replica)
        self._crew = Crew(count, torch.get_num_threads()) if count > 1 else None
        kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
        self._optimizer = kind(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=True)

    def add(self, batch: TrainingBatch) -> HeadLoss:
        """Forward and backward of one batch; the gradients of the SUM of its losses are added up."""
        tensors = (batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask)
        if self._crew is None:
            loss = self._differentiate(self.model, tensors)
        else:
            shares = shares_of(tensors, len(self._replicas))
            jobs = [partial(self._differentiate, *job) for job in zip(self._replicas, shares, strict=False)]
            loss = self._crew.run(jobs)
        for flat in self._flats:
            flat.gather()
        return loss

    def _differentiate(self, model: Network, share: Share) -> HeadLoss:
        source, source_mask, target, labels, target_mask = (tensor.to(self.device) for tensor in share)
        model.train(self.model.training)
        loss = model.loss(source, source_mask, target, labels, target_mask, self._options)
        if loss.tokens:
            loss.objective.backward()  # type: ignore[no-untyped-call]  # torch's has no types
        return HeadLoss(loss.objective.detach(), loss.nll, loss.tokens)

    @torch.no_grad()
    def update(self, tokens: int, learning_rate: float) -> float:
        """Divide the gradients by `tokens`, clip, step; the norm per token before clipping."""
        if not tokens:
            self.clear()
            return 0.0
        gradients = [flat.master.grad for flat in self._flats if flat.master.grad is not None]
        norm = float(torch.stack([gradient.norm() for gradient in gradients]).norm()) / tokens
        limit = self.settings.clip_norm
        factor = limit / norm if limit and norm > limit else 1.0
        for gradient in gradients:
            gradient.mul_(factor / tokens)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        for flat in self._flats:
            flat.clear()
            flat.refresh()
        return norm

    def clear(self) -> None:
        """Throw gradients away."""
        for flat in self._flats:
            flat.clear()

    def parameters_fp32(self) -> dict[str, Tensor]:
        """The weights by name, tied ones once: live fp32 tensors, frozen ones included."""
        views = [flat.views(flat.master.data) for flat in self._flats]
        return {name: tensor for part in (*views, self._fixed) for name, tensor in part.items()}

    @torch.no_grad()
    def load_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Replace the weights by `values`, which must have the same names."""
        for name, parameter in self.parameters_fp32().items():
            parameter.copy_(values[name])
        for flat in self._flats:
            flat.refresh()
        for name, frozen in self.model.named_parameters():
            if not frozen.requires_grad:
                frozen.copy_(self._fixed[name])

    def state(self) -> dict[str, Tensor]:
        """The optimiser's `moment1.NAME` and `moment2.NAME` and its `step`; nothing before the first update."""
        tensors: dict[str, Tensor] = {}
        for flat in self._flats:
            state = self._optimizer.state.get(flat.master)
            if state:
                tensors["step"] = state["step"].reshape(1)
                for kind, key in (("moment1", "exp_avg"), ("moment2", "exp_avg_sq")):
                    tensors |= {f"{kind}.{name}": view for name, view in flat.views(state[key]).items()}
        return tensors

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        if "step" not in state:
            return
        for flat in self._flats:
            moments = {"step": state["step"].reshape(()).to(flat.master.device, copy=True)}
            for kind, key in (("moment1", "exp_avg"), ("moment2", "exp_avg_sq")):
                moments[key] = torch.empty_like(flat.master.data)
                for name, view in flat.views(moments[key]).items():
                    view.copy_(state[f"{kind}.{name}"])
            self._optimizer.state[flat.master] = moments


Weights = dict[str, Tensor]
"""fp32 tensors by the name of their parameter; a tied one stands once."""


def snapshot(values: Mapping[str, Tensor]) -> Weights:
    """A copy on the CPU that later updates do not change."""
    return {name: value.detach().to("cpu", torch.float32, copy=True) for name, value in values.items()}


def mean(members: Iterable[Mapping[str, Tensor]]) -> Weights:
    """The plain mean of the members, summed in fp64 in their order; each is let go before the next is read."""
    total: dict[str, Tensor] = {}
    count = 0
    for member in members:
        count += 1
        for name, value in member.items():
            if name in total:
                total[name] += value.to("cpu")
            else:
                total[name] = value.to("cpu", torch.float64, copy=True)
    return {name: (value / count).float() for name, value in total.items()}


class MovingAverage:
    """w̄ ← d w̄ + (1 − d) w after every update, d = min(decay, (1 + u) / (10 + u)), so that early weights fade fast.

    The moving mean of Polyak and Juditsky (1992) with exponential weights and TensorFlow's warm start. Kept in fp32
    beside the weights: training goes on from the raw ones.
    """

    def __init__(self, decay: float, values: Mapping[str, Tensor]) -> None:
        self.decay = decay
        self.values: Weights = {name: value.detach().float().clone() for name, value in values.items()}

    def add(self, values: Mapping[str, Tensor], update: int) -> None:
        """Take in the weights after `update`, counted from 1."""
        decay = min(self.decay, (1 + update) / (10 + update))
        with torch.no_grad():
            for name, mine in self.values.items():
                mine.lerp_(values[name].detach(), 1.0 - decay)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Go on from an average that was saved."""
        for name, value in values.items():
            self.values[name].copy_(value)
