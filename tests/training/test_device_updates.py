"""Updates as a GPU makes them, on the CPU: padded, of few operations, with nothing read back."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batches import pad_batch
from tests.reads import Reads
from torch import Tensor

from translume.checkpoint import build_model
from translume.config import Config, ModelSettings, TrainingSettings
from translume.data.batch import Batch
from translume.errors import TrainingError
from translume.model import LossOptions, Transformer
from translume.model.compiled import torch_only
from translume.text import SpecialIds
from translume.training import Preparing, Progress, Saved, Warned, prepare, train
from translume.training.device_guard import INITIAL_SCALE
from translume.training.optimisation import Precision, Updater
from translume.training.resume import RAW, Store

Make = Callable[..., Config]
SPECIALS = SpecialIds(pad=0, bos=1, eos=2, unk=3)
VOCABULARY = 53
VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "expand", "permute", "select", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
}  # fmt: skip
MAX_OPERATIONS = {"fp32": 1200, "bf16": 1700, "fp16": 1700}


def batch_of(rows: int, source: int, target: int, seed: int = 1, filled: int = 0) -> Batch:
    """Return pairs of random lengths, the longest as given, and `filled` rows of weight 0."""
    generator = torch.Generator().manual_seed(seed)
    sides = []
    for longest in (source, target):
        lengths = [longest, *torch.randint(1, longest + 1, (rows - 1,), generator=generator).tolist()]
        sides.append([torch.randint(4, VOCABULARY, (n - 1,), generator=generator).tolist() for n in lengths])
    batch = pad_batch(sides[0], sides[1], SPECIALS, SPECIALS)
    return batch.filled(rows + filled, source, target, source_specials=SPECIALS, target_specials=SPECIALS)


def model_of(**model: Any) -> Transformer:
    torch.manual_seed(5)
    sizes = {"width": 24, "attention_heads": 3, "feed_forward": 29, "encoder_layers": 2, "decoder_layers": 2}
    return build_model(ModelSettings(**{**sizes, "dropout": 0.0, **model}), VOCABULARY, VOCABULARY).train()


def updater_of(model: Transformer, precision: Precision = "fp32", **training: Any) -> Updater:
    options = LossOptions(training.get("label_smoothing", 0.1))
    chosen = TrainingSettings(**training)
    return Updater(model, chosen, options=options, precision=precision, device=torch.device("cpu"))


def gradients_of(model: Transformer, batch: Batch, options: LossOptions) -> tuple[list[float | None], list[Tensor]]:
    model.zero_grad()
    loss = model.loss(batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask, options)
    loss.objective.backward()  # type: ignore[no-untyped-call]  # torch's has no types
    sums = [loss.objective.detach().item(), None if loss.nll is None else loss.nll.item(), loss.tokens]
    return sums, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("recipe", "precision"),
    [
        *(("multi30k.toml", precision) for precision in ("fp32", "bf16", "fp16")),
        *(("multi30k-base66.toml", "bf16"), ("g2p.toml", "fp32"), ("shakespeare.toml", "fp16")),
    ],
)
def test_an_update_has_few_operations_that_do_not_depend_on_data(recipe: str, precision: Precision) -> None:
    config = Config.read(Path(__file__).parents[2] / "recipes" / recipe)
    sizes = {"encoder_layers": 6, "decoder_layers": 6, "width": 32, "attention_heads": 4, "feed_forward": 47}
    torch.manual_seed(5)
    model = build_model(config.model.model_copy(update=sizes), VOCABULARY, VOCABULARY).train()
    recorded = []
    with torch_only():
        updater = Updater(
            model, config.training, options=LossOptions(0.1), precision=precision, device=torch.device("cpu")
        )
        for filled in (0, 1, 2):  # the first update makes Adam's state
            batch = batch_of(7 - filled, 11, 13, seed=filled, filled=filled)
            with Reads() as reads:
                loss = updater.add(batch)
                norm = updater.update(loss.tokens, 1e-3, loss.objective)
            recorded.append(reads)
            assert isinstance(norm, Tensor)
    first, second = recorded[1:]
    assert first.reads == []
    assert first.operations == second.operations
    assert 500 < sum(name not in VIEWS for name, _ in first.operations) <= MAX_OPERATIONS[precision]


NOWHERE = torch.device("meta")
"""A device without data: every read, and every operation on tensors of two devices, is an error there."""

FORMS: dict[str, dict[str, Any]] = {
    "post": {"norm": "post", "normalization": "rms", "activation": "swiglu"},
    "learned": {"positions": "learned", "attention_dropout": 0.1},
    "rotary": {"positions": "rotary", "head": {"kind": "projected"}},
    "relative": {"positions": "relative", "head": {"kind": "copy"}},
    "recurrent": {"decoder_mixing": "ssru", "head": {"kind": "entmax"}},
    "segments": {"segments": 3, "segment_pooling": "sum", "head": {"kind": "mixture"}},
    "language model": {"encoder_layers": 0, "head": {"kind": "sampled"}},
    "shortlist": {"head": {"kind": "shortlist"}},
    "sigmoid": {"head": {"kind": "sigmoid"}},
}


@pytest.mark.parametrize(
    ("form", "precision"), [*((form, "bf16") for form in FORMS), ("post", "fp32"), ("rotary", "fp16")]
)
def test_an_update_needs_no_number_from_its_device(
    form: str, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_fused_adam_", "_fused_adamw_"):  # torch has none for this device
        monkeypatch.setattr(torch, name, lambda *given, **options: None)
    model, batch = model_of(**FORMS[form]).to(NOWHERE), batch_of(5, 7, 11, filled=2)
    tensors = {name: getattr(batch, name) for name in ("source", "source_mask", "target", "labels", "target_mask")}
    updater = Updater(model, TrainingSettings(), options=LossOptions(0.1), precision=precision, device=NOWHERE)
    for _ in range(2):
        loss = updater.add(replace(batch, **{name: each.to(NOWHERE) for name, each in tensors.items()}))
        norm = updater.update(loss.tokens, 1e-3, loss.objective)
        assert isinstance(norm, Tensor)
        assert loss.objective.device == norm.device == NOWHERE
        assert loss.tokens == batch.tokens


POSITIONS = ("sinusoidal", "learned", "rotary", "relative", "none")


@settings(max_examples=12)
@given(
    positions=st.sampled_from(POSITIONS),
    norm=st.sampled_from(["pre", "post"]),
    mixing=st.sampled_from(["attention", "ssru"]),
    rows=st.integers(1, 5),
    lengths=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    filled=st.integers(0, 2),
    smoothing=st.sampled_from([0.0, 0.1]),
    z=st.sampled_from([0.0, 0.01]),
    marked=st.booleans(),
)
def test_padded_passes_have_the_sums_and_gradients_of_packed_ones(
    positions: str, norm: str, mixing: str, rows: int, lengths: tuple[int, int], filled: int, smoothing: float,
    z: float, marked: bool,
) -> None:  # fmt: skip
    model = model_of(positions=positions, norm=norm, decoder_mixing=mixing).double()
    smoothed = torch.arange(VOCABULARY) > 3 if marked else None
    options = LossOptions(smoothing, z, smoothed)
    packed = gradients_of(model, batch_of(rows, *lengths, seed=rows), options)
    with torch_only():
        padded = gradients_of(model, batch_of(rows, *lengths, seed=rows, filled=filled), options)
    assert padded[0] == pytest.approx(packed[0], rel=1e-12)
    for found, expected in zip(padded[1], packed[1], strict=True):
        assert (found - expected).norm() <= 1e-10 * (1 + expected.norm())


@pytest.mark.parametrize("options", [LossOptions(0.1, confidence_penalty=0.1), LossOptions(0.1, r_drop=1.0)])
def test_penalties_are_those_of_packed_passes(options: LossOptions) -> None:
    model, batch = model_of().double(), batch_of(5, 7, 11)
    packed = gradients_of(model, batch, options)
    with torch_only():
        padded = gradients_of(model, batch, options)
    assert padded[0] == pytest.approx(packed[0], rel=1e-12)
    assert all(torch.allclose(*pair, atol=1e-10) for pair in zip(padded[1], packed[1], strict=True))


SHAPES = [(7, 11, 13), (5, 17, 19), (11, 5, 7)]


def fifty_updates(updater: Updater) -> tuple[list[float], list[Tensor], dict[str, Tensor]]:
    """Return the losses, the gradients of the first update, and the weights at the end."""
    losses = list[float]()
    first = list[Tensor]()
    for number in range(50):
        loss = updater.add(batch_of(*SHAPES[number % 3], seed=number))
        first = first or [each.clone() for each in updater.gradients()]
        losses.append(float(loss.objective))
        updater.update(loss.tokens, 3e-4, loss.objective)
    return losses, first, updater.parameters_fp32()


def test_compiled_passes_train_as_packed_ones_do() -> None:
    losses, first, weights = fifty_updates(updater_of(model_of().double()))
    with torch_only():
        updater = updater_of(model_of().double())
        events = list(updater.compile([batch_of(*shape) for shape in SHAPES]))
        own_losses, own_first, own_weights = fifty_updates(updater)
    assert events == [Preparing(what=f"compiling shape {number} of 3") for number in (1, 2, 3)]
    assert own_losses == pytest.approx(losses, rel=1e-12)
    for found, expected in zip(own_first, first, strict=True):
        assert (found - expected).norm() <= 1e-12 * expected.norm()
    for name, expected in weights.items():
        assert (own_weights[name] - expected).norm() <= 1e-8 * expected.norm()


def test_a_compiler_that_fails_leaves_one_warning_and_the_same_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(torch, "compile", broken)
    with torch_only():
        expected = fifty_updates(updater_of(model_of()))
        updater = updater_of(model_of())
        events = list(updater.compile([batch_of(*shape) for shape in SHAPES], 8))
        found = fifty_updates(updater)
    message = "the compiler failed (RuntimeError: no compiler here); the training goes on uncompiled"
    assert events == [Preparing(what="compiling shape 1 of 3"), Warned(update=8, message=message)]
    assert found[0] == expected[0]
    assert all(torch.equal(found[2][name], value) for name, value in expected[2].items())


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_changes_nothing_nor_do_later_ones(optimizer: str, value: float) -> None:
    batch = batch_of(5, 7, 11)
    with torch_only():
        updater = updater_of(model_of(), optimizer=optimizer)
        loss = updater.add(batch)
        updater.update(loss.tokens, 1e-3, loss.objective)
        before = {name: each.clone() for name, each in (updater.parameters_fp32() | updater.state()).items()}
        working = {name: each.clone() for name, each in updater.model.state_dict().items()}
        for broken in (True, False):
            loss = updater.add(batch)
            updater.update(loss.tokens, 1e-3, loss.objective * value if broken else loss.objective)
        assert {*updater.state()} <= {*before}
        after = updater.parameters_fp32() | {
            name: each for name, each in updater.state().items() if optimizer != "muon" or "layers" not in name
        }
    assert all(torch.equal(after[name], before[name]) for name in after)
    assert all(torch.equal(each, working[name]) for name, each in updater.model.state_dict().items())


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_a_step_on_a_device_is_that_on_a_cpu(optimizer: str) -> None:
    batch = batch_of(5, 7, 11)
    steps = []
    for context in (torch_only, torch.enable_grad):
        with context():
            updater = updater_of(model_of().double(), optimizer=optimizer, clip_norm=0.5, weight_decay=0.1)
            norms = []
            for _ in range(3):
                loss = updater.add(batch)
                norms.append(float(updater.update(loss.tokens, 1e-3, loss.objective)))
            steps.append((norms, updater.parameters_fp32() | updater.state()))
    assert steps[0][0] == pytest.approx(steps[1][0])
    assert steps[0][1].keys() == steps[1][1].keys()
    assert all(torch.allclose(value, steps[1][1][name], atol=1e-7) for name, value in steps[0][1].items())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_fp16_leaves_out_an_update_that_overflows_and_halves_the_scale(optimizer: str) -> None:
    batch = batch_of(5, 7, 11)
    with torch_only():
        updater = updater_of(model_of(), "fp16", optimizer=optimizer)
        loss = updater.add(batch)
        updater.update(loss.tokens, 1e-3, loss.objective)
        before = {name: each.clone() for name, each in (updater.parameters_fp32() | updater.state()).items()}
        loss = updater.add(batch)
        for gradient in updater.gradients():
            gradient[3] = math.inf
        norm = updater.update(loss.tokens, 1e-3, loss.objective)
        after = updater.parameters_fp32() | updater.state()
        scales = [state.pop("loss_scale").tolist() for state in (before, after)]
        assert math.isinf(float(norm))
        assert scales == [[INITIAL_SCALE, 1.0], [INITIAL_SCALE / 2, 0.0]]
        assert all(torch.equal(after[name], value) for name, value in before.items())
        loss = updater.add(batch)
        norm = updater.update(loss.tokens, 1e-3, loss.objective)
        assert math.isfinite(float(norm))
        assert not torch.equal(updater.parameters_fp32()["head.bias"], before["head.bias"])


def test_fp16_continues_with_a_saved_scale() -> None:
    with torch_only():
        first, second = updater_of(model_of(), "fp16"), updater_of(model_of(), "fp16")
        for updater in (first, second):
            loss = updater.add(batch_of(5, 7, 11))
            updater.update(loss.tokens, 1e-3, loss.objective)
        state = {name: each.clone() for name, each in first.state().items()}
        second.load_state({**state, "loss_scale": torch.tensor([3.0, 5.0])})
        assert second.state()["loss_scale"].tolist() == [3.0, 5.0]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Train on the CPU as on a GPU, with batches in buckets."""
    for module in (prepare, sys.modules["translume.training.train"]):
        monkeypatch.setattr(module, "plan_kind", lambda device: "buckets")
    with torch_only():
        yield


def weights_in(folder: Path) -> dict[str, Tensor]:
    return dict(Store(folder, writes=False).tensors(RAW))


@pytest.mark.usefixtures("on_gpu")
def test_every_update_is_reported_in_order_though_later(toy: Make, tmp_path: Path) -> None:
    events = list(train(toy(updates=11, validate_every=5, save_every=5, log_every=1), tmp_path / "run"))
    assert [each.update for each in events if isinstance(each, Progress)] == [*range(1, 12)]
    for event in events:
        if isinstance(event, Saved):
            reported = [each.update for each in events[: events.index(event)] if isinstance(each, Progress)]
            assert reported[-1] == event.update


@pytest.mark.usefixtures("on_gpu")
def test_a_run_that_was_interrupted_has_the_same_bits(toy: Make, tmp_path: Path) -> None:
    config = toy({"model": {"dropout": 0.1}}, updates=13, validate_every=6, save_every=6)
    list(train(config, tmp_path / "whole"))
    for updates in (5, 9, 13):
        changed = config.model_copy(update={"training": config.training.model_copy(update={"updates": updates})})
        list(train(changed, tmp_path / "parts"))
    whole, parts = weights_in(tmp_path / "whole"), weights_in(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())


@pytest.mark.usefixtures("on_gpu")
def test_a_resumed_run_is_compiled_from_the_same_update_on(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_at: list[int] = []

    def compile_at(self: Updater, examples: Any, update: int) -> Iterator[Any]:
        compiled_at.append(update)
        return iter(())

    monkeypatch.setattr(sys.modules["translume.training.train"], "UNCOMPILED", 3)
    monkeypatch.setattr(Updater, "compile", compile_at)
    config = toy(updates=9, compile=True, save_every=2)
    for updates in (2, 5, 9):
        changed = config.model_copy(update={"training": config.training.model_copy(update={"updates": updates})})
        list(train(changed, tmp_path / "run"))
    assert compiled_at == [3, 5]


@pytest.mark.usefixtures("on_gpu")
def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_pairs(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = Updater.add, []

    def broken(self: Updater, batch: Batch) -> Any:
        calls.append(batch.lines)
        loss = add(self, batch)
        return replace(loss, objective=loss.objective * math.nan) if len(calls) == 4 else loss

    monkeypatch.setattr(Updater, "add", broken)
    found: list[Any] = []
    with pytest.raises(TrainingError) as caught:
        found.extend(train(toy(updates=9, save_every=2, max_tokens=10), tmp_path / "run"))
    assert str(caught.value).startswith("update 4: the loss is nan on ")
    assert str(caught.value).endswith(
        f"last good checkpoint: update 2 in {tmp_path / 'run'}; try a lower training.learning_rate"
    )
    assert [each.update for each in found if isinstance(each, Progress)][-1] == 3
