import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume import atomic
from translume.checkpoint import (
    FolderLock,
    Manifest,
    committed,
    load_checkpoint,
    read_config,
    read_history,
    read_tensors,
    record_evaluation,
)
from translume.config import Config
from translume.data import streaming
from translume.data.pairs import Pair
from translume.errors import DataError, TrainingError
from translume.training import (
    Finished,
    Interrupted,
    Preparing,
    Progress,
    Resumed,
    Saved,
    Started,
    Validated,
    Warned,
    train,
)

Make = Callable[..., Config]

FEATURES = {
    "best": {},
    "average, moving average, accumulation and Muon": {
        "average_last": 3,
        "keep": 4,
        "ema": 0.9,
        "accumulate": 2,
        "optimizer": "muon",
    },
    "patience": {"patience": 2, "validate_every": 2, "learning_rate": 0.3},
    "streaming": {
        "others": {"data": {"streaming": True, "shuffle_buffer": 70, "cleaning": {"max_tokens": 8}}},
        "max_tokens": 401,
    },
    "experts": {"others": {"model": {"experts": [3], "expert_capacity_factor": 0.6}}},
}


class Died(BaseException):
    """Simulates the death of the process."""


def content(folder: Path) -> dict[str, Any]:
    """Return the content of a finished folder, without wall-clock times."""
    files = dict(Manifest.read(folder).files)
    state = json.loads((folder / files.pop("resume/state.json").file).read_text())
    for timed in ("seconds", "history_bytes"):
        del state[timed]
    return {"state": state, **{name: entry.sha256 for name, entry in files.items()}}


def finish(config: Config, folder: Path) -> dict[str, Any]:
    """Finish the run and return the content of its folder."""
    *_, last = train(config, folder)
    assert isinstance(last, Finished)
    return content(folder)


@pytest.fixture(scope="module")
def whole(toy: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the folders of uninterrupted runs."""
    folder = tmp_path_factory.mktemp("whole")
    return {name: finish(toy(**values), folder / name) for name, values in FEATURES.items()}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(feature=st.sampled_from(sorted(FEATURES)), events=st.lists(st.integers(1, 25), min_size=1, max_size=3))
def test_run_interrupted_anywhere_ends_like_an_uninterrupted_one(
    toy: Make, whole: dict[str, dict[str, Any]], feature: str, events: list[int]
) -> None:
    config = toy(**FEATURES[feature])
    with TemporaryDirectory() as folder:
        for length in events:
            run = train(config, folder)
            for _ in zip(range(length), run, strict=False):
                pass
            run.close()
        assert finish(config, Path(folder)) == whole[feature]


@contextmanager
def death_at(operation: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Die at the n-th file operation of commits, alternately before and after it."""
    number = count(1)

    def fatal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            now = next(number)
            if now == operation and operation % 2:
                raise Died
            result = real(*arguments, **options)
            if now == operation:
                raise Died
            return result

        return call

    with monkeypatch.context() as patch:
        for module, name in (
            (atomic, "write"), (atomic, "sync"), (atomic, "replace_file"), (os, "replace"), (os, "unlink"),
        ):  # fmt: skip
            patch.setattr(module, name, fatal(getattr(module, name)))
        yield


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operation=st.integers(1, 90))
def test_run_killed_during_a_commit_ends_like_an_uninterrupted_one(
    toy: Make, whole: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, operation: int
) -> None:
    feature = "average, moving average, accumulation and Muon"
    with TemporaryDirectory() as folder:
        with death_at(operation, monkeypatch):
            try:
                for _ in train(toy(**FEATURES[feature]), folder):
                    pass
            except Died:
                pass
        *_, last = train(toy(**FEATURES[feature]), folder)
        assert isinstance(last, Finished)
        assert content(Path(folder)) == whole[feature]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_the_same_call_resumes(
    toy: Make, whole: dict[str, dict[str, Any]], tmp_path: Path, number: signal.Signals
) -> None:
    # `nohup` ignores SIGHUP, and a run then does too.
    original = signal.signal(number, signal.default_int_handler)
    before = signal.getsignal(number)
    events = []
    for event in train(toy(), tmp_path):
        events.append(event)
        if isinstance(event, Progress) and event.update == 7:
            os.kill(os.getpid(), number)
    assert events[-2:] == [
        Saved(update=7, folder=tmp_path),
        Interrupted(update=7, signal=number.name, folder=tmp_path),
    ]
    assert signal.getsignal(number) is before
    signal.signal(number, original)
    resumed = [event for event in train(toy(), tmp_path) if isinstance(event, Resumed)]
    assert resumed == [Resumed(update=7, updates=17, folder=tmp_path)]
    assert content(tmp_path) == whole["best"]


@pytest.mark.parametrize(("accumulate", "reads", "updates"), [(1, 1, 0), (1, 2, 2), (5, 2, 0), (5, 5, 1)])
def test_a_signal_while_pairs_are_read_saves_the_last_update(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int, reads: int, updates: int
) -> None:
    """Five batches are of several buffers."""
    config = toy(**FEATURES["streaming"], accumulate=accumulate, updates=5)
    whole = finish(config, tmp_path / "whole")
    read, calls = streaming.EpochReader.read, count(1)

    def interrupted(reader: streaming.EpochReader, most: int) -> tuple[int, list[Pair]] | None:
        found = read(reader, most)
        if next(calls) == reads:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the signal did not end the reading")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(streaming.EpochReader, "read", interrupted)
        *_, last = train(config, tmp_path / "cut")
    assert isinstance(last, Interrupted)
    assert last.update == updates
    assert (tmp_path / "cut" / "resume").exists() == (last.update > 0)
    assert finish(config, tmp_path / "cut") == whole


def test_a_signal_during_validation_leaves_the_validation_to_the_resumed_run(
    toy: Make, whole: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    for event in train(toy(), tmp_path):
        if isinstance(event, Progress) and event.update == 5:
            os.kill(os.getpid(), signal.SIGTERM)
    state = json.loads((tmp_path / Manifest.read(tmp_path).files["resume/state.json"].file).read_text())
    assert (state["update"], state["validated"]) == (5, 0)
    assert finish(toy(), tmp_path) == whole["best"]


def test_signal_before_the_last_validation_leaves_the_run_unfinished(
    toy: Make, whole: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    for event in train(toy(), tmp_path):
        if isinstance(event, Progress) and event.update == 17:
            os.kill(os.getpid(), signal.SIGINT)
    assert finish(toy(), tmp_path) == whole["best"]


def copied(toy_files: Path, folder: Path) -> dict[str, dict[str, str]]:
    """Return [data] with copies of the toy's files."""
    shutil.copytree(toy_files, folder)
    sides = [(split, side) for split in ("train", "valid") for side in ("source", "target")]
    return {"data": {f"{split}_{side}": str(folder / f"{split}.{side}") for split, side in sides}}


def test_a_finished_run_says_so_and_needs_no_data(toy: Make, toy_files: Path, tmp_path: Path) -> None:
    config = toy(copied(toy_files, tmp_path / "data"))
    *_, first = train(config, tmp_path / "model")
    shutil.rmtree(tmp_path / "data")
    (again,) = train(config, tmp_path / "model")
    assert isinstance(first, Finished)
    assert isinstance(again, Finished)
    assert (first.already, again.already) == (False, True)
    assert (again.update, again.reason, again.nll) == (17, "updates", first.nll)


@pytest.mark.parametrize("what", ["settings", "file", "cleaning"])
def test_a_finished_run_refuses_other_training_data(toy: Make, toy_files: Path, tmp_path: Path, what: str) -> None:
    data, folder = copied(toy_files, tmp_path / "data"), tmp_path / "model"
    list(train(toy(data, updates=2), folder))
    if what == "settings":
        data["data"] |= {"train_source": data["data"]["valid_source"], "train_target": data["data"]["valid_target"]}
    elif what == "file":
        path = Path(data["data"]["train_source"])
        path.write_text(path.read_text().replace("a", "b"))
    else:
        data["data"]["cleaning"] = {"max_tokens": 7}
    with pytest.raises(TrainingError) as caught:
        list(train(toy(data, updates=2), folder))
    assert re.sub("[0-9a-f]{12}", "*", str(caught.value)) == (
        f"{folder}: this run began with other training data (digest *, now *); "
        "train into another folder, or fine-tune this model with --from"
    )


def test_a_finished_run_takes_over_settings_that_do_not_change_weights(toy: Make, tmp_path: Path) -> None:
    list(train(toy(updates=2), tmp_path))
    weights = Manifest.read(tmp_path).files["weights.safetensors"]
    changes = {"decoding": {"beam": 3, "ban": ["x"]}, "data": {"source_language": "en", "target_language": "de"}}
    *_, stored, finished = train(toy(changes, updates=2, save_every=9), tmp_path)
    assert stored == Preparing(what="changed settings, stored in the folder")
    assert isinstance(finished, Finished)
    config = read_config(tmp_path)
    assert (config.decoding.beam, config.decoding.ban, config.data.target_language) == (3, ("x",), "de")
    assert config.training.save_every == 3
    assert Manifest.read(tmp_path).files["weights.safetensors"] == weights
    before = (tmp_path / "manifest.json").stat().st_ino
    *_, finished = train(toy(changes, updates=2), tmp_path)
    assert finished.already
    assert (tmp_path / "manifest.json").stat().st_ino == before


def test_a_run_without_a_best_validation_names_the_update_that_was_kept(toy: Make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["translume.training.train"], "improves", lambda *_: False)
    for _ in range(2):
        *_, last = train(toy(updates=7, average_last=1), tmp_path)
        assert (last.kept, last.best_update) == ("the weights after update 7", 7)


def test_a_finished_run_says_that_its_validation_is_of_other_data(toy: Make, toy_files: Path, tmp_path: Path) -> None:
    list(train(toy(updates=2), tmp_path))
    valid = {"data": {"valid_source": str(toy_files / "train.source"), "valid_target": str(toy_files / "train.target")}}
    *_, warned, finished = train(toy(valid, updates=2), tmp_path)
    assert warned == Warned(
        update=2,
        message="the validation data or settings changed after this run had finished: its validation is the earlier "
        "one; measure the model with `translume evaluate`, or raise training.updates to train on",
    )
    assert finished.already


def test_more_updates_continue_a_finished_run(toy: Make, tmp_path: Path) -> None:
    list(train(toy(updates=9), tmp_path / "short"))
    record_evaluation(tmp_path / "short", {"source": "a", "reference": "b", "scores": []})
    longer = finish(toy(updates=17), tmp_path / "short")
    assert longer["resume/raw.safetensors"] == finish(toy(), tmp_path / "whole")["resume/raw.safetensors"]
    events = [record["event"] for record in read_history(tmp_path / "short")]
    assert events.count("evaluated") == 1
    assert events[-1] == "finished"


def test_validation_and_logging_settings_may_change_in_a_run(toy: Make, tmp_path: Path) -> None:
    first = train(toy(), tmp_path)
    for event in first:
        if isinstance(event, Saved) and event.update == 6:
            first.close()
    changed = toy(validate_every=4, save_every=7, log_every=1, patience=50, average_last=2)
    assert finish(changed, tmp_path)["state"]["update"] == 17


def warnings(config: Config, folder: Path) -> list[str]:
    return [event.message for event in train(config, folder) if isinstance(event, Warned)]


@pytest.mark.parametrize("changed", [{"average_last": 3}, {"average_last": 3, "save_every": 4}])
def test_averaging_can_start_at_a_saved_update(
    toy: Make, unmatched: dict[str, str], tmp_path: Path, changed: dict[str, int]
) -> None:
    finish(toy({"data": unmatched}, metric="exact_match", updates=12), tmp_path)
    *_, last = train(toy({"data": unmatched}, metric="exact_match", updates=17, **changed), tmp_path)
    assert isinstance(last, Finished)
    assert last.kept.startswith("the mean of the weights after updates 12, 1")


def test_finished_run_can_be_averaged_again(toy: Make, unmatched: dict[str, str], tmp_path: Path) -> None:
    kept = []
    for average_last in (3, 2, 2):
        config = toy({"data": unmatched}, metric="exact_match", average_last=average_last)
        *_, last = train(config, tmp_path)
        assert isinstance(last, Finished)
        kept.append((last.kept, last.nll, last.already))
    mean = "the mean of the weights after updates "
    assert [words for words, _, _ in kept] == [f"{mean}12, 15, 17", f"{mean}15, 17", f"{mean}15, 17"]
    assert kept[0][1] != kept[1][1] == kept[2][1]
    assert [already for _, _, already in kept] == [False, False, True]


def test_best_weights_are_kept_if_the_mean_is_worse_also_after_an_interruption(
    toy: Make, toy_files: Path, tmp_path: Path
) -> None:
    few = {}
    for side in ("source", "target"):  # seven pairs, which such a rate learns by heart
        lines = (toy_files / f"train.{side}").read_text().splitlines(keepends=True)
        (tmp_path / f"few.{side}").write_text("".join(lines[:7]))
        few[f"train_{side}"] = str(tmp_path / f"few.{side}")
    config = toy(
        {"data": few, "model": {"dropout": 0.0}}, updates=90, learning_rate=0.03, average_last=3, patience=4,
        validate_every=4, save_every=4
    )  # fmt: skip
    *events, last = train(config, tmp_path / "whole")
    assert isinstance(last, Finished)
    found = {event.update: event.nll for event in events if isinstance(event, Validated)}
    best = min(found, key=found.__getitem__)
    assert (last.reason, last.best_update, last.nll) == ("patience", best, found[best])
    assert last.kept == f"the weights after update {best}, the best by nll and better than the mean of the last 3"
    whole = content(tmp_path / "whole")
    assert whole["state"]["mean_nll"] > found[best]
    kept = load_checkpoint(tmp_path / "whole").model.state_dict()
    tensors = read_tensors(committed(tmp_path / "whole", Manifest.read(tmp_path / "whole"), "resume/best.safetensors"))
    for name, tensor in tensors:
        assert torch.equal(kept[name], tensor)
    run = train(config, tmp_path / "cut")
    for event in run:
        if isinstance(event, Validated) and event.update == best + 8:
            run.close()
    assert finish(config, tmp_path / "cut") == whole
    *_, again = train(config, tmp_path / "cut")  # after its data are compared
    assert isinstance(again, Finished)
    assert (again.kept, again.nll) == (last.kept, last.nll)


def test_best_weights_on_other_validation_data_are_discarded(toy: Make, toy_files: Path, tmp_path: Path) -> None:
    list(train(toy(updates=5), tmp_path / "model"))
    other = {}
    for side in ("source", "target"):
        lines = (toy_files / f"valid.{side}").read_text().splitlines(keepends=True)
        (tmp_path / f"other.{side}").write_text("".join(lines[:7]))
        other[f"valid_{side}"] = str(tmp_path / f"other.{side}")
    config = toy({"data": other}, updates=10, learning_rate=5e-4)
    events = list(train(config, tmp_path / "model"))
    assert [event.message for event in events if isinstance(event, Warned)] == [
        "the validation data or settings changed: the best validation and the patience start again"
    ]
    assert [event.best for event in events if isinstance(event, Validated)] == [True]
    assert warnings(config.change("training.updates=11"), tmp_path / "model") == []


def test_changed_end_of_the_cosine_schedule_is_reported(toy: Make, tmp_path: Path) -> None:
    finish(toy(updates=3, schedule="cosine"), tmp_path)
    assert warnings(toy(updates=5, schedule="cosine"), tmp_path) == [
        "updates was 3, now 5: the learning rate follows the new cosine from here on"
    ]


def test_threads_share_a_folder_one_at_a_time(toy: Make, tmp_path: Path) -> None:
    with FolderLock(tmp_path), pytest.raises(Exception, match="trains in it"):
        next(iter(train(toy(), tmp_path)))


def test_the_tokenizer_is_in_the_folder_before_the_first_update(toy: Make, tmp_path: Path) -> None:
    run = train(toy(), tmp_path)
    for event in run:
        if isinstance(event, Started):
            assert set(Manifest.read(tmp_path).files) == {"config.toml", "tokenizer.json", "tokenizer_settings.json"}
            run.close()


def test_decoding_files_are_read_once_and_stored_with_the_model(toy: Make, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("a b c\n", encoding="utf-8")
    config = toy({"decoding": {"vocabulary": str(words)}}, updates=5)
    events = train(config, tmp_path / "run", device="cpu", threads=1)
    next(event for event in events if isinstance(event, Started))
    words.unlink()
    list(events)
    vocabulary = Path(read_config(tmp_path / "run").decoding.vocabulary)
    assert (vocabulary.parent, vocabulary.read_text(encoding="utf-8")) == (tmp_path / "run" / "decoding", "a b c\n")
    longer = config.change("training.updates=9")
    with pytest.raises(DataError) as error:
        list(train(longer, tmp_path / "run", device="cpu", threads=1))
    assert str(error.value) == f"decoding.vocabulary: {words}: cannot be read: No such file or directory"
    moved = longer.change(f'decoding.vocabulary="{vocabulary}"')
    list(train(moved, tmp_path / "run", device="cpu", threads=1))
    assert Path(read_config(tmp_path / "run").decoding.vocabulary) == vocabulary
    list(train(longer.change('decoding.vocabulary=""', "training.updates=11"), tmp_path / "run", device="cpu"))
    assert not vocabulary.exists()
