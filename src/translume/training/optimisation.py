"""Optimisation: learning rates, loss options, Adam and Muon on fp32 weights, and moving averages of weights."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from translume.config import TrainingSettings
from translume.data.batch import Batch
from translume.errors import SettingsError
from translume.kernels.loading import has_kernels
from translume.model import HeadLoss, LossOptions
from translume.model.attention import use_kernels_of_any_shape
from translume.model.classifier import Network
from translume.model.compiled import gradient_accumulation_fusion, on_device
from translume.parts import find
from translume.text import SpecialIds
from translume.training import adam, muon
from translume.training.data_parallel import ReplicaPool, Share, replica_count, replica_of, shares_of
from translume.training.device_guard import DeviceGuard
from translume.training.device_passes import DevicePasses
from translume.training.events import Event
from translume.training.group import Group
from translume.training.mapped import kept
from translume.training.other_optimizer import OtherOptimizer

Precision = Literal["fp32", "bf16", "fp16"]
"""The precision of matrix products and activations in training; the weights that the optimiser changes are fp32."""

NARROW: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtypes of the network's weights in precisions in which they are rounded copies."""

_KEPT_FP32 = ("head.", "encoder.embedding.mean", "encoder.embedding.deviation", "encoder.embedding.positions.table")
"""Beginnings of the names of buffers that stay fp32: tables of a head, mean and deviation of frames, and stored
positions."""

MOMENTS = (("moment1", "exp_avg"), ("moment2", "exp_avg_sq"))
"""Names of Adam's moments, saved and in torch."""


def inverse_sqrt(update: int, settings: TrainingSettings, width: int) -> float:
    """Return rate · min(u / w, √(w / u)): linear warm-up, then 1/√u (Vaswani et al. 2017, eq. 3, with peak `rate`)."""
    warmup = max(1, settings.warmup_updates)
    return settings.learning_rate * min(update / warmup, math.sqrt(warmup / update))


def noam(update: int, settings: TrainingSettings, width: int) -> float:
    """Return rate · D^-½ · min(u^-½, u · w^-1.5) (Vaswani et al. 2017, equation 3, times `learning_rate`)."""
    warmup = max(1, settings.warmup_updates)
    return settings.learning_rate / math.sqrt(width) * min(1 / math.sqrt(update), update / math.pow(warmup, 1.5))


def cosine(update: int, settings: TrainingSettings, width: int) -> float:
    """Return, after linear warm-up, rate · ½ (1 + cos(π (u − w) / (U − w))) (Loshchilov and Hutter 2017, eq. 5)."""
    warmup = settings.warmup_updates
    if update <= warmup:
        return settings.learning_rate * update / warmup
    share = min(1.0, (update - warmup) / max(1, settings.updates - warmup))
    return settings.learning_rate * 0.5 * (1.0 + math.cos(math.pi * share))


def constant(update: int, settings: TrainingSettings, width: int) -> float:
    """Return a constant rate after linear warm-up."""
    return settings.learning_rate * min(1.0, update / max(1, settings.warmup_updates))


def learning_rate(update: int, settings: TrainingSettings, width: int) -> float:
    """Return the learning rate of an update, counted from 1, for a model of `width` D."""
    rate: float = find("schedule", settings.schedule)(update, settings, width)
    return rate


def loss_options(settings: TrainingSettings, vocabulary: int, specials: SpecialIds | None) -> LossOptions:
    """Return the options of a loss over `vocabulary` target tokens, or classes, none of which is special.

    Label smoothing ε has three definitions. "all" puts ε/V on every token (Szegedy et al. 2016; PyTorch, Marian).
    "others" puts ε/(V−1) on all but the label (fairseq), which equals "all" with ε·V/(V−1). "text" spreads ε over all
    tokens except padding, BOS and the unknown token, which no target holds (JoeyNMT leaves out padding); a
    BOS that is also EOS, as in BART, is kept.
    """
    smoothing, smoothed = settings.label_smoothing, None
    if smoothing and settings.label_smoothing_over == "others":
        smoothing = smoothing * vocabulary / (vocabulary - 1)
    elif smoothing and settings.label_smoothing_over == "text" and specials is not None:
        smoothed = torch.ones(vocabulary, dtype=torch.bool)
        smoothed[[*specials.outside_targets]] = False
    penalties = settings.confidence_penalty, settings.r_drop
    objective = find("objective", settings.objective)(settings)
    return LossOptions(
        smoothing, settings.z_loss, smoothed, *penalties, ctc_weight=settings.ctc_weight, objective=objective
    )


class _Flat:
    """Parameters concatenated in one fp32 vector, so that a step takes a few operations for any number of them.

    The network's parameters become views of this vector, or of a bf16 copy of it. The optimiser updates `own`: all of
    it, or one of equal parts; zeros fill the last one.
    """

    def __init__(self, named: Mapping[str, nn.Parameter], precision: Precision, part: int = 0, parts: int = 1) -> None:
        self.named = dict(named)
        sizes = [p.numel() for p in self.named.values()]
        offsets = [0, *accumulate(sizes)]
        self._places = {
            name: (offset, size, p.shape)
            for (name, p), offset, size in zip(self.named.items(), offsets, sizes, strict=False)
        }
        first = next(iter(self.named.values()))
        size = -(-offsets[-1] // parts)
        wide = torch.promote_types(first.dtype, torch.float32)
        self.master = nn.Parameter(torch.zeros(size * parts, device=first.device, dtype=wide))
        self.master.grad = torch.zeros_like(self.master)
        self.own = self.master
        if parts > 1:
            place = slice(part * size, (part + 1) * size)
            self.own = nn.Parameter(self.master.data[place])
            self.own.grad = self.master.grad[place]
        for name, view in self.views(self.master.data).items():
            view.copy_(self.named[name].detach())
        self._apart = precision in NARROW
        self.working = self.master.data.to(NARROW[precision]) if self._apart else self.master.data
        self.gradients: list[Tensor] = []
        self._gathered = False
        for name, view in self.views(self.working).items():
            self.named[name].data = view

    def give_gradients(self, model: Network) -> None:
        """Make the parameters of `model`, the network or a replica, accumulate their gradients in a vector here."""
        own = None if self._apart or self.gradients else self.master.grad
        self.gradients.append(torch.zeros_like(self.working) if own is None else own)
        parameters = dict(model.named_parameters())
        for name, view in self.views(self.gradients[-1]).items():
            parameters[name].grad = view

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector by name, in the parameters' shapes."""
        return {name: flat[offset : offset + size].view(shape) for name, (offset, size, shape) in self._places.items()}

    def weights_and_gradients(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the fp32 weights and their gradients by name: live tensors."""
        assert self.master.grad is not None
        return self.views(self.master.data), self.views(self.master.grad)

    def whole(self, part: Tensor, group: Group) -> Iterator[tuple[str, Tensor]]:
        """Yield the parts of a vector as `views` names them, of which each process has its equal part of the vector.

        All processes must read them in step.
        """
        size = len(part)
        for name, (offset, length, shape) in self._places.items():
            begins = [min(max(offset - rank * size, 0), size) for rank in range(group.size)]
            counts = [min(max(offset + length - rank * size, 0), size) - begin for rank, begin in enumerate(begins)]
            begin, count = begins[group.rank], counts[group.rank]
            padded, gathered = part.new_zeros(max(counts)), part.new_empty(max(counts) * group.size)
            padded[:count] = part[begin : begin + count]
            group.join(gathered, padded)
            pieces = zip(gathered.chunk(group.size), counts, strict=True)
            yield name, torch.cat([piece[:count] for piece, count in pieces]).view(shape)

    def gather(self) -> None:
        """Add the gradients of working weights and replicas to those of the fp32 vector, and set them to zero."""
        for gradient in self.gradients:
            if gradient is not self.master.grad and self.master.grad is not None:
                self.master.grad += gradient
                gradient.zero_()
        self._gathered = True

    def clear(self) -> None:
        """Set all gradients to zero."""
        for gradient in self.gradients:
            gradient.zero_()
        if self._gathered and self.master.grad is not None:
            self.master.grad.zero_()
        self._gathered = False

    def for_adam(self) -> adam.Vectors:
        """Return the vectors of a step with the compiled kernel, which sets the gradients to zero."""
        gradients = [each for each in self.gradients if each is not self.master.grad]
        summed = self.master.grad if self._gathered or not self._apart else None
        self._gathered = False
        return adam.Vectors(self.master.data, summed, gradients, self.working if self._apart else None)

    def refresh(self) -> None:
        """Copy the fp32 weights, rounded, to the working weights."""
        if self._apart:
            self.working.copy_(self.master.detach())


def narrow_buffers(model: Network, dtype: torch.dtype) -> None:
    """Make the buffers of a network bf16 or fp16, except those that stay fp32."""
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and not name.startswith(_KEPT_FP32):
            buffer.data = buffer.data.to(dtype)


class Updater:
    """Accumulates gradients over batches, and applies Adam, or Muon and Adam, to fp32 weights.

    With bf16 and fp16 the network has rounded copies of the weights, refreshed after each step; gradients of several
    batches are summed in fp32. On a CPU, the number of threads that torch has at construction is divided among
    replicas. On other devices nothing is read back: losses and norms are tensors, and an update whose loss or gradient
    is not finite changes nothing, nor does any later one.
    """

    in_step = False
    """Whether every process must call `add` equally often in an update."""

    def __init__(
        self,
        model: Network,
        settings: TrainingSettings,
        *,
        options: LossOptions,
        precision: Precision,
        device: torch.device,
        group: Group | None = None,
    ) -> None:
        """group: the processes whose gradients are added before each step."""
        self._options, self._group = options, group or Group()
        self.model, self.settings, self.precision, self.device = model, settings, precision, device
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        # Beside bf16 weights the exact ones are only needed for saving, so that they need no memory of a GPU.
        keep = "cpu" if precision in NARROW else device
        self._frozen = {name: p.detach().to(keep, torch.float32) for name, p in frozen.items()}
        groups: list[tuple[list[nn.Parameter], float]] = []
        self._flats: list[_Flat] = []
        self.trained_parameters = sum(parameter.numel() for parameter in named.values())
        kept = {id(p) for p in model.partly_frozen()}  # without weight decay
        divided = settings.shard == "optimizer"
        inner = set()  # what neither Adam nor AdamW updates
        if settings.optimizer == "muon":
            inner = muon.names_of_matrices(model)
            if not inner:
                raise SettingsError("training.optimizer: 'muon' trains matrices inside layers, found no layer")
        elif settings.optimizer not in ("adam", "adamw"):
            inner = set(named)
        matrices = {name for name, p in named.items() if p.dim() > 1 and id(p) not in kept}
        for decays, decay in ((True, settings.weight_decay), (False, 0.0)):
            part = {name: p for name, p in named.items() if (name in matrices) == decays and name not in inner}
            if part:
                self._flats.append(_Flat(part, precision, *((self._group.rank, self._group.size) if divided else ())))
                groups.append(([self._flats[-1].own], decay))
        self._of_adam = list(self._flats)
        self._other: muon.Muon | OtherOptimizer | None = None
        if inner:
            self._inner = _Flat({name: p for name, p in named.items() if name in inner}, precision)
            self._flats.append(self._inner)
            views = self._inner.weights_and_gradients()
            if settings.optimizer == "muon":
                self._other = muon.Muon(*views, precision)
            else:
                self._other = OtherOptimizer(settings, *views, matrices)
        if precision in NARROW:
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(NARROW[precision])
            narrow_buffers(model, NARROW[precision])
        waits = on_device(self._flats[0].master)  # the host, for whatever it reads
        count = 1 if kept or waits else replica_count(torch.get_num_threads(), device)  # not with frozen rows
        self._replicas = [model, *(replica_of(model) for _ in range(count - 1))]
        for replica in self._replicas:
            for flat in self._flats:
                flat.give_gradients(replica)
        self._pool = ReplicaPool(count, torch.get_num_threads()) if count > 1 else None
        self._run = _in_turn if self._pool is None else self._pool.map
        self._waits = False
        """Whether the gradients of a batch are not yet gathered."""
        threads = torch.get_num_threads()
        fp32 = all(flat.master.dtype == torch.float32 for flat in self._flats)
        self._compiled = fp32 and not waits and threads == count and not divided and has_kernels()
        self._adam = adam.Adam(settings, groups)
        self._guard = DeviceGuard(device, scales=precision == "fp16") if waits else None
        self._passes: DevicePasses | None = None
        if self._guard is not None:
            use_kernels_of_any_shape()
            self._passes = DevicePasses(model, options, self._guard.scale)

    def add(self, batch: Batch) -> HeadLoss:
        """Compute one batch forward and backward, and accumulate the gradients of the SUM of its losses."""
        if self._waits:
            self._gather()
        tensors = _tensors(batch)
        if self._passes is not None:
            loss = self._passes(self._moved(tensors), batch.tokens)
        elif self._pool is None:
            loss = self._differentiate(self.model, tensors)
        else:
            shares = shares_of(tensors, len(self._replicas))
            jobs = [partial(self._differentiate, *job) for job in zip(self._replicas, shares, strict=False)]
            loss = self._pool.run(jobs)
        self._waits = True
        return loss

    @property
    def late(self) -> bool:
        """Whether losses and norms are tensors of a device, for which the host does not wait."""
        return self._guard is not None

    def compile(self, examples: Sequence[Batch], update: int = 0) -> Iterator[Event]:
        """Compile the passes on a GPU, and yield an event before each shape; on a CPU do nothing.

        examples: a batch of each shape.  update: the last one, for warnings. No gradients may be accumulated.
        """
        if self._passes is not None and examples:
            by_size = sorted(examples, key=lambda each: -each.target.numel() - each.source.numel())
            given = [(self._moved(_tensors(each)), each.tokens) for each in by_size]
            yield from self._passes.compile(given, self.clear, update)

    def _moved(self, tensors: Share) -> Share:
        source, source_mask, target, labels, target_mask = (each.to(self.device, non_blocking=True) for each in tensors)
        return source, source_mask, target, labels, target_mask

    def _gather(self) -> None:
        for flat in self._flats:
            flat.gather()
        self._waits = False

    def _differentiate(self, model: Network, share: Share) -> HeadLoss:
        model.train(self.model.training)
        loss = model.loss(*share, self._options)
        if loss.tokens:
            with gradient_accumulation_fusion():
                loss.objective.backward()  # type: ignore[no-untyped-call]  # torch's has no types
        return replace(loss, objective=loss.objective.detach())

    @torch.no_grad()
    def update(self, tokens: int | Tensor, learning_rate: float, objective: Tensor | float = 0.0) -> float | Tensor:
        """Add the gradients of all processes, divide by `tokens`, clip, step.

        Return the norm per token before clipping.  tokens: of all processes.  objective: the sum of their losses, which
        a step on a device depends on.
        """
        if isinstance(tokens, int) and not tokens:
            self.clear()
            return 0.0
        if not self._group.alone:
            self._gather()  # also in a process that had no batch
        gradients = [] if self._compiled and self._group.alone else self.gradients()
        for gradient in gradients:
            self._group.add(gradient)
        if self._compiled:
            assert isinstance(tokens, int)
            return self._compiled_update(tokens, learning_rate)
        norm = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm()
        if self._guard is not None:
            return self._guarded_update(norm, tokens, learning_rate, objective)
        norm = norm / tokens
        limit = self.settings.clip_norm
        factor = limit / norm if limit and norm > limit else 1.0
        for gradient in gradients:
            gradient.mul_(factor / tokens)
        if self._of_adam:
            self._adam.step(learning_rate)
        if self._other is not None:
            self._other.step(learning_rate, self.settings.weight_decay, 1.0, self._run)
        self._share_weights()
        return float(norm)

    def _guarded_update(
        self, norm: Tensor, tokens: int | Tensor, learning_rate: float, objective: Tensor | float
    ) -> Tensor:
        """As `update`, on a device, after the gradients of all processes were added.  norm: of these, not divided."""
        assert self._guard is not None
        norm, divisor, skips = self._guard.check(norm, tokens, objective, self.settings.clip_norm)
        self._adam.step_guarded(learning_rate, divisor, skips)
        if self._other is not None:
            master, scales = self._inner.master.detach(), self._guard.scale is not None
            # With a scale the training goes on after an update that is left out.
            before = {name: each.clone() for name, each in (self._other.state() if scales else {}).items()}
            weights = master.clone()
            self._other.step(learning_rate, self.settings.weight_decay, divisor.reciprocal(), self._run)
            master.copy_(torch.where(skips > 0, weights, master))
            for name, now in (self._other.state() if scales else {}).items():
                now.copy_(torch.where(skips.to(now.device) > 0, before.get(name, torch.zeros_like(now)), now))
        self._share_weights()
        return norm

    def _share_weights(self) -> None:
        """After a step: give all processes the weights, and set the gradients to zero."""
        for flat in self._flats:
            if flat.own is not flat.master:
                self._group.join(flat.master.data, flat.own.data)
            flat.clear()
            flat.refresh()

    def _compiled_update(self, tokens: int, learning_rate: float) -> float:
        """As `update`, in one pass over the gradients for the norm and one for Adam's step."""
        vectors = [flat.for_adam() for flat in self._flats]
        norm = math.sqrt(sum(each.square_norm(self._run) for each in vectors)) / tokens
        limit = self.settings.clip_norm
        factor = (limit / norm if limit and norm > limit else 1.0) / tokens
        self._adam.step_compiled(vectors[: len(self._of_adam)], learning_rate, factor, self._run)
        if self._other is not None:
            self._inner.gather()
            self._other.step(learning_rate, self.settings.weight_decay, factor, self._run)
            self._inner.clear()
            self._inner.refresh()
        self._waits = False
        return norm

    def clear(self) -> None:
        """Set all gradients to zero."""
        self._waits = False
        for flat in self._flats:
            flat.clear()

    def gradients(self) -> list[Tensor]:
        """Return the accumulated gradients: live fp32 vectors, of matrices and of other parameters."""
        if self._waits:
            self._gather()
        return [flat.master.grad for flat in self._flats if flat.master.grad is not None]

    def receive(self) -> None:
        """Replace the trained weights by those of rank 0."""
        self._group.receive(flat.master.data for flat in self._flats)
        for flat in self._flats:
            flat.refresh()

    def parameters_fp32(self) -> dict[str, Tensor]:
        """Return the trained weights by name, tied ones once: live fp32 tensors."""
        views = [flat.views(flat.master.data) for flat in self._flats]
        return {name: tensor for part in views for name, tensor in part.items()}

    def frozen_fp32(self) -> dict[str, Tensor]:
        """Return the weights by name that are not trained, tied ones once, in fp32."""
        return self._frozen

    @torch.no_grad()
    def load_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Replace the trained weights by `values`, which must have the same names."""
        for name, parameter in self.parameters_fp32().items():
            parameter.copy_(values[name])
        for flat in self._flats:
            flat.refresh()

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's `moment1.NAME`, `moment2.NAME` and `step`; empty before the first update.

        Muon's momentum is the first moment, and there is no second one. Not for moments that the processes divide.
        """
        tensors: dict[str, Tensor] = {}
        for flat, state in self._states():
            tensors["step"] = state["step"].reshape(1)
            for kind, key in MOMENTS:
                tensors |= {f"{kind}.{name}": view for name, view in flat.views(state[key]).items()}
        if self._other is not None and (tensors or not self._of_adam):
            tensors |= self._other.state()
        if tensors and self._guard is not None:
            tensors |= self._guard.state()
        return tensors

    def whole_state(self, folder: Path) -> dict[str, Tensor]:
        """Return the state to save. Moments that the processes divide are in rank 0, mapped from a file in `folder`.

        Raises ModelFolderError, after everything was gathered, if rank 0 cannot write the file.
        """
        if self._group.alone or self.settings.shard != "optimizer":
            return self.state()

        def gathered() -> Iterator[tuple[str, Tensor]]:
            for flat, state in self._states():
                yield "step", state["step"].reshape(1)
                for kind, key in MOMENTS:
                    for name, value in flat.whole(state[key], self._group):
                        yield f"{kind}.{name}", value

        return kept(gathered(), folder, self._group)

    def _states(self) -> Iterator[tuple[_Flat, dict[str, Tensor]]]:
        """Yield the vectors that Adam has a state of, and that state."""
        for flat in self._of_adam:
            if state := self._adam.state.get(flat.own):
                yield flat, state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        if "step" not in state:
            return
        if self._guard is not None:
            self._guard.load(state)
        if self._other is not None:
            self._other.load(state)
        for flat in self._of_adam:
            moments = {"step": state["step"].reshape(()).to(flat.master.device, copy=True)}
            for kind, key in MOMENTS:
                whole = torch.zeros_like(flat.master.data)
                for name, view in flat.views(whole).items():
                    view.copy_(state[f"{kind}.{name}"])
                parts = whole.numel() // flat.own.numel()
                moments[key] = whole if parts == 1 else whole.chunk(parts)[self._group.rank].clone()
            self._adam.state[flat.own] = moments


def _tensors(batch: Batch) -> Share:
    return batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask


def _in_turn(function: Callable[[int], float], items: Iterable[int]) -> list[float]:
    return [function(item) for item in items]


Weights = dict[str, Tensor]
"""fp32 tensors by parameter name; a tied one appears once."""


def snapshot(values: Mapping[str, Tensor]) -> Weights:
    """Return a copy on the CPU that later updates do not change."""
    return {name: value.detach().to("cpu", torch.float32, copy=True) for name, value in values.items()}


def mean(members: Iterable[Mapping[str, Tensor]]) -> Weights:
    """Return the mean of the members, summed in fp64 in their order; only one member is in memory at a time."""
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


def mean_by_name(members: Sequence[Mapping[str, Tensor]]) -> Weights:
    """Return the mean of members that need no memory, such as mapped files, summed as by `mean`, a tensor at a time."""
    return {name: mean({name: member[name]} for member in members)[name] for name in members[0]}


class MovingAverage:
    """An exponential moving average of the weights: w̄ ← d w̄ + (1 − d) w after update u, d = min(decay, (1+u)/(10+u)).

    The average of Polyak and Juditsky (1992) with exponential weights and TensorFlow's warm start, in which early
    weights fade quickly. It is kept in fp32 beside the raw weights, which training continues from.
    """

    def __init__(self, decay: float, values: Mapping[str, Tensor]) -> None:
        self.decay = decay
        self.values: Weights = {name: value.detach().float().clone() for name, value in values.items()}

    def add(self, values: Mapping[str, Tensor], update: int) -> None:
        """Add the weights after `update`, counted from 1."""
        decay = min(self.decay, (1 + update) / (10 + update))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.values.values()), [values[name].detach() for name in self.values], 1.0 - decay
            )

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Continue from a saved average."""
        for name, value in values.items():
            self.values[name].copy_(value)
