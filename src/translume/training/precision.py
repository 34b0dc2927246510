"""From a batch's gradients to new weights, in fp32 or with bf16 working weights over fp32 masters."""

from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from translume.config import TrainingSettings
from translume.model import HeadLoss, LossOptions
from translume.model.classifier import Network
from translume.training.replicas import Crew, Share, replica_count, replica_of, shares_of

Precision = Literal["fp32", "bf16"]


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


def choose_precision(wanted: Literal["auto", "fp32", "bf16"], device: torch.device) -> Precision:
    """What a run computes in; "auto" is bf16 on a GPU that has it, and on a processor with AMX.

    Without AMX a processor multiplies bf16 no faster than fp32 (half as fast where this was measured), whatever it
    says of bf16. Flags decide and not a stopwatch, so that the same machine always answers the same.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if "amx_bf16" in _processor_features() else "fp32"


def _processor_features() -> frozenset[str]:
    """What the processor can do, in Linux's words; empty where Linux does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(word for line in lines[:64] if line.startswith("flags") for word in line.split())


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
