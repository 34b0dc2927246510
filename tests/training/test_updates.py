import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batches import pad_batch
from tests.evaluation import fake_comet

import translume
from translume.checkpoint import build_model, load_checkpoint, read_history
from translume.cli.training_display import measured
from translume.config import Config
from translume.config.evaluation import CometSettings
from translume.data.batch import Batch
from translume.errors import SettingsError, TrainingError
from translume.evaluation import metric_from
from translume.kernels.loading import has_kernels
from translume.model import HeadLoss, LossOptions, Transformer
from translume.model.layers import recompute_layers
from translume.text import SpecialIds
from translume.training import Finished, Preparing, Progress, Started, Validated, train
from translume.training.batches import gather, seed_generators, seed_of
from translume.training.optimisation import Precision, Updater
from translume.training.prepare import PreparedData, prepare_folder
from translume.training.validation import Quality, margin_of_texts

Make = Callable[..., Config]
SPECIALS = SpecialIds(pad=0, bos=1, eos=2, unk=3)
VOCABULARY = 19


def updater_of(config: Config) -> tuple[Transformer, Updater]:
    torch.manual_seed(5)
    model = build_model(config.model, VOCABULARY, VOCABULARY)
    return model, Updater(
        model, config.training, options=LossOptions(0.1), precision="fp32", device=torch.device("cpu")
    )


def batch_of(count: int) -> Batch:
    generator = torch.Generator().manual_seed(count)
    sides = [
        [torch.randint(4, VOCABULARY, (1 + 3 * row % 7,), generator=generator).tolist() for row in range(count)]
        for _ in range(2)
    ]
    return pad_batch(sides[0], sides[1], SPECIALS, SPECIALS)


def rows_of(batch: Batch, begin: int, end: int) -> Batch:
    return replace(
        batch,
        source=batch.source[begin:end],
        source_mask=batch.source_mask[begin:end],
        target=batch.target[begin:end],
        labels=batch.labels[begin:end],
        target_mask=batch.target_mask[begin:end],
        lines=batch.lines[begin:end],
        tokens=int(batch.target_mask[begin:end].sum()),
    )


def keyed(*batches: Batch) -> dict[tuple[int, ...], Batch]:
    return {(index,): batch for index, batch in enumerate(batches)}


@settings(max_examples=8)
@given(cuts=st.sets(st.integers(1, 10), max_size=4))
def test_unequal_micro_batches_give_the_update_of_the_whole(toy: Make, cuts: set[int]) -> None:
    config = toy({"model": {"dropout": 0.0}})
    whole = batch_of(11)
    bounds = [0, *sorted(cuts), 11]
    parts = [rows_of(whole, begin, end) for begin, end in pairwise(bounds)]
    results = []
    for batches in ([whole], parts):
        _, updater = updater_of(config)
        sums = gather(updater, keyed(*batches), seed=1, update=1)
        assert sums.tokens == whole.tokens
        norm = updater.update(sums.tokens, 1e-3)
        results.append((sums.objective, norm, {k: v.clone() for k, v in updater.state().items()}))
    (objective, norm, moments), (other_objective, other_norm, other_moments) = results
    assert other_objective == pytest.approx(objective, rel=1e-6)
    assert other_norm == pytest.approx(norm, rel=1e-5)
    for name, value in moments.items():
        torch.testing.assert_close(other_moments[name], value, rtol=1e-4, atol=1e-8)


def test_dropout_depends_only_on_seed_update_and_position(toy: Make) -> None:
    config = toy({"model": {"dropout": 0.5}})
    objectives = []
    for noise in (0, 7):
        _, updater = updater_of(config)
        torch.rand(noise)
        objectives.append([gather(updater, keyed(batch_of(5)), seed=1, update=u).objective for u in (1, 1, 2)])
    assert objectives[0] == objectives[1]
    assert objectives[0][0] == objectives[0][1] != objectives[0][2]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mixing", ["attention", "ssru"])
def test_activations_that_are_computed_again_give_the_same_gradients(toy: Make, threads: int, mixing: str) -> None:
    config = toy({"model": {"dropout": 0.3, "activation_dropout": 0.2, "decoder_mixing": mixing}})
    gradients, kept = [], []
    before = torch.get_num_threads()
    for recomputes in (False, True):
        torch.manual_seed(5)
        model = build_model(config.model, VOCABULARY, VOCABULARY)
        if recomputes:
            recompute_layers(model)
        torch.set_num_threads(threads)
        updater = Updater(
            model, config.training, options=LossOptions(0.1), precision="fp32", device=torch.device("cpu")
        )
        sizes: list[int] = []

        def keep(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        torch.manual_seed(7)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            gather(updater, keyed(batch_of(11)), seed=1, update=1)
        torch.set_num_threads(before)
        gradients.append([each.clone() for each in updater.gradients()])
        kept.append(sum(sizes))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    if threads == 1:
        assert kept[1] < kept[0]


@pytest.mark.skipif(not has_kernels(), reason="needs compiled kernels")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_compiled_step_is_torchs(toy: Make, precision: Precision, optimizer: str, threads: int) -> None:
    config = toy({"model": {"dropout": 0.0}}, optimizer=optimizer, weight_decay=0.1, clip_norm=0.01, epsilon=1e-4)
    found, before = [], torch.get_num_threads()
    for compiled in (True, False):
        torch.manual_seed(5)
        model = build_model(config.model, VOCABULARY, VOCABULARY)
        torch.set_num_threads(threads)
        try:
            updater = Updater(
                model, config.training, options=LossOptions(0.1), precision=precision, device=torch.device("cpu")
            )
            assert updater._compiled
            updater._compiled = compiled
            norms = []
            for update, batches in enumerate(([batch_of(11)], [batch_of(7), batch_of(5)], [batch_of(3)])):
                sums = gather(updater, keyed(*batches), seed=1, update=update)
                norms.append(updater.update(sums.tokens, 1e-3))
        finally:
            torch.set_num_threads(before)
        found.append((norms, updater.parameters_fp32(), updater.state(), dict(model.named_parameters())))
    for one, other in zip(*found, strict=True):
        # products of bf16 matrices differ more
        absolute = 1e-4 if (optimizer, precision) == ("muon", "bf16") else 1e-5
        torch.testing.assert_close(one, other, rtol=1e-5 if precision == "fp32" else 1e-2, atol=absolute)


@given(first=st.tuples(st.integers(0), st.integers(0)), second=st.tuples(st.integers(0), st.integers(0)))
def test_seeds_differ_for_different_inputs(first: tuple[int, int], second: tuple[int, int]) -> None:
    assert (seed_of(*first) == seed_of(*second)) == (first == second)
    assert 0 <= seed_of(*first) < 2**63


def test_the_generators_of_the_cpu_and_of_other_devices_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(11)
    expected = torch.rand(5)
    seed_generators(11, torch.device("cpu"))
    assert torch.equal(torch.rand(5), expected)
    seeds: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    seed_generators(13, torch.device("cuda"))
    assert seeds == [13]


class SmallMemory:
    """Accepts batches of at most two pairs and records them."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.added: list[tuple[int, ...]] = []

    def add(self, batch: Batch) -> HeadLoss:
        if len(batch) > 2:
            self.added.append((-1,))
            raise torch.cuda.OutOfMemoryError("no room")
        self.added.append(batch.lines)
        return HeadLoss(torch.tensor(float(batch.tokens)), torch.tensor(1.0), batch.tokens)

    def clear(self) -> None:
        self.added = []


def test_batch_too_large_for_memory_is_split_and_the_update_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SmallMemory()
    sums = gather(memory, keyed(batch_of(2), batch_of(7)), seed=1, update=1)
    assert sums.splits == 3
    assert memory.added == [(0, 1), (0,), (1, 2), (3, 4), (5, 6)]
    assert sums.tokens == batch_of(2).tokens + batch_of(7).tokens == sums.objective


def test_single_pair_too_large_for_memory_is_named() -> None:
    class NoMemory(SmallMemory):
        def add(self, batch: Batch) -> HeadLoss:
            raise torch.cuda.OutOfMemoryError("no room")

    with pytest.raises(TrainingError) as caught:
        gather(NoMemory(), keyed(batch_of(1)), seed=1, update=9)
    assert str(caught.value) == (
        "update 9: CUDA is out of memory for the single pair 1; lower data.cleaning.max_tokens or the model's size"
    )


def test_non_finite_loss_stops_with_a_full_report(
    toy: Make, toy_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Updater.add
    calls = []

    def add(self: Updater, batch: Batch) -> HeadLoss:
        loss = real(self, batch)
        calls.append(batch)
        return loss if len(calls) < 5 else replace(loss, objective=loss.objective * math.nan)

    monkeypatch.setattr(Updater, "add", add)
    with pytest.raises(TrainingError) as caught:
        list(train(toy(), tmp_path))
    lines = [f"{toy_files}/train.source:{number + 1}" for number in calls[-1].lines]
    assert str(caught.value) == (
        f"update 5: the loss is nan on {', '.join(lines[:8])} and {len(lines) - 8} more; "
        f"last good checkpoint: update 3 in {tmp_path}; try a lower training.learning_rate"
    )
    assert load_checkpoint(tmp_path).config == toy()


def test_first_loss_equals_that_of_uniform_guessing(toy: Make, tmp_path: Path) -> None:
    wide = toy({"model": {"width": 64, "feed_forward": 67, "dropout": 0.0, "head": {"tie": "none"}}}, updates=1)
    events = list(train(wide, tmp_path))
    started = next(event for event in events if isinstance(event, Started))
    first = next(event for event in events if isinstance(event, Progress))
    assert math.log(started.target_vocabulary) <= first.loss <= math.log(started.target_vocabulary) + 1


def test_history_records_the_events(toy: Make, tmp_path: Path) -> None:
    events = list(train(toy(), tmp_path))
    lines = read_history(tmp_path)
    assert [line["event"] for line in lines[:1]] == ["started"]
    assert lines[-1]["event"] == "finished"
    progress = [event for event in events if isinstance(event, Progress)]
    assert len(progress) == 17
    assert [line["update"] for line in lines if line["event"] == "progress"] == [4, 8, 12, 16]
    logged = [event.loss for event in progress if event.logged]
    assert [line["loss"] for line in lines if line["event"] == "progress"] == logged
    validated = [event for event in events if isinstance(event, Validated)]
    assert [event.update for event in validated] == [5, 10, 15, 17]
    assert [line["nll"] for line in lines if line["event"] == "validated"] == [event.nll for event in validated]
    assert lines[0]["training"]["read"] == 300
    assert json.dumps(lines)


def test_validations_count_translations_that_reach_their_limit(toy: Make, tmp_path: Path) -> None:
    config = toy({"decoding": {"min_length": 40, "max_length": 40, "strategy": "greedy"}}, metric="bleu", updates=5)
    validated = [event for event in train(config, tmp_path) if isinstance(event, Validated)]
    assert [event.reached_limit for event in validated] == [17]
    assert [line["reached_limit"] for line in read_history(tmp_path) if line["event"] == "validated"] == [17]


@pytest.mark.parametrize(("sentences", "measured"), [(5, 5), (500, 17)])
def test_the_mean_is_compared_with_the_number_of_translated_pairs(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: int, measured: int
) -> None:
    found: list[float] = []
    margin = Quality.margin

    def recorded(mean: Quality, metric: str) -> float:
        found.append(mean.task_margin)
        return margin(mean, metric)

    monkeypatch.setattr(Quality, "margin", recorded)
    settings = {"metric": "chrf", "average_last": 3, "validation_sentences": sentences}
    list(train(toy(updates=5, **settings), tmp_path))
    assert found == [margin_of_texts(measured)]


def test_weights_are_chosen_by_a_learned_metric(toy: Make, tmp_path: Path) -> None:
    comet = fake_comet.make(tmp_path / "comet")
    tables = {"evaluation": {"comet": {"model": comet.model, "python": comet.python}}}
    config = toy(tables, metric="comet", updates=10, average_last=1, validation_sentences=7)
    *events, last = train(config, tmp_path / "model")
    assert isinstance(last, Finished)
    assert last.kept.endswith(", the best by comet")
    rows = fake_comet.rows_scored(tmp_path / "comet")
    assert len({source for source, *_ in rows[:7]}) == 7
    assert len(rows) == len({tuple(row) for row in rows})  # over all validations
    first = next(event for event in events if isinstance(event, Validated))
    assert first.metrics["comet"] == pytest.approx(100 * fmean(fake_comet.score(*row) for row in rows[:7]))
    *_, again = train(config, tmp_path / "model")
    assert isinstance(again, Finished)
    assert again.already
    metric_from("comet", config.evaluation).close()


def test_a_model_folder_names_no_model_that_comet_unpickles(toy: Make, tmp_path: Path) -> None:
    comet = fake_comet.make(tmp_path / "comet")
    decoding = {"utility_model": comet.model, "utility": "comet"}
    list(train(toy({"evaluation": {"comet": comet.model_dump()}, "decoding": decoding}, updates=2), tmp_path / "model"))
    assert comet.model in next((tmp_path / "model").glob("config*.toml")).read_text()
    translator = translume.load(tmp_path / "model")
    assert translator.config.evaluation.comet == CometSettings()
    with pytest.raises(SettingsError) as caught:
        translator.translate("a b", beam=2)
    assert str(caught.value) == "evaluation.comet.model: found '', expected a file of comet, .ckpt, or hf://owner/name"
    assert not (tmp_path / "comet" / "log").exists()


def test_validated_weights_are_those_that_were_saved(toy: Make, unmatched: dict[str, str], tmp_path: Path) -> None:
    config = toy({"data": unmatched}, metric="exact_match", average_last=3)
    *events, last = train(config, tmp_path)
    assert isinstance(last, Finished)
    assert isinstance(events[0], Preparing)
    assert last.kept == "the mean of the weights after updates 12, 15, 17"
    sums = [0.0, 0]
    checkpoint = load_checkpoint(tmp_path)
    for source, target in zip(
        *(Path(getattr(config.data, f"valid_{side}")[0]).read_text().splitlines() for side in ("source", "target")),
        strict=True,
    ):
        batch = pad_batch(
            [checkpoint.source_tokenizer.encode(source)],
            [checkpoint.target_tokenizer.encode(target)],
            SPECIALS,
            SPECIALS,
        )
        scores = checkpoint.model.score(batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask)
        sums[0] -= float(scores.sum())
        sums[1] += batch.tokens
    assert last.nll == pytest.approx(sums[0] / sums[1], rel=1e-5)


@pytest.mark.parametrize(("kind", "measure"), [("softmax", "nll"), ("sigmoid", "objective"), ("entmax", "objective")])
def test_measure_without_an_nll_is_reported_by_its_name(toy: Make, tmp_path: Path, kind: str, measure: str) -> None:
    events = list(train(toy({"model": {"head": {"kind": kind}}}, updates=5, average_last=1), tmp_path))
    told = [event for event in events if isinstance(event, Validated | Finished)]
    assert {event.measure for event in told} == {measure}
    assert [line["measure"] for line in read_history(tmp_path) if line["event"] == "validated"] == [measure]
    assert f"validation {measure} = {told[0].nll:.4f} nats per token" in (tmp_path / "README.md").read_text()
    assert measured(told[0]) == f"{measure} {told[0].nll:.3f}"
    *_, again = train(toy({"model": {"head": {"kind": kind}}}, updates=5, average_last=1), tmp_path)
    assert isinstance(again, Finished)
    assert (again.already, again.measure) == (True, measure)


def test_the_card_names_the_metric_and_which_weights_have_it(toy: Make, tmp_path: Path) -> None:
    *_, last = train(toy(updates=5, metric="chrf", average_last=1), tmp_path)
    assert isinstance(last, Finished)
    assert last.nll is not None
    scores = (tmp_path / "README.md").read_text().split("## Scores\n\n")[1]
    of = "the weights after update 5, the best by chrf"
    assert scores == (
        f"```\nvalidation nll = {last.nll:.4f} nats per token, of {of}\n"
        f"validation chrf = {last.metrics['chrf']:.2f}, of {of}\n```\n"
    )


def test_translume_short_reduces_updates(toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSLUME_SHORT", "1")
    *_, last = train(toy(updates=1000, save_every=1000, validate_every=1000), tmp_path)
    assert isinstance(last, Finished)
    assert last.update == 5


def test_a_validation_pair_wider_than_a_batch_is_validated(toy: Make, toy_files: Path, tmp_path: Path) -> None:
    words = " ".join("abcd" * 20)
    for side in ("source", "target"):
        (tmp_path / f"long.{side}").write_text(f"a b\n{words}\n")
    data = {f"valid_{side}": str(tmp_path / f"long.{side}") for side in ("source", "target")}
    *_, last = train(toy({"data": data}, updates=1, max_tokens=53), tmp_path / "model")
    assert isinstance(last, Finished)
    assert last.nll is not None
    assert last.nll > 0


def test_an_encoder_with_more_positions_than_the_decoder_learns_from_longer_sources(toy: Make, tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / f"{split}.source").write_text("a b c d e f g\n" * 5 + "a b c d e f g h\n" + "h\n" * 2)
        (tmp_path / f"{split}.target").write_text("h g f\n" * 6 + "a b c d\n" * 2)
    data = {f"{name}_{side}": str(tmp_path / f"{name}.{side}") for name in ("train", "valid")
            for side in ("source", "target")}  # fmt: skip
    positions = {"positions": "learned", "max_positions": 4, "encoder": {"max_positions": 8}}
    events = list(train(toy({"data": data, "model": positions}, updates=2), tmp_path / "model", threads=1))
    (started,) = (event for event in events if isinstance(event, Started))
    for account in (started.training, started.validation):
        assert (account.used, account.dropped) == (5, {"too long": 3})
    assert isinstance(events[-1], Finished)


def test_prepared_data_and_vocabularies_are_those_of_the_training(toy: Make, tmp_path: Path) -> None:
    *events, prepared = prepare_folder(toy(), tmp_path)
    assert [event.what for event in events if isinstance(event, Preparing)] == [
        "tokenizer",
        "training data",
        "validation data",
    ]
    assert isinstance(prepared, PreparedData)
    caches = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    trained = list(train(toy(updates=1), tmp_path))
    assert Preparing(what="tokenizer") not in trained
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == caches
