"""Training whose weights, gradients and moments are divided among the processes: `training.shard = "full"`.

FSDP2 (Zhao et al. 2023, `torch.distributed.fsdp.fully_shard`) keeps a part of each tensor in each process. A layer's
weights are gathered before it computes and freed afterwards; its gradients are added and divided. The embeddings and
the output head are gathered once for each batch.

Importing torch's modules for this takes a second, so they are imported only where they are used.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from translume.config import TrainingSettings
from translume.data.batch import Batch
from translume.errors import SettingsError
from translume.model import HeadLoss, LossOptions
from translume.model.classifier import Network
from translume.model.layers import DecoderLayer, EncoderLayer
from translume.training.adam import Adam
from translume.training.group import Group
from translume.training.optimisation import MOMENTS, NARROW, Precision, Updater, narrow_buffers


class ShardedUpdater:
    """An `Updater` that holds a part of each weight, and makes the same updates.

    Every process must call `add` equally often in an update. The gradients of each batch are divided at once, so no
    process holds all of them. Process r has the r-th chunk of the rows of each tensor, which may be empty.
    """

    in_step = True
    late = False
    """As `Updater.late`."""

    def __init__(
        self,
        model: Network,
        settings: TrainingSettings,
        *,
        options: LossOptions,
        precision: Precision,
        device: torch.device,
        group: Group,
    ) -> None:
        """Raises SettingsError for a network with weights that are not trained."""
        if model.partly_frozen() or not all(parameter.requires_grad for parameter in model.parameters()):
            raise SettingsError(
                "training.shard: found 'full' with weights that are not trained (lora_rank, freeze_pretrained), "
                "expected 'none' or 'optimizer'"
            )
        self._options, self._group = options, group
        self.model, self.settings, self.precision, self.device = model, settings, precision, device
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.trained_parameters = sum(shape.numel() for shape in self._shapes.values())
        self._digest = _digest(model.parameters())
        if precision in NARROW:
            narrow_buffers(model, NARROW[precision])
        self._shard()
        self._weights = dict[str, nn.Parameter]()
        matrices, rest = list[nn.Parameter](), list[nn.Parameter]()
        for name, parameter in model.named_parameters():
            own = nn.Parameter(_local(parameter.data))
            self._weights[name] = own
            (matrices if parameter.dim() > 1 else rest).append(own)
        self._adam = Adam(settings, [(matrices, settings.weight_decay), (rest, 0.0)])

    def _shard(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(self.device.type, (self._group.size,))
        narrow = torch.bfloat16 if self.precision == "bf16" else None
        policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for module in self.model.modules():
            if isinstance(module, EncoderLayer | DecoderLayer):
                fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        register_fsdp_forward_method(self.model, "loss")
        assert isinstance(self.model, FSDPModule)
        self.model.set_reduce_scatter_unused_params(True)
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # sums, not means
                module.set_force_sum_reduction_for_comms(True)

    def add(self, batch: Batch) -> HeadLoss:
        """Compute one batch forward and backward, and accumulate the gradients of the SUM of its losses.

        A batch without tokens is computed, and adds nothing: other processes need this one's part of the weights.
        """
        return self._group.exchange(lambda: self._add(batch.to(self.device)))

    def _add(self, batch: Batch) -> HeadLoss:
        try:
            loss = self.model.loss(
                batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask, self._options
            )
            objective = loss.objective if batch.tokens else loss.objective * 0.0
            objective.backward()  # type: ignore[no-untyped-call]  # torch's has no types
        except torch.cuda.OutOfMemoryError:
            raise self._group.leaving(
                "CUDA is out of memory; batches cannot be split with training.shard = 'full': lower training.max_tokens"
            ) from None
        if batch.tokens:
            return replace(loss, objective=objective.detach())
        nll = None if loss.nll is None else loss.nll * 0.0
        return replace(loss, objective=objective.detach(), nll=nll, tokens=0, routing=None)

    @torch.no_grad()
    def update(self, tokens: int | Tensor, learning_rate: float, objective: Tensor | float = 0.0) -> float:
        """Divide the gradients by `tokens`, clip, step. Return the norm per token before clipping.

        tokens: of all processes.  objective: ignored.
        """
        if not tokens:
            self.clear()
            return 0.0
        for parameter, own in zip(self.model.parameters(), self._weights.values(), strict=True):
            own.grad = torch.zeros_like(own) if parameter.grad is None else _local(parameter.grad)
        gradients = [own.grad for own in self._weights.values() if own.grad is not None]
        squares = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum()
        self._group.add(squares)
        norm = float(squares.sqrt() / tokens)
        limit = self.settings.clip_norm
        factor = limit / norm if limit and norm > limit else 1.0
        for gradient in gradients:
            gradient.mul_(factor / tokens)
        self._adam.step(learning_rate)
        self.clear()
        return norm

    def clear(self) -> None:
        """Remove all gradients."""
        for parameter, own in zip(self.model.parameters(), self._weights.values(), strict=True):
            parameter.grad = own.grad = None

    def receive(self) -> None:
        """Raise GroupError if a process began with other weights than rank 0.

        The weights themselves cannot be compared any more: each process has only its part of them.
        """
        self._group.refuse_differences({"initial weights": self._digest})

    def parameters_fp32(self) -> dict[str, Tensor]:
        """Return this process's parts of the weights by name, tied ones once: live fp32 tensors."""
        return {name: own.data for name, own in self._weights.items()}

    def frozen_fp32(self) -> dict[str, Tensor]:
        """Return no weights: all are trained."""
        return {}

    def whole(self, parts: Mapping[str, Tensor]) -> "InStep":
        """Return the whole tensors, of whose parts each process has its own. All processes must read them in step."""
        return gathered(parts, self._shapes, self._group)

    def own_parts(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and this process's parts of whole tensors."""
        for name, value in values.items():
            rows = _rows(value.shape, self._group.size)
            yield name, value[self._group.rank * rows : (self._group.rank + 1) * rows]

    @torch.no_grad()
    def load_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Replace the trained weights by `values`, which must have the same names."""
        for name, part in self.own_parts(values):
            self._weights[name].copy_(part)

    def state(self) -> dict[str, Tensor]:
        """Return this process's parts of the optimiser's moments, and `step`; empty before the first update."""
        tensors: dict[str, Tensor] = {}
        for name, own in self._weights.items():
            state = self._adam.state.get(own)
            if state:
                tensors["step"] = state["step"].reshape(1)
                for kind, key in MOMENTS:
                    tensors[f"{kind}.{name}"] = state[key]
        return tensors

    def whole_state(self) -> "InStep":
        """Return whole moments `moment1.NAME` and `moment2.NAME`, and `step`. All processes must read them in step."""
        shapes = {f"{kind}.{name}": shape for name, shape in self._shapes.items() for kind, _ in MOMENTS}
        return gathered(self.state(), shapes, self._group)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore whole moments."""
        if "step" not in state:
            return
        for name, own in self._weights.items():
            moments = {"step": state["step"].reshape(()).to(own.device, copy=True)}
            for kind, key in MOMENTS:
                ((_, part),) = self.own_parts({name: state[f"{kind}.{name}"]})
                moments[key] = part.to(own.device, copy=True)
            self._adam.state[own] = moments


AnyUpdater = Updater | ShardedUpdater


class InStep(Mapping[str, Tensor]):
    """Tensors by name, each exchanged with the other processes when it is read.

    All processes must read the same names in the same order.
    """

    def __init__(self, names: Iterable[str], read: Callable[[str], Tensor]) -> None:
        self._names, self._read = sorted(names), read

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        return self._read(name)


def gathered(parts: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], group: Group) -> InStep:
    """Return whole tensors, of which each process has its part. Names without a shape are as they are."""

    def whole(name: str) -> Tensor:
        part, shape = parts[name], shapes.get(name)
        if shape is None:
            return part
        rows = _rows(shape, group.size)
        padded = part.new_zeros(rows, *shape[1:])
        padded[: len(part)] = part
        gathered = part.new_empty(rows * group.size, *shape[1:])
        group.join(gathered, padded)
        return gathered[: shape[0]]

    return InStep(parts, whole)


def sent(values: Mapping[str, Tensor] | None, shapes: Mapping[str, torch.Size], group: Group) -> InStep:
    """Return tensors that rank 0 has, on the CPU.  values: None in other ranks."""

    def received(name: str) -> Tensor:
        value = torch.empty(shapes[name]) if values is None else values[name].to("cpu", torch.float32).contiguous()
        group.receive([value])
        return value

    return InStep(shapes, received)


def _rows(shape: torch.Size, count: int) -> int:
    """Return the rows of all chunks of a tensor but the last ones, which may have fewer; as `torch.chunk`."""
    return -(-shape[0] // count)


def _local(tensor: Tensor) -> Tensor:
    """Return this process's part of a divided tensor: the same memory."""
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
