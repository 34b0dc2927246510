"""GPUs as people have them, with torch's functions for them patched: devices, precisions, memory and use."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks

from translume import device
from translume.checkpoint import build_network, choose_dtype, load_checkpoint, without_values
from translume.config import Config
from translume.device import GIB, Usage, UsageMeter, choose_device, is_cpu
from translume.errors import SettingsError, TrainingError
from translume.model import LossOptions
from translume.model.compiled import torch_only
from translume.training import Preparing, train
from translume.training.group import Group
from translume.training.memory import MAX_TOKENS, MIN_TOKENS, RESERVED, SHARE, STEP, MemoryNeeds, token_bytes
from translume.training.optimisation import Precision
from translume.training.precision import choose_precision
from translume.training.prepare import fit_memory, plan_run, prepare_data
from translume.training.resume import Store

from .conftest import Make

R = TypeVar("R")
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)


@dataclass
class Card:
    """A GPU.  free, total: bytes.  fault: what torch raises when it is read."""

    name: str = "Tesla T4"
    capability: tuple[int, int] = (7, 5)
    free: int = 13 * GIB
    total: int = 17 * GIB
    fault: str = ""


@dataclass
class Cards:
    """The GPUs of this machine.  read: the numbers of those whose memory was read.  current: that of torch."""

    found: list[Card] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    current: int = 0

    def __getitem__(self, place: Any) -> Card:
        return self.found[place if isinstance(place, int) else place.index]

    def memory(self, place: Any) -> tuple[int, int]:
        self.read.append(place if isinstance(place, int) else place.index)
        if self[place].fault:
            raise RuntimeError(self[place].fault)
        return self[place].free, self[place].total

    def choose(self, place: Any) -> None:
        self.current = place.index


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    """Return the GPUs that torch finds: none, until a test adds some."""
    here = Cards()
    for name, value in {
        "is_available": lambda: bool(here.found),
        "device_count": lambda: len(here.found),
        "current_device": lambda: here.current,
        "set_device": here.choose,
        "mem_get_info": here.memory,
        "memory_reserved": lambda place: 0,
        "memory_allocated": lambda place: 0,
        "get_device_capability": lambda place: here[place].capability,
        "get_device_name": lambda place: here[place].name,
        "get_arch_list": lambda: ["sm_50", "sm_75", "sm_80", "sm_90a", "compute_90"],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    device._note.cache_clear()
    yield here
    device._note.cache_clear()


def without_cuda(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """Let torch's initialisation of CUDA fail."""

    def init() -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(torch.cuda, "init", init)


def refusal(name: str) -> str:
    with pytest.raises(SettingsError) as caught:
        choose_device(name)
    return str(caught.value)


# ---- the choice of a device


@given(free=st.lists(st.integers(0, 5), min_size=1, max_size=7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_auto_is_the_first_of_the_cards_with_the_most_free_memory(cards: Cards, free: list[int]) -> None:
    cards.found = [Card(free=each) for each in free]
    assert choose_device("auto") == torch.device("cuda", free.index(max(free)))


def test_auto_leaves_out_cards_that_another_process_has_for_itself(
    cards: Cards, caplog: pytest.LogCaptureFixture
) -> None:
    busy = "CUDA-capable device(s) is/are busy or unavailable"
    cards.found = [Card(free=7, fault=busy), Card(free=2), Card(free=3)]
    assert choose_device("auto") == torch.device("cuda:2")
    assert caplog.messages == []
    cards.found = [Card(fault=busy)]
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == [f"CUDA cannot be used: {busy}; computing on the CPU"]


def test_cuda_is_the_current_card_and_has_its_index(cards: Cards) -> None:
    cards.found = [Card(), Card(), Card()]
    cards.current = 2
    assert choose_device("cuda") == torch.device("cuda:2")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert cards.read == []


@pytest.mark.parametrize(
    ("count", "found"),
    [
        (1, "found 1 CUDA device, expected cuda:0"),
        (2, "found 2 CUDA devices, expected cuda:0 or cuda:1"),
        (5, "found 5 CUDA devices, expected cuda:0 to cuda:4"),
    ],
)
def test_a_card_beyond_the_last_is_refused_with_those_that_exist(cards: Cards, count: int, found: str) -> None:
    cards.found = [Card()] * count
    assert refusal("cuda:7") == f"device: cuda:7: {found}"


def test_cuda_is_refused_where_torch_is_built_without_it(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert refusal("cuda:3") == "device: found 'cuda:3', but torch is built without CUDA; expected auto or cpu"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_the_variable_that_hides_all_cards_is_named(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hidden: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    without_cuda(monkeypatch, "No CUDA GPUs are available")
    assert refusal("cuda") == f"device: found 'cuda', but CUDA_VISIBLE_DEVICES is '{hidden}'; expected auto or cpu"
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("No CUDA GPUs are available", "torch finds no CUDA device"),
        ("Found no NVIDIA driver on your system. Please check …", "there is no NVIDIA driver"),
    ],
)
def test_a_machine_without_a_card_computes_on_the_cpu_and_says_nothing(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, message: str, reason: str
) -> None:
    without_cuda(monkeypatch, message)
    assert refusal("cuda") == f"device: found 'cuda', but {reason}; expected auto or cpu"
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == []


@pytest.mark.parametrize("raised_by", ["init", "is_available"])
def test_a_driver_that_is_too_old_is_named_once_and_the_cpu_computes(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, raised_by: str
) -> None:
    def fails() -> bool:
        raise RuntimeError(TOO_OLD)

    monkeypatch.setattr(torch.cuda, raised_by, fails)
    reason = "the NVIDIA driver is too old for this torch (found version 11040); update one of them"
    assert refusal("cuda") == f"device: found 'cuda', but {reason}; expected auto or cpu"
    assert [choose_device("auto"), choose_device("auto")] == [torch.device("cpu")] * 2
    assert caplog.messages == [f"{reason}; computing on the CPU"]


def test_a_card_that_torch_has_no_kernels_for_is_named(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_100", "compute_100"])
    cards.found = [Card(name="Tesla V100", capability=(7, 0), free=5), Card(free=3)]
    reason = "cuda:0 (Tesla V100) has compute capability 7.0 and this torch needs 7.5; install an older torch"
    assert refusal("cuda:0") == f"device: found 'cuda:0', but {reason}; expected auto or cpu"
    assert choose_device("auto") == torch.device("cuda:1")
    cards.found.pop()
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == [f"{reason}; computing on the CPU"]


def test_rocm_and_mps_are_said_to_be_untested(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert refusal("mps") == "device: found 'mps', but torch finds no Apple GPU here; expected auto or cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps") == torch.device("mps")
    assert choose_dtype("auto", torch.device("mps")) == torch.float32
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.3")
    cards.found = [Card(name="AMD Instinct MI210", capability=(9, 0))]
    assert choose_device("auto") == torch.device("cuda:0")
    assert caplog.messages == [
        "mps: this kind of device is untested; it computes in fp32",
        "cuda:0 (AMD Instinct MI210): ROCm is untested",
    ]


@pytest.mark.parametrize("name", ["xpu", "hpu", "meta", "gpu", "cuda:x"])
def test_devices_of_other_kinds_are_refused_by_name(cards: Cards, name: str) -> None:
    assert refusal(name) == f"device: found '{name}', expected auto, cpu, cuda or cuda:N"


def test_asking_whether_a_name_is_a_cpu_reads_no_card(cards: Cards) -> None:
    cards.found = [Card(), Card()]
    assert [is_cpu(name) for name in ("cpu", "auto", "cuda", "cuda:1", "mps")] == [True, False, False, False, False]
    assert cards.read == []


@pytest.mark.parametrize(
    ("files", "installed", "imported", "expected"),
    [
        (["nvme0", "nvram", "null"], True, False, True),
        (["nvidia0"], True, False, False),
        (["kfd"], True, False, False),
        (["dxg"], True, False, False),
        (["nvhost-gpu"], True, False, False),
        (["nvidia0"], False, False, True),
        ([], True, True, False),
    ],
)
def test_auto_is_a_cpu_without_asking_torch_where_there_is_no_sign_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, files: list[str], installed: bool, imported: bool, expected: bool
) -> None:
    monkeypatch.setattr(device.os, "listdir", lambda folder: files)
    monkeypatch.setattr(device, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(device, "is_imported", lambda: imported)
    assert device.needs_no_torch("auto") == expected
    assert device.needs_no_torch("cpu")
    assert not device.needs_no_torch("cuda")


def test_each_process_of_a_group_has_its_own_card_and_reads_no_other(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards.found = [Card(), Card(), Card()]
    for name in ("auto", "cuda"):
        assert Group(rank=5, size=7, local=2).device(name) == torch.device("cuda:2")
    assert (cards.read, cards.current) == ([], 2)
    assert Group(rank=5, size=7, local=2).device("cpu") == torch.device("cpu")
    with pytest.raises(SettingsError) as caught:
        Group(rank=5, size=7, local=5).device("auto")
    assert str(caught.value) == "device: cuda:5: found 3 CUDA devices, expected cuda:0 to cuda:2"
    cards.found.clear()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert Group(rank=5, size=7, local=5).device("auto") == torch.device("cpu")


def test_the_card_of_a_single_process_becomes_the_current_one(cards: Cards) -> None:
    cards.found = [Card(free=3), Card(free=5)]
    assert Group().device("auto") == torch.device("cuda:1")
    assert cards.current == 1


def test_a_card_without_memory_for_a_context_is_refused_in_one_line(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call."

    def fails(place: Any) -> None:
        raise RuntimeError(full)

    cards.found = [Card(fault=full)]
    monkeypatch.setattr(torch.cuda, "set_device", fails)
    for use in (Group().device, lambda name: device.free_bytes(torch.device(name))):
        with pytest.raises(SettingsError) as caught:
            use("cuda:0")
        assert str(caught.value) == "device: found 'cuda:0', but no memory of it is free; expected auto or cpu"


# ---- precision and attention


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((6, 1), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((8, 9), "bf16"), ((12, 0), "bf16")],
)
def test_the_precision_of_a_gpu_follows_from_its_compute_capability(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precision: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)  # which counts emulation
    cards.found = [Card(capability=capability)]
    found = torch.device("cuda:0")
    assert choose_precision("auto", found) == precision
    assert choose_dtype("auto", found) == (torch.bfloat16 if precision == "bf16" else torch.float32)
    for wanted in ("fp32", "fp16"):
        assert choose_precision(wanted, found) == wanted


def test_a_precision_that_the_device_lacks_is_refused(cards: Cards) -> None:
    cards.found = [Card()]
    places = {
        ("bf16", "cuda:0"): "found 'bf16', which cuda:0 (Tesla T4) does not support; expected 'auto', 'fp32' or 'fp16'",
        ("fp16", "cpu"): "found 'fp16', which cpu does not support; expected 'auto', 'fp32' or 'bf16'",
        ("fp16", "mps"): "found 'fp16', which mps does not support; expected 'auto' or 'fp32'",
    }
    for (wanted, place), message in places.items():
        with pytest.raises(SettingsError) as caught:
            choose_precision(wanted, torch.device(place))  # type: ignore[arg-type]  # of the mapping
        assert str(caught.value) == f"training.precision: {message}"
    assert choose_precision("auto", torch.device("mps")) == "fp32"


# ---- memory


def network_of(config: Config) -> Any:
    return build_network(config, 23, 23)


@given(free=st.integers(0, 200 * GIB), more=st.integers(0, 50 * GIB), narrow=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_batch_of_auto_fits_into_the_memory_that_is_planned_with(free: int, more: int, narrow: bool) -> None:
    needs = MemoryNeeds(state=3 * GIB, token=700_000 if narrow else 1_300_001, vocabulary=32_003)
    tokens = needs.tokens(free)
    assert tokens % STEP == 0
    assert MIN_TOKENS <= tokens <= MAX_TOKENS
    assert tokens <= needs.tokens(free + more)
    if tokens > MIN_TOKENS:
        assert needs.state + needs.batch(tokens) + RESERVED <= SHARE * free
    if tokens < MAX_TOKENS:
        assert needs.state + needs.batch(tokens + STEP) + RESERVED > SHARE * free - 1


def test_the_state_counts_what_settings_add_and_processes_divide() -> None:
    def state(precision: Precision, processes: int = 1, **training: Any) -> float:
        config = Config.build({"model": {"width": 12, "feed_forward": 17, "attention_heads": 2}, "training": training})
        network = network_of(config)
        state = MemoryNeeds.from_network(network, config, 23, precision, processes).state
        parameters: int = sum(parameter.numel() for parameter in network.parameters())
        return (state - 6 * 23 * 12) / parameters

    assert state("fp32") == 4 + 4 + 8 + 4  # weight, gradient, moments, weight of the validation
    assert state("bf16") == state("fp16") == 6 + 6 + 8 + 4
    assert state("fp32", ema=0.5) == 24
    assert state("fp32", 8, shard="optimizer") == 13
    assert state("fp32", 8, shard="full") == 6
    assert state("bf16", lora_rank=3) == 6


def test_the_activations_of_a_token_are_those_that_autograd_keeps_and_a_quarter_more() -> None:
    for activation, layers in (("relu", 1), ("swiglu", 2)):
        model = {"width": 64, "feed_forward": 256, "attention_heads": 4, "activation": activation}
        model |= {"encoder_layers": layers, "decoder_layers": layers}
        config = Config.build({"model": model})
        network = network_of(config)
        rows, length = 13, 17
        ids, mask = torch.full((rows, length), 5), torch.ones(rows, length, dtype=torch.bool)
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch_only(), saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = network.loss(ids, mask, ids, ids, mask, LossOptions(0.1))
        weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
        measured = sum(size for address, size in kept.items() if address not in weights) / (rows * length)
        assert loss.objective.isfinite()
        estimated = token_bytes(network, config.model, config.training, 4)
        assert 1.1 < estimated / measured < 2.5


def test_the_table_of_the_documentation_is_what_the_formula_gives() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    cells = r"([\d,]+) wide, (\d) \+ \d.*? \| ([\d.]+) GiB \| (\d+) KiB \| (.*)"
    rows = re.findall(rf"^\| {cells} \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for width, layers, state, token, batches in rows:
        size = int(width.replace(",", ""))
        model = {"width": size, "feed_forward": 4 * size, "attention_heads": size // 64}
        config = Config.build({"model": {**model, "encoder_layers": int(layers), "decoder_layers": int(layers)}})
        with without_values():
            network = build_network(config, 32_000, 32_000)
        needs = MemoryNeeds.from_network(network, config, 32_000, "bf16", 1)
        assert (f"{needs.state / GIB:.1f}", f"{needs.token / 1024:.0f}") == (state, token)
        assert batches == " | ".join(f"{needs.tokens(free * GIB):,}" for free in (8, 16, 24, 40))


def returned(generator: Generator[Any, None, R]) -> tuple[list[Any], R]:
    """Return what a generator yields, and what it returns."""
    events: list[Any] = []
    while True:
        try:
            events.append(next(generator))
        except StopIteration as end:
            return events, end.value


def fitted(config: Config, folder: Path, place: str) -> tuple[list[Any], Config]:
    """Return the events and the settings of a run that is prepared for a device."""
    store = Store(folder)
    plan = plan_run(config, store, None)
    _, data = returned(prepare_data(plan, store))
    events, data = returned(fit_memory(plan, data, group=Group(), device=torch.device(place)))
    return events, data.model.config


def test_auto_takes_the_tokens_that_fit_on_a_card_and_says_so(toy: Make, tmp_path: Path, cards: Cards) -> None:
    shape = {"model": {"width": 512, "feed_forward": 2048, "attention_heads": 8, "encoder_layers": 6}}
    cards.found = [Card(free=0), Card(name="NVIDIA H100", capability=(9, 0), free=4 * GIB)]
    config = toy(shape, max_tokens="auto", precision="auto")
    events, found = fitted(config, tmp_path / "a", "cuda:1")
    assert found.training.max_tokens == 10240
    assert events == [Preparing(what="training.max_tokens = 10240, for 4.0 GiB free on cuda:1 (NVIDIA H100)")]
    cards.found[1].free = 80 * GIB
    assert fitted(config, tmp_path / "b", "cuda:1")[1].training.max_tokens == MAX_TOKENS


def test_a_batch_of_auto_holds_the_longest_pair(toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("translume.training.prepare.STEP", 5003)
    events, found = fitted(toy(max_tokens="auto"), tmp_path, "cpu")
    assert found.training.max_tokens == 5003
    assert events == [Preparing(what="training.max_tokens = 5003, for cpu")]


def test_a_training_that_does_not_fit_beside_another_ends_in_one_line(toy: Make, tmp_path: Path, cards: Cards) -> None:
    shape = {"model": {"width": 512, "feed_forward": 2048, "attention_heads": 8, "encoder_layers": 6}}
    cards.found = [Card(free=GIB // 5)]
    with pytest.raises(SettingsError) as caught:
        fitted(toy(shape, max_tokens=4099), tmp_path, "cuda:0")
    assert str(caught.value) == (
        "cuda:0: 0.2 GiB free, this training needs about 1.7 GiB; stop the other process on the card, "
        "lower training.max_tokens or the model's size"
    )


def test_what_the_allocator_keeps_counts_as_free(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards.found = [Card(free=3)]
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 11)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda place: 4)
    assert device.free_bytes(torch.device("cuda:0")) == 10


def test_the_number_of_auto_is_stored_and_a_resumed_run_keeps_it(toy: Make, tmp_path: Path) -> None:
    config = toy(max_tokens="auto", updates=2)
    events = list(train(config, tmp_path, device="cpu"))
    assert Preparing(what="training.max_tokens = 4096, for cpu") in events
    stored = Store(tmp_path).model()
    assert stored is not None
    assert stored.config.training.max_tokens == 4096
    resumed = list(train(config.change("training.updates=4"), tmp_path, device="cpu"))
    assert not any(isinstance(event, Preparing) and "max_tokens" in event.what for event in resumed)
    with pytest.raises(TrainingError) as caught:
        list(train(toy(max_tokens=211, updates=5), tmp_path, device="cpu"))
    assert str(caught.value).startswith(f"{tmp_path}: this run began with training.max_tokens = 4096, found 211; ")


def test_a_run_that_began_with_a_number_keeps_it_under_auto(toy: Make, tmp_path: Path) -> None:
    list(train(toy(updates=2), tmp_path, device="cpu"))
    list(train(toy(max_tokens="auto", updates=3), tmp_path, device="cpu"))
    stored = Store(tmp_path).model()
    assert stored is not None
    assert (stored.config.training.max_tokens, stored.config.training.updates) == (211, 3)


def test_fp16_on_a_cpu_is_refused_before_the_data_are_used(toy: Make, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        list(train(toy(precision="fp16"), tmp_path, device="cpu"))
    assert str(caught.value) == (
        "training.precision: found 'fp16', which cpu does not support; expected 'auto', 'fp32' or 'bf16'"
    )


def test_a_model_that_does_not_fit_on_a_card_is_refused_with_what_is_free(
    toy: Make, tmp_path: Path, cards: Cards
) -> None:
    list(train(toy(updates=1), tmp_path / "model", device="cpu"))
    cards.found = [Card(free=1)]
    with pytest.raises(SettingsError) as caught:
        load_checkpoint(tmp_path / "model", device="auto")
    assert str(caught.value) == (
        f"cuda:0: 0.0 GiB free, {tmp_path}/model needs about 0.0 GiB; "
        "stop the other process on the card, or use --device cpu"
    )


# ---- use


def test_a_meter_reads_a_card_at_most_once_a_second(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    cards.found = [Card(free=3 * GIB, total=16 * GIB)]
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 5 * GIB)
    monkeypatch.setattr(torch.cuda, "utilization", lambda place: 91)
    # Not `time` itself: servers of other tests, in threads, would then wait for hours.
    monkeypatch.setattr(device, "time", SimpleNamespace(monotonic=lambda: now))
    meter = UsageMeter(torch.device("cuda:0"))
    first = meter.read()
    assert first == Usage(memory_gib=5.0, card_memory_gib=13.0, utilization_percent=91)
    cards.found[0].free = GIB
    now = 100.9
    assert meter.read() == first
    now = 101.1
    assert meter.read().card_memory_gib == 15.0
    assert cards.read == [0, 0]


@pytest.mark.parametrize("missing", [ModuleNotFoundError, RuntimeError])
def test_utilization_is_left_out_where_it_cannot_be_read(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, missing: type[Exception]
) -> None:
    calls: list[Any] = []

    def utilization(place: Any) -> int:
        calls.append(place)
        raise missing("nvidia-ml-py does not seem to be installed")

    cards.found = [Card(free=3 * GIB, total=16 * GIB)]
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    monkeypatch.setattr(device, "USAGE_SECONDS", 0.0)
    meter = UsageMeter(torch.device("cuda:0"))
    assert [meter.read().utilization_percent for _ in range(3)] == [None] * 3
    assert len(calls) == 1


def test_the_use_of_a_cpu_is_not_known() -> None:
    assert UsageMeter(torch.device("cpu")).read() == Usage()
