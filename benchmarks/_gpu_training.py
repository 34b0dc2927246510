"""What gpu.py trains: the same batches in few shapes for ours and for its peers, and what one update does.

The functions that yield run in a process of their own; see `Worker` of gpu.py.
"""

import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import train_speed as ts
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

RATE = 3e-4
BATCHES = 24
TOY = ts.Shape(32, 4, 64, 2, 211)
CHECKED = 3
"""Updates whose losses must agree before anything is timed."""
PROFILED = 8
PATIENCE_SECONDS = 60
LAUNCHES = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"}
READS = {
    "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "masked_select", "nonzero",
    "repeat_interleave", "unique_consecutive", "unique_dim",
}  # fmt: skip
"""Operations whose result, or its shape, the host must know."""

Step = Callable[[Any], tuple[Any, int]]
"""Makes an update with a batch; returns the sum of its losses, and the tokens by which to divide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained.  tokens: maximum of an update, with padding.  mean: of the logarithms of the source lengths.

    compiles: whether anything is compiled.  toy: a tiny shape and few batches instead.
    """

    name: str
    tokens: int
    mean: float
    device: str
    compiles: bool
    toy: bool

    @property
    def shape(self) -> ts.Shape:
        shapes = {**ts.SHAPES, "big-32k": ts.Shape(1024, 16, 4096, 6, 32_000)}
        return TOY if self.toy else shapes[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Batches of few shapes.  examples: one of each.  tokens: labels.  flops: of all updates, without padding."""

    batches: list[Any]
    examples: list[Any]
    buckets: list[tuple[int, int, int]]
    padding: float
    tokens: int
    flops: float


def lengths_of(mean: float) -> Callable[[int], list[tuple[int, int]]]:
    """Return a function that draws lengths of pairs, EOS tokens included: log-normal, correlated, 5 to 121."""

    def lengths(count: int) -> list[tuple[int, int]]:
        draw, pairs = random.Random(1), []
        for _ in range(count):
            source = min(max(round(draw.lognormvariate(mean, 0.45)), 4), 120)
            target = min(max(round(source * draw.lognormvariate(0.02, 0.18)), 4), 120)
            pairs.append((source + 1, target + 1))
        return pairs

    return lengths


def plan_of(training: Training, device: torch.device) -> Plan:
    """Return the sentences of `BATCHES` batches of mixed lengths, in batches as `translume train` makes on a GPU."""
    import numpy as np

    from translume.data.buckets import BucketPlan
    from translume.data.cleaning import Account
    from translume.data.corpus import TokenizedCorpus
    from translume.data.pairs import Origin
    from translume.tasks import find_task
    from translume.text import SpecialIds

    ts.TOKENS = 300 if training.toy else training.tokens
    ts.lengths = lengths_of(1.5 if training.toy else training.mean)  # type: ignore[assignment]  # has no name
    shape, sides, pairs = training.shape, [], []
    for batch in ts.batches(shape.vocabulary, 3 if training.toy else BATCHES):
        ids = batch["source"].numpy(), batch["labels"].numpy()
        for source, labels, (s, t) in zip(*ids, batch["group"], strict=True):
            pairs.append((s, t))
            sides += [source[: s - 1], labels[: t - 1]]  # without EOS
    lengths = np.array(pairs, np.int64) - 1
    total = lengths.sum(1)
    vocabulary: Any = SimpleNamespace(specials=SpecialIds(pad=ts.PAD, bos=ts.BOS, eos=ts.EOS, unk=None))
    corpus = TokenizedCorpus(
        pairs=len(pairs),
        account=Account(read=len(pairs), used=len(pairs), held_out=0, dropped={}, examples={}),
        digest="",
        source_lengths=lengths[:, 0].astype(np.uint16),
        target_lengths=lengths[:, 1].astype(np.uint16),
        origins=(Origin(file="source", target_file="target", columns=(), weight=1.0),),
        first=(0, len(pairs)),
        source_tokenizer=vocabulary,
        target_tokenizer=vocabulary,
        limits=(None, None),
        task=find_task("sequence"),
        tokens=np.concatenate(sides),
        starts=(total.cumsum() - total)[::32],
        line_numbers=np.arange(1, len(pairs) + 1, dtype=np.uint32),
    )
    plan = BucketPlan(corpus, max_tokens=ts.TOKENS, seed=1, epoch=0)
    return Plan(
        batches=[plan.batch(index).to(device) for index in range(len(plan))],
        examples=[batch.to(device) for batch in plan.examples()],
        buckets=[(bucket.rows, bucket.source, bucket.target) for bucket in plan.buckets],
        padding=plan.padding,
        tokens=sum(t for _, t in pairs),
        flops=3.0 * shape.forward_flops([s for s, _ in pairs], [t for _, t in pairs]),
    )


# ---- the contestants


@contextmanager
def gpu_way(device: torch.device, *, deterministic: bool = True) -> Iterator[None]:
    """Compute in the block as `translume train` does on a GPU; on a CPU, in the way of a GPU."""
    from translume.device import make_current
    from translume.model.compiled import torch_only
    from translume.training.device_passes import deterministic_kernels

    make_current(device)
    with torch_only() if device.type == "cpu" else deterministic_kernels(wanted=deterministic):
        yield


def ours(
    training: Training, device: torch.device, *, dropout: float = 0.1, precision: str = "", weights: Any = None
) -> tuple[Step, Any, list[str]]:
    """Return our update, the `Updater`, and a list to which updates add warnings.

    weights: a state of transformers' model.  precision: "" for "auto".
    """
    from translume.config import TrainingSettings
    from translume.interchange.huggingface.bart import Marian
    from translume.model import LossOptions
    from translume.training.batches import gather
    from translume.training.optimisation import Updater

    model = ts.build_ours(training.shape, dropout)
    if weights is not None:
        model.load_state_dict(Marian().weights_from(weights, ts.settings_of(training.shape)), strict=False)
    model = model.to(device).train()
    settings = TrainingSettings(optimizer="adam", label_smoothing=0.1, clip_norm=1.0)
    chosen: Any = precision or precision_of(device)
    updater = Updater(model, settings, options=LossOptions(0.1), precision=chosen, device=device)

    numbers, notes = count(), list[str]()

    def step(batch: Any) -> tuple[Any, int]:
        sums = gather(updater, {(0,): batch}, seed=1, update=next(numbers))
        updater.update(sums.tokens, RATE, sums.objective)
        notes.extend(sums.notes if not sums.splits else [*sums.notes, "CUDA was out of memory"])
        return sums.objective, sums.tokens

    return step, updater, notes


def precision_of(device: torch.device) -> str:
    """Return the precision that a training takes on a GPU; fp32 on a CPU."""
    from translume.training.precision import choose_precision

    return "fp32" if device.type == "cpu" else choose_precision("auto", device)


def autocast(device: torch.device, precision: str) -> Any:
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device.type, kinds[precision]) if precision in kinds else nullcontext()


def peer_step(model: nn.Module, device: torch.device, loss_of: Callable[[Any], Tensor], precision: str) -> Step:
    """Return an update of a peer: fused Adam and clipping.  loss_of: the mean loss of a batch."""
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch: Any) -> tuple[Tensor, int]:
        optimizer.zero_grad(set_to_none=True)
        with autocast(device, precision):
            loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's has no types
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        return loss.detach(), 1

    return step


def theirs(training: Training, device: torch.device, model: Any, *, precision: str, compiled: bool = False) -> Step:
    """Return the update of transformers' MarianMTModel."""
    model = model.to(device).train()
    forward = torch.compile(model, dynamic=True) if compiled else model

    def loss_of(batch: Any) -> Tensor:
        mask = batch.source_mask.long()
        found = forward(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target, use_cache=False)
        logits, labels = found.logits.flatten(0, 1), batch.labels.flatten()
        return F.cross_entropy(logits, labels, ignore_index=ts.PAD, label_smoothing=0.1)

    return peer_step(model, device, loss_of, precision)


class PlainAttention(nn.Module):
    """Attention of x [B, T, D] to a memory [B, S, D]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        both = self.key_value(memory).view(batch, memory.size(1), 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, both[0], both[1], attn_mask=mask, is_causal=causal)
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(x.shape))
        return result


class PlainLayer(nn.Module):
    """A layer of an encoder, or of a decoder, which has cross-attention."""

    def __init__(self, shape: ts.Shape, *, crosses: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout, self.mixer = dropout, PlainAttention(shape.width, shape.heads)
        self.cross = PlainAttention(shape.width, shape.heads) if crosses else None
        self.inner, self.outer = nn.Linear(shape.width, shape.feed_forward), nn.Linear(shape.feed_forward, shape.width)
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(3 if crosses else 2))

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        causal = self.cross is not None
        x = self.norms[0](x + self.drop(self.mixer(x, x, None if causal else mask, causal)))
        if self.cross is not None:
            x = self.norms[2](x + self.drop(self.cross(x, memory, mask, False)))
        result: Tensor = self.norms[1](x + self.drop(self.outer(F.relu(self.inner(x)))))
        return result

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class PlainTransformer(nn.Module):
    """Sixty lines of plain PyTorch: padded, tied embeddings, no positions. What a card can do, and no more."""

    def __init__(self, shape: ts.Shape, *, compiled: bool) -> None:
        """compiled: whether torch.compile makes one function of each kind of layer and of the loss, for all shapes."""
        super().__init__()
        self.table = nn.Embedding(shape.vocabulary, shape.width)
        self.encoder = nn.ModuleList(PlainLayer(shape, crosses=False) for _ in range(shape.layers))
        self.decoder = nn.ModuleList(PlainLayer(shape, crosses=True) for _ in range(shape.layers))
        functions: list[Callable[..., Tensor]] = [PlainLayer.forward, plain_loss]
        self.layer, self.loss = [torch.compile(each, dynamic=True) if compiled else each for each in functions]

    def forward(self, source: Tensor, target: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mean loss.  mask: [B, 1, 1, S], True where there is a token; None: padding counts as tokens."""
        memory, x = self.table(source), self.table(target)
        for layer in self.encoder:
            memory = self.layer(layer, memory, None, mask)
        for layer in self.decoder:
            x = self.layer(layer, x, memory, mask)
        return self.loss(x, self.table.weight, labels, -100 if mask is None else ts.PAD)


def plain_loss(x: Tensor, weight: Tensor, labels: Tensor, ignored: int) -> Tensor:
    logits = x.flatten(0, 1) @ weight.T
    return F.cross_entropy(logits, labels.flatten(), ignore_index=ignored, label_smoothing=0.1)


def plain(training: Training, device: torch.device, *, precision: str, masked: bool) -> Step:
    """Return the update of the plain loop."""
    torch.set_float32_matmul_precision("high")
    model = PlainTransformer(training.shape, compiled=training.compiles).to(device).train()
    return peer_step(
        model,
        device,
        lambda batch: model(
            batch.source, batch.target, batch.labels, batch.source_mask[:, None, None] if masked else None
        ),
        precision,
    )


def contestant(kind: str, training: Training) -> Generator[Any, str, None]:
    """Train as a contestant: yield facts after the first updates, then for each request "pass" or "profile" an answer.

    kind: "ours", "ours, not deterministic", "transformers", "transformers, compiled", "plain" or "plain, unmasked".
    A pass makes an update with each batch, and its answer is {"seconds", "loss"}.
    """
    device = torch.device(training.device)
    torch.manual_seed(1)
    is_ours, compiling, warnings = kind.startswith("ours"), 0.0, list[str]()
    with ExitStack() as stack:
        if is_ours:
            stack.enter_context(gpu_way(device, deterministic=kind == "ours"))
        plan, precision = plan_of(training, device), precision_of(device)
        begun = time.perf_counter()
        if is_ours:
            step, updater, warnings = ours(training, device)
            for batch in plan.batches[:8]:  # as in a training, which compiles later
                step(batch)
            synchronize(device)
            compiling = time.perf_counter()
            for event in updater.compile(plan.examples) if training.compiles or device.type == "cuda" else ():
                warnings += [event.message] if hasattr(event, "message") else []
            synchronize(device)
            compiling = time.perf_counter() - compiling
        elif kind.startswith("plain"):
            step = plain(training, device, precision=precision, masked=kind == "plain")
        else:
            model = ts.build_theirs(training.shape, "sdpa")
            step = theirs(training, device, model, precision=precision, compiled=kind.endswith("compiled"))
        # Dimensions of equal size in the first batch would share a symbol of the compiler.
        examples = [each for each in plan.examples if each.tokens]  # a mean over no token is NaN
        examples.sort(key=lambda each: len({*each.source.shape, *each.target.shape}), reverse=True)
        for batch in [*examples, *examples]:
            patiently(step, batch, device)
        synchronize(device)
        facts = {
            "setup_seconds": time.perf_counter() - begun, "compile_seconds": compiling, "warnings": warnings,
            "precision": precision, "padding": plan.padding, "buckets": plan.buckets, "updates": len(plan.batches),
            "tokens": plan.tokens, "flops": plan.flops,
            "padded_targets": sum(batch.target.numel() for batch in plan.batches), **peak(device),
        }  # fmt: skip
        largest = max(plan.batches, key=lambda each: each.source.numel() + each.target.numel())
        release(device)
        wanted = yield facts
        while True:
            step(largest)  # takes the memory that was released
            answer = profiled(step, plan.batches[:PROFILED], device) if wanted == "profile" else {}
            if wanted == "pass":
                synchronize(device)
                begun = time.perf_counter()
                for batch in plan.batches:
                    loss, tokens = step(batch)
                synchronize(device)
                answer = {"seconds": time.perf_counter() - begun, "loss": float(loss) / tokens, **peak(device)}
                if not math.isfinite(answer["loss"]):
                    raise RuntimeError(f"the loss is {answer['loss']}")
            release(device)
            wanted = yield answer


def patiently(step: Step, batch: Any, device: torch.device) -> None:
    """Make an update; if another contestant has the memory just now, wait for it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            step(batch)
            return
        except torch.OutOfMemoryError:
            if time.monotonic() > end:
                raise
        release(device)
        time.sleep(1.0)


def losses(training: Training) -> Iterator[dict[str, float]]:
    """Yield by precision the largest |Δ| of the losses of three updates, in nats, of ours and of transformers.

    Both begin with the same weights and have no dropout. The batches have a quarter of the tokens, because those of
    fp32 take much memory.
    """
    device, training = torch.device(training.device), replace(training, tokens=training.tokens // 4)
    plan, found = plan_of(training, device), {}
    for precision in dict.fromkeys(("fp32", precision_of(device))):
        torch.manual_seed(1)
        peer, batches = ts.build_theirs(training.shape, "sdpa", 0.0), plan.batches[:CHECKED]
        with gpu_way(device):
            step, *_ = ours(training, device, dropout=0.0, precision=precision, weights=peer.state_dict())
            mine = [float(loss) / tokens for loss, tokens in map(step, batches)]
        step = theirs(training, device, peer, precision=precision)
        found[precision] = max(abs(a - float(b)) for a, (b, _) in zip(mine, map(step, batches), strict=True))
    yield found


# ---- the device


def synchronize(device: torch.device) -> None:
    """Wait for a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give memory that is not used back to the card, on which other processes need it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak(device: torch.device) -> dict[str, float]:
    """Return the largest memory of this process in MiB so far: that of tensors, and what the allocator has kept."""
    if device.type != "cuda":
        return {}
    found = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return {"peak_mib": found[0] / 2**20, "peak_reserved_mib": found[1] / 2**20}


def ceiling(device: torch.device) -> float:
    """Return the FLOP/s of a matrix product: bf16 of 8192³ on a GPU, fp32 of 512³ on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        left @ right
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(10):
        left @ right
    synchronize(device)
    return 10 * 2 * size**3 / (time.perf_counter() - begun)


def card(name: str) -> Iterator[dict[str, Any]]:
    """Yield what is known of a device, which a name as in --device stands for."""
    import platform

    from translume.device import choose_device

    device = choose_device(name)
    facts: dict[str, Any] = {"device": str(device), "card": platform.processor() or platform.machine(), "cuda": None}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"card": properties.name, "cuda": torch.version.cuda}
        facts |= {"capability": [properties.major, properties.minor], "memory_mib": properties.total_memory // 2**20}
    yield {**facts, "ceiling": ceiling(device)}


# ---- what one update does


def profiled(step: Step, batches: Sequence[Any], device: torch.device) -> dict[str, float]:
    """Return what updates do: `busy`, the share of time in which a kernel runs, and counts for one update.

    The time is that of the same updates without the profiler, which makes launching slower.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    seconds = []
    for _ in range(3):
        synchronize(device)
        begun = time.perf_counter()
        for batch in batches:
            step(batch)
        synchronize(device)
        seconds.append(time.perf_counter() - begun)
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as profiler:
        with record_function("updates"):
            for batch in batches:
                step(batch)
        synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = [each for each in json.loads(path.read_text())["traceEvents"] if each.get("ph") == "X"]
    whole = next(each for each in events if each["name"] == "updates" and each["cat"] == "user_annotation")
    kernels = [(each["ts"], each["ts"] + each["dur"]) for each in events if each["cat"] == "kernel"]
    host = [
        each for each in events
        if each["cat"] in ("cuda_runtime", "cuda_driver", "cpu_op") and 0 <= each["ts"] - whole["ts"] <= whole["dur"]
    ]  # fmt: skip

    def counted(chosen: Callable[[str], bool], among: Sequence[Any] = host) -> float:
        return sum(chosen(each["name"]) for each in among) / len(batches)

    copies = [each for each in events if each["cat"] == "gpu_memcpy"]
    median = statistics.median(seconds)
    return {
        "busy": united(kernels) / 1e6 / median, "update_seconds": median / len(batches),
        "kernels": len(kernels) / len(batches), "kernel_seconds": sum(b - a for a, b in kernels) / 1e6 / len(batches),
        "launches": counted(LAUNCHES.__contains__), "graph_launches": counted("cudaGraphLaunch".__eq__),
        "synchronisations": counted(lambda name: "Synchronize" in name),
        "items": counted({"aten::item", "aten::_local_scalar_dense"}.__contains__),
        "copies_to_host": counted(lambda name: "DtoH" in name, copies),
    }  # fmt: skip


def united(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    """Counts in a block the operations that are no views, and the reads of tensors by the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.operations, self.reads = 0, list[str]()
        self._methods = {name: getattr(Tensor, name) for name in ("tolist", "numpy", "cpu")}

    def __enter__(self) -> "Counting":
        for name, method in self._methods.items():
            setattr(Tensor, name, self._read(name, method))
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's has no types
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's has no types
        for name, method in self._methods.items():
            setattr(Tensor, name, method)

    def _read(self, name: str, method: Any) -> Any:
        def read(*given: Any, **options: Any) -> Any:
            self.reads.append(name)
            return method(*given, **options)

        return read

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        masks = any(each is not None and each.dtype == torch.bool for each in indices)
        if masks or (name in READS and func._overloadname != "self_int"):  # the latter is given the size of its result
            self.reads.append(name)
        self.operations += not func.is_view
        return func(*args, **(kwargs or {}))


COUNTED = """
[model]
width = 32
feed_forward = 64
encoder_layers = 6
decoder_layers = 6
attention_heads = 4
dropout = 0.1
[training]
optimizer = "adam"
label_smoothing = 0.1
clip_norm = 1.0
"""


def counts() -> dict[str, Any]:
    """Return what a GPU would do, counted on the CPU: operations without views of an update and of a step, and reads.

    The model of 6 + 6 layers is built from a TOML. The numbers of operations are the largest of any update or step.
    """
    device = torch.device("cpu")
    torch.set_num_threads(1)
    with gpu_way(device):
        toy = Training(name="base-32k", tokens=0, mean=0.0, device="cpu", compiles=False, toy=True)
        plan = plan_of(toy, device)
        shapes = {(*batch.source.shape, batch.target.size(1)) for batch in plan.batches}
        found: dict[str, Any] = {"shapes": len(shapes), "shapes_outside_buckets": len(shapes - {*plan.buckets})}
        found |= {"update_reads": 0, "step_reads": 0, "updates": 0, "steps": 0}
        for precision, name in (("fp32", "update_operations"), ("bf16", "update_operations_bf16")):
            found[name] = 0
            for counting in counted_updates(plan, precision):
                found[name] = max(found[name], counting.operations)
                found["update_reads"] += len(counting.reads)
                found["updates"] += 1
        for beam, name in ((5, "step_operations"), (1, "step_operations_greedy")):
            found[name] = 0
            for counting in counted_steps(beam):
                found[name] = max(found[name], counting.operations)
                found["step_reads"] += len(counting.reads)
                found["steps"] += 1
    return found


def counted_network() -> tuple[Any, Any]:
    """Return the network that `COUNTED` describes, and the settings."""
    from translume.checkpoint import build_network
    from translume.config import Config

    torch.manual_seed(1)
    config = Config.parse(COUNTED)
    return build_network(config, TOY.vocabulary, TOY.vocabulary), config


def counted_updates(plan: Plan, precision: Any) -> Iterator[Counting]:
    """Yield what each of some updates after the first did."""
    from translume.model import LossOptions
    from translume.training.optimisation import Updater

    network, config = counted_network()
    network.train()
    updater = Updater(
        network, config.training, options=LossOptions(0.1), precision=precision, device=torch.device("cpu")
    )
    for number, batch in enumerate(plan.batches[:4]):
        with Counting() as counting:
            loss = updater.add(batch)
            updater.update(loss.tokens, RATE, loss.objective)
        if number:
            yield counting


def counted_steps(beam: int) -> Iterator[Counting]:
    """Yield what each of some steps of a search did."""
    from translume.decoding import BeamSearch, Greedy
    from translume.translator.device_searcher import DeviceSearcher

    network, _ = counted_network()
    source = torch.randint(4, TOY.vocabulary, (7, 11))
    with torch.inference_mode():
        state = network.eval().start(source, torch.ones_like(source, dtype=torch.bool))
        begun = DeviceSearcher(network).complete_search(
            state,
            prompts=torch.full((len(source), 1), ts.BOS),
            eos=ts.EOS,
            strategy=Greedy() if beam == 1 else BeamSearch(width=beam),
            limits=torch.full((len(source),), 29),
            rules=[],
        )
        assert begun is not None
        search, _ = begun
        search.run(1)
        for _ in range(8):
            with Counting() as counting:
                search.step()
            yield counting
