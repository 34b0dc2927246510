"""Searches for settings: the given ones first, no trial lost or doubled, and an honest best."""

import json
import math
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("optuna", reason="needs the extra tune")

from optuna.storages import InMemoryStorage

from translume.checkpoint import FolderLock, read_history
from translume.cli import main
from translume.config import Config, DataSettings
from translume.errors import TrainingError
from translume.experiments import tuning
from translume.experiments.measuring import Measured, Measures
from translume.experiments.processes import Began, Run, Stopped
from translume.experiments.search_space import Dimension, parse_space, propose_space
from translume.experiments.tuning import Budget, Search, Segment
from translume.experiments.tuning_report import report, save, to_markdown

pytestmark = pytest.mark.usefixtures("warm_processes")
near = pytest.approx
WORDS = ["ab", "cde", "fghij", "kl", "mno"]
SETTINGS = """
[data]
train_source = "train.en"
train_target = "train.de"
valid_source = "valid.en"
valid_target = "valid.de"
[tokenizer]
kind = "character"
size = 300
[model]
width = 14
feed_forward = 17
encoder_layers = 1
decoder_layers = 1
attention_heads = 7
[training]
updates = 5000
max_tokens = 512
warmup_updates = 11
metric = "chrf"
patience = 3
[decoding]
strategy = "greedy"
max_length = 13
"""
SPACE = ["model.dropout=0.0..0.5", "training.warmup_updates=2..19", "model.norm=pre,post"]


def write_files(folder: Path) -> Path:
    sources = [f"{first} {second} {third}" for first in WORDS for second in WORDS for third in WORDS]
    for split, texts in (("train", sources), ("valid", sources[::17])):
        for name, lines in (("en", texts), ("de", [text.upper() for text in texts])):
            (folder / f"{split}.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path = folder / "base.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return path


class Trainings:
    """Stands for the processes: trainings that take their time on a clock of its own, and have a known quality.

    stop: the number of trainings after which Ctrl-C ends them.  kill: the same, by an exception, as a kill would.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.stop, self.kill = 0.0, math.inf, math.inf
        self.done: list[Segment] = []
        self.noise = {1: 0.0, 2: -3.0, 3: 1.0}
        # Not `time` itself: servers of other tests, in threads, would then wait for hours.
        monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(tuning, "run_tasks", self.run_tasks)

    def quality(self, config: Config, share: float) -> float:
        value = 50 - 100 * abs(config.model.dropout - 0.37) + (config.model.norm == "post")
        return value * share + self.noise[config.training.seed]

    def run_tasks(self, tasks: Iterable[Segment | None], *, workers: int) -> Iterator[Any]:
        trained: dict[Path, float] = {}
        for task in tasks:
            if task is None:
                return
            yield task, Began(number=1, count=None)
            self.now += task.seconds
            if len(self.done) >= self.kill:
                raise KeyboardInterrupt
            if len(self.done) >= self.stop:
                yield task, Run()
                yield Stopped(signal="SIGINT")
                return
            self.done.append(task)
            trained[task.folder] = trained.get(task.folder, 0) + task.seconds
            value = self.quality(task.config, 1.0 if task.seed else min(1.0, trained[task.folder] / 100))
            ends = task.metric == "chrf"
            measures = Measures(
                updates=10,
                parameters=7,
                device="cpu",
                threads=1,
                tokens_per_second=None,
                nll=1.0,
                scores=(*([("chrf", value, "")] if ends else []), (tuning.PER_CHARACTER, 9 - value / 20, "")),
            )
            yield task, Run(measured=Measured(measures=measures))


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    """Return trainings on a clock of their own; trials are kept in memory, which is faster than SQLite."""
    storage = InMemoryStorage()
    monkeypatch.setattr(tuning, "storage_in", lambda folder: folder.mkdir(exist_ok=True) or storage)
    return Trainings(monkeypatch)


def search_in(
    folder: Path,
    *,
    minutes: float = 23,
    space: Iterable[str] = SPACE,
    overrides: Iterable[str] = (),
    out: str = "out",
) -> Search:
    """Return a search whose trainings take 100 seconds with the usual minutes."""
    file = folder / "base.toml" if (folder / "base.toml").exists() else write_files(folder)
    budget = Budget(minutes=minutes, seeds=2, workers=1, device="cpu", threads=1)
    return Search(file, (*overrides,), parse_space([*space]), folder / out, budget)


def test_the_first_trial_has_the_given_settings_and_the_best_is_not_worse(tmp_path: Path, trainings: Trainings) -> None:
    search = search_in(tmp_path)
    assert search.seconds == pytest.approx(100)
    list(search.run())
    first = trainings.done[:3]
    assert [(task.trial, task.seconds) for task in first] == [(0, near(25)), (0, near(25)), (0, near(50))]
    assert all(
        (task.config.model, task.config.tokenizer) == (search.base.model, search.base.tokenizer) for task in first
    )
    states = [each.state.name for each in search.study.trials]
    assert states[0] == "COMPLETE"
    assert {"COMPLETE", "PRUNED"} <= set(states)
    assert trainings.quality(search.config(search.best()), 1.0) > trainings.quality(search.base, 1.0)


def test_trials_are_pruned_by_nll_per_character_and_translate_only_at_their_end(
    tmp_path: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_in(tmp_path)
    list(search.run())
    for number, trial in enumerate(search.study.trials):
        tasks = [task for task in trainings.done if task.trial == number and not task.seed]
        assert [task.metric for task in tasks] == ["nll", "nll", "chrf"][: len(tasks)]
        assert all(1 < value < 10 for value in search.curve(number))
        if trial.state.name == "COMPLETE":
            assert trial.value == pytest.approx(20 * (9 - search.curve(number)[-1]))
    first = [search.curve(number)[0] for number in range(len(search.study.trials))]
    pruned = [first[number] for number, trial in enumerate(search.study.trials) if trial.state.name == "PRUNED"]
    assert min(first) not in pruned
    assert max(first[1:]) in pruned
    monkeypatch.setattr(tuning, "storage_in", lambda folder: folder.mkdir() or InMemoryStorage())
    kinds = search_in(tmp_path, out="kinds", space=["model.head.kind=softmax,adaptive"])
    assert (kinds.early, kinds.early_sign) == ("chrf", 1)


def test_given_settings_that_cannot_be_trained_end_the_search_and_are_tried_again(
    tmp_path: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tasks: Iterable[Segment], *, workers: int) -> Iterator[Any]:
        yield next(iter(tasks)), Run(failure="killed by SIGKILL")

    search = search_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "run_tasks", fail)
        with pytest.raises(TrainingError) as caught:
            list(search.run())
    assert str(caught.value) == f"{tmp_path}/base.toml: cannot be trained as it is: killed by SIGKILL"
    list(search_in(tmp_path).run())
    assert [task.trial for task in trainings.done[:3]] == [0, 0, 0]


def test_a_search_gives_up_after_five_failed_trainings_in_a_row(
    tmp_path: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_after_the_first(tasks: Iterable[Segment | None], *, workers: int) -> Iterator[Any]:
        for task, event in trainings.run_tasks(tasks, workers=workers):
            failed = task is not None and task.trial and isinstance(event, Run)
            yield task, Run(failure="exit code 1") if failed else event

    search = search_in(tmp_path)
    monkeypatch.setattr(tuning, "run_tasks", fail_after_the_first)
    with pytest.raises(TrainingError) as caught:
        list(search.run())
    assert str(caught.value) == f"{tmp_path}/out: 5 trials in a row failed, the last with: exit code 1"
    assert len(search.study.trials) == 6


def test_all_trials_train_equally_long_and_the_time_is_kept(tmp_path: Path, trainings: Trainings) -> None:
    search = search_in(tmp_path)
    list(search.run())
    assert trainings.now <= 23 * 60
    for number, trial in enumerate(search.study.trials):
        times = [task.seconds for task in trainings.done if task.trial == number and task.seed is None]
        assert times == near([25, 25, 50][: len(trial.intermediate_values)])
    again = [(task.trial, task.config.training.seed, task.seconds) for task in trainings.done if task.seed]
    assert again == [(trial, seed, near(100)) for trial in search.ranked()[:3] for seed in (2, 3)]


def test_the_best_is_chosen_by_other_seeds_alone(tmp_path: Path, trainings: Trainings) -> None:
    trainings.noise = {1: 0.0, 2: 0.0, 3: 0.0}
    search = search_in(tmp_path)
    list(search.run())
    one, other = search.ranked()[:2]
    seeds = {"2": 90.0, "3": 92.0}
    search.study.set_user_attr(f"repeated {one}", {"2": 10.0, "3": 12.0})
    search.study.set_user_attr(f"repeated {other}", seeds)
    assert search.best() == other
    found = report(search, "translume tune")
    assert found["trials"][other]["mean"] == 91
    assert found["trials"][other]["sd"] == pytest.approx(math.sqrt(2))
    assert len({one, other, 0}) == 3
    search.study.set_user_attr(f"repeated {other}", {"2": -1000.0})
    search.study.set_user_attr(f"repeated {one}", {})
    third = search.ranked()[2]
    search.study.set_user_attr(f"repeated {third}", {})
    assert search.best() == 0  # not one whose value was chosen as the best of many


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_an_interrupted_search_goes_on_and_loses_or_doubles_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    trainings, storage = Trainings(monkeypatch), InMemoryStorage()
    if ending == "stop":
        monkeypatch.setattr(tuning, "storage_in", lambda folder: folder.mkdir(exist_ok=True) or storage)
    for count in range(4, 99, 25):
        setattr(trainings, ending, count)
        search = search_in(tmp_path)
        try:
            ends = [each for each in search.run() if isinstance(each, Stopped)]
        except KeyboardInterrupt:
            ends = [Stopped(signal="SIGKILL")]
        if not ends:
            break
    assert not ends
    segments = [(task.trial, task.config.training.seed, task.since, task.seconds) for task in trainings.done]
    by_trial = {
        number: [task for task in trainings.done if task.trial == number and not task.seed] for number in range(99)
    }
    for number, trial in enumerate(search.study.trials):
        assert trial.state.name in ("COMPLETE", "PRUNED", "RUNNING")
        assert [task.seconds for task in by_trial[number]] == near([25, 25, 50][: len(trial.intermediate_values)])
    drawn = [json.dumps(search.chosen(number)) for number in range(len(search.study.trials))]
    assert len(set(drawn)) == len(drawn)
    again = [(trial, seed) for trial, seed, _, seconds in segments if seconds == near(100)]
    assert len(set(again)) == len(again) == 6


def test_a_kill_between_a_measurement_and_its_decision_loses_nothing(
    tmp_path: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(search: Search, trial: object) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        run = search_in(tmp_path).run()
        next(run)  # it decides what the last one left open
        with monkeypatch.context() as patch:
            patch.setattr(Search, "_decide", kill)
            with pytest.raises(KeyboardInterrupt):
                list(run)
    search = search_in(tmp_path)
    with FolderLock(tmp_path / "out"), pytest.raises(TrainingError) as caught:
        next(search.run())
    assert str(caught.value) == f"{tmp_path}/out: this process already trains in it"
    assert search.study.trials[0].state.name == "RUNNING"  # it was left to the process that holds the lock
    next(search.run())
    assert search.study.trials[0].state.name == "COMPLETE"
    assert [task.seconds for task in trainings.done] == near([25, 25, 50])


def test_the_last_trials_that_go_on_leave_time_for_the_repetitions_that_there_will_be(
    tmp_path: Path, trainings: Trainings
) -> None:
    trainings.stop = 3
    search = search_in(tmp_path)
    list(search.run())
    assert search.ranked() == [0]
    for rung, trials, share in ((0, 3, 0.25), (1, 2, 0.25), (2, 2, 0.5)):
        needed = tuning.SPARE * search.seconds * (2 * trials + share)
        for spare in (-1, 1):
            trainings.now += search.left - needed - spare
            assert search._fits(rung) == (spare > 0)


def test_refused_combinations_fail_without_taking_time(tmp_path: Path, trainings: Trainings) -> None:
    search = search_in(tmp_path, space=["model.width=14,15", "model.dropout=0.1..0.5"])
    list(search.run())
    failed = [each for each in search.study.trials if "failure" in each.user_attrs]
    assert 0 < len(failed) < 9  # the sampler learns from them
    assert all("model.width=15" not in task.name for task in trainings.done)
    assert all(each.user_attrs["failure"].startswith(f"{tmp_path}/base.toml: model") for each in failed)


def test_another_space_or_file_is_refused_by_name(tmp_path: Path, trainings: Trainings) -> None:
    trainings.stop = 1
    list(search_in(tmp_path).run())
    place, end = f"{tmp_path}/out: this search began with", "; expected the same settings, or another folder"
    with pytest.raises(Exception, match="began") as caught:
        search_in(tmp_path, overrides=["model.width=28"])
    assert str(caught.value) == f"{place} model.width = 14, found 28{end}"
    with pytest.raises(Exception, match="began") as caught:
        search_in(tmp_path, space=SPACE[:1])
    now = "['model.dropout=0..0.5', 'training.warmup_updates=2..19', 'model.norm=pre,post']"
    assert str(caught.value) == f"{place} --vary = {now}, found ['model.dropout=0..0.5']{end}"


def test_the_best_settings_read_back_with_what_was_given_and_what_was_found(
    tmp_path: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_in(tmp_path)
    list(search.run())
    save(search, report(search, "translume tune base.toml out"), "base.toml")
    best = Config.read(tmp_path / "out" / "best.toml")
    wanted = search.config(search.best())
    assert best.by_path() == wanted.by_path()
    assert (best.training.updates, best.training.patience) == (5000, 3)
    page = (tmp_path / "out" / "tune.html").read_text(encoding="utf-8")
    (shown,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    values = json.loads(shown)
    assert set(values["importance"]) == {"model.dropout", "training.warmup_updates", "model.norm"}
    assert sum(values["importance"].values()) == pytest.approx(1)
    assert max(values["importance"], key=values["importance"].__getitem__) == "model.dropout"
    text = to_markdown(report(search, "translume tune"))
    assert "is the best of many, and so too good on average" in text
    assert re.search(r"\| \d+\* +\| model.dropout=0\.\d+, training.warmup_updates=\d+, model.norm=\w+ ", text)


# ---- spaces


@given(low=st.floats(1e-6, 1, allow_subnormal=False), factor=st.floats(1.5, 100))
def test_a_range_is_read_as_it_is_written(low: float, factor: float) -> None:
    (found,) = parse_space([f"training.learning_rate={low!r}..{low * factor!r}:log"])
    assert found == Dimension(path="training.learning_rate", low=low, high=low * factor, log=True)


def test_whole_numbers_make_a_range_of_them_and_words_are_choices() -> None:
    assert parse_space(["model.encoder_layers=2..6", "model.norm=pre,post"]) == (
        Dimension(path="model.encoder_layers", low=2, high=6, whole=True),
        Dimension(path="model.norm", values=("pre", "post")),
    )


@given(
    width=st.sampled_from([14, 128, 512]),
    dropout=st.floats(0, 0.9),
    warmup=st.integers(0, 9000),
    layers=st.integers(1, 12),
    smoothing=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_the_proposed_space_has_the_given_settings(
    width: int, dropout: float, warmup: int, layers: int, smoothing: float
) -> None:
    config = Config.build(
        {
            "model": {
                "width": width,
                "attention_heads": 2,
                "dropout": round(dropout, 3),
                "encoder_layers": layers,
                "decoder_layers": layers,
            },
            "training": {"warmup_updates": warmup, "label_smoothing": smoothing},
        }
    )
    space = tuple(propose_space(config))
    assert [each.path for each in space if each.value_in(config) is None] == []
    assert all(each.values or each.low < each.high for each in space)


@pytest.mark.parametrize(("task", "side"), [("classification", "encoder"), ("language_model", "decoder")])
def test_the_proposed_space_has_the_layers_of_the_sides_that_a_task_has(task: str, side: str) -> None:
    space = propose_space(Config(data=DataSettings(task=task)))
    assert [each.path for each in space if each.path.endswith("_layers")] == [f"model.{side}_layers"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            ["model.dropuot=0.1..0.4"],
            "--vary model.dropuot=0.1..0.4: model.dropuot: no such setting; did you mean 'model.dropout'?",
        ),
        (["model.dropout=0.4..0.1"], "--vary model.dropout=0.4..0.1: found 0.4 first, expected a number below 0.1"),
        (["model.dropout=0..0.1:log"], "--vary model.dropout=0..0.1:log: found 0, expected a number above 0 with :log"),
        (
            ["model.dropout=a..b"],
            "--vary model.dropout=a..b: "
            "expected LOW..HIGH or LOW..HIGH:log, such as training.learning_rate=1e-4..3e-3:log",
        ),
        (
            ["model.dropout=0.1..0.2", "training.metric=nll,bleu"],
            "--vary training.metric: cannot be varied: trials would not be measured alike",
        ),
        (["training.seed=1..4"], "--vary training.seed: cannot be varied; --seeds N trains with several seeds"),
    ],
)
def test_wrong_spaces_are_named_before_any_training(tmp_path: Path, words: list[str], answer: str) -> None:
    path = write_files(tmp_path)
    result = typed(path, tmp_path / "out", "--minutes", "9", *(word for each in words for word in ("--vary", each)))
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {answer}\n")
    assert not (tmp_path / "out").exists()


def typed(*words: object) -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, words)], prog_name="translume", catch_exceptions=False)


def test_a_head_without_nll_needs_another_metric(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    words = ("--set", "model.head.kind=sigmoid", "--set", "training.metric=nll")
    result = typed(path, tmp_path / "out", "--minutes", "9", *words)
    reason = "training.metric: found 'nll', which the head does not have, expected another"
    assert (result.exit_code, result.stderr) == (1, f"Error: {path}: {reason}\n")


def test_missing_data_end_the_search_before_it_begins(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    (tmp_path / "valid.de").unlink()
    result = typed(path, tmp_path / "out", "--minutes", "9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {tmp_path}/valid.de: no such file\n"
    assert not (tmp_path / "out").exists()


def test_a_damaged_study_is_named(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.db").write_bytes(b"no database" * 99)
    result = typed(path, tmp_path / "out", "--minutes", "9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {tmp_path}/out/study.db: cannot be read: file is not a database\n"


def test_names_that_an_address_cannot_have_are_refused(tmp_path: Path) -> None:
    result = typed(write_files(tmp_path), tmp_path / "50%", "--minutes", "9")
    reason = "found '%' in the name, which addresses of SQLite files cannot have"
    assert (result.exit_code, result.stderr) == (1, f"Error: {tmp_path}/50%: {reason}\n")
    assert not (tmp_path / "50%").exists()


# ---- with real trainings


def test_ctrl_c_saves_and_the_same_command_goes_on_without_reading_test_files(
    tmp_path: Path, command: list[str]
) -> None:
    path, out = write_files(tmp_path), tmp_path / "out"
    for name in ("test.en", "test.de"):
        os.mkfifo(tmp_path / name)  # whoever opens it waits for ever
    words = [str(path), str(out), "--minutes", "0.05", "--threads", "1", "--set", "training.metric=nll"]
    words += ["--vary", "tokenizer.size=200,300", "--seeds", "1"]
    with subprocess.Popen([*command, "tune", *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("update "):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().splitlines()
        assert process.wait(timeout=300) == 130
    assert said[-1].startswith(f"Interrupted, all saved; continue with: translume tune {path} {out} --minutes 0.05 ")
    before = read_history(out / "trial-000")
    assert before[-1]["event"] in ("interrupted", "finished")  # the latter if its part was over at that moment
    done = typed(*words, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((out / "tune.json").read_text(encoding="utf-8"))
    history = read_history(out / "trial-000")
    assert history[: len(before)] == before
    assert history[len(before) + 1]["event"] == "resumed"
    assert history[len(before) + 1]["update"] == before[-1]["update"]
    assert (found["trials"][0]["state"], found["metric"]) == ("complete", "nll per character")
    last = [record for record in history if record["event"] == "finished"][-1]
    lines = (tmp_path / "valid.de").read_text(encoding="utf-8").splitlines()
    letters = sum(map(len, lines))  # with tokens of one letter, and an end for each line
    assert found["trials"][0]["curve"][-1][1] == pytest.approx(last["nll"] * (letters + len(lines)) / letters)
    read = {Path(file["path"]).name for record in history if record["event"] == "started" for file in record["files"]}
    assert read == {"train.en", "train.de", "valid.en", "valid.de"}
