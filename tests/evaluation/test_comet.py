"""COMET: the scores of unbabel-comet, of each row once; whatever happens to its process is one line of error."""

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.evaluation import fake_comet

from translume.config import Config, EvaluationSettings
from translume.config.evaluation import CometSettings
from translume.errors import SettingsError, TranslumeError
from translume.evaluation import SegmentMetric, comet, compare, measure, metric_from, segment_metrics
from translume.evaluation.metrics import check_metrics
from translume.evaluation.segment_metrics import Row

SOURCES, TEXTS, REFERENCES = ["ab", "abc", ""], ["xyz", "", "uvw x"], ["xy", "q", "vwx y"]
INSTALL = "`translume metrics install comet` prints the commands that make it"


NUMBERS = count()


class Letters(SegmentMetric):
    """Letters that a text has in common with its reference, less those that it has in common with its source."""

    name, title = "letters", "letters"
    reads_sources = True

    def __init__(self, settings: EvaluationSettings | None = None) -> None:
        self.computed: list[Row] = []
        self.number = next(NUMBERS)  # not id(self), which is given to another object after this one

    def definition(self) -> str:
        return f"unit:letters|test:{self.number}"

    def compute(self, rows: list[Row]) -> list[float]:
        self.computed += rows
        return [float(len(set(text) & set(other)) - len(set(text) & set(source))) for source, text, other in rows]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[CometSettings]:
    found = fake_comet.make(tmp_path)
    yield found
    for name in ("comet", "comet-kiwi"):
        metric_from(name, settings(name, comet=found)).close()


def settings(*metrics: str, **changes: Any) -> EvaluationSettings:
    return EvaluationSettings(metrics=metrics, **changes)


texts = st.text("abc ", max_size=3)
rows = st.lists(st.tuples(texts, texts, texts), max_size=9)


@given(first=rows, second=rows)
def test_each_row_is_computed_once_and_rated_wherever_it_is(first: list[Row], second: list[Row]) -> None:
    metric, plain = Letters(), Letters()
    for each in (first, second, first[::-1]):
        assert metric.rate(each) == plain.compute(each)
    assert sorted(metric.computed) == sorted({*first, *second})


def test_ratings_that_were_dropped_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_metrics, "KEPT", 2)
    monkeypatch.setattr(segment_metrics, "AT_ONCE", 2)
    metric, done = Letters(), list[tuple[int, ...]]()
    metric.progress = lambda *counts: done.append(counts)
    rows = [("", "ab"[:number], "abc") for number in (0, 1, 2)] + [("a", "a", "a"), ("b", "", "")]
    assert [metric.rate(rows) for _ in range(2)] == [[0, 1, 2, 0, 0]] * 2
    assert len(segment_metrics._ratings) == 2
    assert done[:3] == [(2, 5), (4, 5), (5, 5)]


def test_the_best_reference_counts_and_the_score_is_the_mean() -> None:
    metric = Letters()
    counts = metric.count(["ab", "c", "cd"], [["a", "x", "cd"], ["ab", None, "d"]], ["b", "c", ""])
    assert counts.tolist() == [[1, 1], [-1, 1], [2, 1]]  # by hand: 2 − 1, 0 − 1, 2 − 0
    score = metric.score(counts.sum(0))
    assert score.value == pytest.approx(2 / 3)
    assert score.signature == f"nrefs:var|{metric.definition()}"


def test_scores_are_those_of_comet_in_per_cent(fake: CometSettings, tmp_path: Path) -> None:
    scores = measure(TEXTS, REFERENCES, settings("comet", "comet-kiwi", comet=fake), sources=SOURCES)
    wanted = [fake_comet.score(*row) for row in zip(SOURCES, TEXTS, REFERENCES, strict=True)]
    assert scores["comet"].value == pytest.approx(100 * sum(wanted) / 3)
    wanted = [fake_comet.score(*row) for row in zip(SOURCES, TEXTS, strict=True)]
    assert scores["comet-kiwi"].value == pytest.approx(100 * sum(wanted) / 3)
    sha256 = {name: comet.digest(tmp_path / name / "checkpoints/model.ckpt")[:16] for name in ("tiny", "qe")}
    assert str(scores["comet"]) == (
        f"COMET|nrefs:1|model:tiny|sha256:{sha256['tiny']}|precision:fp32|comet:9.9 = {scores['comet'].value:.2f}"
    )
    assert scores["comet-kiwi"].signature == (f"nrefs:0|model:qe|sha256:{sha256['qe']}|precision:fp32|comet:9.9")


def test_a_model_that_can_do_without_references_is_one_of_both_metrics(tmp_path: Path) -> None:
    found = fake_comet.make(tmp_path, references=False, segments=["mt", "src", "ref"])
    both = found.model_copy(update={"kiwi_model": found.model})
    scores = measure(TEXTS, REFERENCES, settings("comet", "comet-kiwi", comet=both), sources=SOURCES)
    for name, sides in (("comet", [SOURCES, TEXTS, REFERENCES]), ("comet-kiwi", [SOURCES, TEXTS])):
        wanted = [100 * fake_comet.score(*row) for row in zip(*sides, strict=True)]
        assert scores[name].value == pytest.approx(sum(wanted) / 3)
        metric_from(name, settings(name, comet=both)).close()


def test_the_signature_counts_the_texts_that_the_model_cuts(fake: CometSettings, tmp_path: Path) -> None:
    fake_comet.make(tmp_path, limit=5)
    texts, chosen = ["abcd", "abcdef", "f"], settings("comet", comet=fake)
    for _ in range(2):  # computed, and kept
        score = measure(texts, REFERENCES, chosen, sources=["", "", "ghijkl"])["comet"]
        assert score.signature.endswith("|comet:9.9|truncated:2")
    whole = measure(["abcd", "", "f"], REFERENCES, chosen, sources=["", "abcd", ""])["comet"]
    assert whole.signature.endswith("|comet:9.9")


def test_comparing_two_systems_scores_each_row_once(fake: CometSettings, tmp_path: Path) -> None:
    chosen = settings("comet", comet=fake)
    for other in ([*TEXTS[:2], "x"], TEXTS):
        (found,) = compare(TEXTS, other, REFERENCES, chosen, sources=SOURCES, samples=50)
        values = [
            100 * np.mean([fake_comet.score(*row) for row in zip(SOURCES, system, REFERENCES, strict=True)])
            for system in (TEXTS, other)
        ]
        assert [found.first.value, found.second.value] == pytest.approx(values)
    assert found.p_value == 1.0
    assert len(fake_comet.rows_scored(tmp_path)) == 4


def test_a_metric_without_references_needs_none(fake: CometSettings) -> None:
    chosen = settings("comet-kiwi", comet=fake)
    without = measure(TEXTS, [None] * 3, chosen, sources=SOURCES)
    assert without.scores == measure(TEXTS, REFERENCES, chosen, sources=SOURCES).scores
    with pytest.raises(TranslumeError) as caught:
        measure(TEXTS, [None] * 3, settings("comet-kiwi", "chrf", comet=fake), sources=SOURCES)
    assert str(caught.value) == "evaluate: sentence 1 has no reference, expected at least one"
    with pytest.raises(SettingsError) as caught:
        measure(TEXTS, REFERENCES, chosen)
    assert str(caught.value) == "evaluation.metrics: 'comet-kiwi' compares with the sources; expected --source FILE"


@pytest.mark.parametrize(("fault", "message"), [
    ("error", "comet: {model}: {python} ended: tensor"),
    ("exit", "comet: {model}: {python} ended: noise without an end"),
    ("kill", "comet: {model}: {python} ended: killed by signal 9"),
    ("hang", "comet: {model}: {python} gave no answer for 0.5 seconds"),
    ("nan", "comet: its model rates the text 'xyz' with nan"),
])  # fmt: skip
def test_a_fault_of_the_process_is_one_line_and_the_next_call_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    broken = fake_comet.make(tmp_path, fault=fault)
    metric = metric_from("comet", settings("comet", comet=broken))
    metric.definition()
    process = metric._worker._process
    monkeypatch.setattr(comet, "SILENCE_SECONDS", 0.5)
    with pytest.raises(TranslumeError) as caught:
        metric.count(TEXTS, [REFERENCES], SOURCES)
    assert str(caught.value) == message.format(model=broken.model, python=broken.python)
    assert (process.poll() is None) == (fault == "nan")  # else it ended, and was waited for
    monkeypatch.setattr(comet, "SILENCE_SECONDS", 30.0)
    fake_comet.make(tmp_path)  # the same path, with a model that works
    metric.close()
    values = [100 * fake_comet.score(*row) for row in zip(SOURCES, TEXTS, REFERENCES, strict=True)]
    assert metric.count(TEXTS, [REFERENCES], SOURCES)[:, 0] == pytest.approx(values)
    metric.close()
    assert metric._worker._process is None


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": ""}, "evaluation.comet.model: found '', expected a file of comet, .ckpt, or hf://owner/name"),
    ({"model": "{folder}"}, "evaluation.comet.model: found '{folder}', expected a file of comet, .ckpt, or "
     "hf://owner/name"),
    ({"model": "hf://a/b"}, "comet: hf://a/b: {python} ended: KeyError: \"Model 'a/b' not supported by COMET.\""),
    ({"model": "{qe}"}, "evaluation.comet.model: {qe} reads no references: it is a model of 'comet-kiwi'"),
    ({"kiwi_model": "{tiny}"}, "evaluation.comet.kiwi_model: {tiny} needs references: it is a model of 'comet'"),
    ({"python": "{folder}/none"}, "evaluation.comet.python: {folder}/none: No such file or directory; " + INSTALL),
    ({"python": "{empty}"}, "comet: {tiny}: {empty} ended: ModuleNotFoundError: No module named 'comet'; " + INSTALL),
])  # fmt: skip
def test_what_is_missing_is_said_before_anything_is_translated(
    fake: CometSettings, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    empty = tmp_path / "empty"
    empty.write_text((tmp_path / "python").read_text().replace("/packages", "/nothing"))
    empty.chmod(0o755)
    words = {"folder": tmp_path, "empty": empty, "tiny": fake.model, "qe": fake.kiwi_model, "python": fake.python}
    changed = fake.model_copy(update={name: value.format(**words) for name, value in changes.items()})
    metric = "comet-kiwi" if "kiwi_model" in changes else "comet"
    with pytest.raises(TranslumeError) as caught:
        check_metrics(settings(metric, comet=changed))
    assert str(caught.value) == message.format(**words)
    if " it is a model of " in message:
        metric_from(metric, settings(metric, comet=changed)).close()


def test_the_python_is_that_of_the_setting_the_variable_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = fake_comet.make(tmp_path)
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(comet.VARIABLE, raising=False)
    unset = settings("comet", comet=chosen.model_copy(update={"python": ""}))
    assert metric_from("comet", unset)._worker._python == str(tmp_path / "cache/comet/bin/python")
    monkeypatch.setenv(comet.VARIABLE, "/of/variable")
    assert metric_from("comet", unset)._worker._python == "/of/variable"
    assert metric_from("comet", settings("comet", comet=chosen))._worker._python == chosen.python


def test_paths_of_models_are_relative_to_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[evaluation.comet]\nmodel = "a/b.ckpt"\nkiwi_model = "hf://c/d"\n[decoding]\nutility_model = "e.ckpt"'
    )
    config = Config.read(file)
    assert config.evaluation.comet.model == str(tmp_path / "a/b.ckpt")
    assert config.evaluation.comet.kiwi_model == "hf://c/d"
    assert config.decoding.utility_model == str(tmp_path / "e.ckpt")
    assert config.evaluation.comet.python == ""


PYTHON = os.environ.get(comet.VARIABLE, "")
with_comet = pytest.mark.skipif(
    not PYTHON,
    reason=f"{comet.VARIABLE} names no Python with unbabel-comet; `translume metrics install comet` makes one",
)


@pytest.fixture(scope="module")
def lines() -> list[list[str]]:
    """Sources, translations and references, 100 of each and of different lengths."""
    words = ["a", "man", "rides", "red", "bicycle", "ein", "Mann", "fährt", "rotes", "Fahrrad", "zwei", "Hunde"]
    random = np.random.default_rng(3)
    return [[" ".join(random.choice(words, size=random.integers(1, 23))) for _ in range(100)] for _ in range(3)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]]) -> Iterator[CometSettings]:
    """Two checkpoints of comet, with the scores of `lines` that comet computes beside them."""
    folder = tmp_path_factory.mktemp("comet")
    command = [PYTHON, "-W", "ignore", str(Path(__file__).with_name("make_comet.py")), str(folder)]
    rows = json.dumps([*zip(*lines, strict=True)])
    subprocess.run(command, input=rows, text=True, check=True, capture_output=True)
    paths = [str(folder / name / "checkpoints/model.ckpt") for name in ("tiny", "qe")]
    found = CometSettings(model=paths[0], kiwi_model=paths[1], python=PYTHON)
    yield found
    metric_from("comet", settings("comet", comet=found)).close()


@with_comet
@pytest.mark.parametrize("model", ["tiny", "qe", "unite"])
def test_scores_equal_those_of_comet(real: CometSettings, lines: list[list[str]], model: str) -> None:
    name = "comet-kiwi" if model == "qe" else "comet"
    chosen = real.model_copy(update={"model": real.model.replace("/tiny/", f"/{model}/")} if name == "comet" else {})
    metric = metric_from(name, settings(name, comet=chosen))
    counts = metric.count(lines[1], [lines[2]], lines[0])
    wanted = json.loads(
        (Path(chosen.model if name == "comet" else chosen.kiwi_model).parents[1] / "scores.json").read_text()
    )
    np.testing.assert_allclose(counts[:, 0] / 100, wanted, rtol=0, atol=1e-5)
    if model != "tiny":
        metric.close()


@with_comet
@pytest.mark.parametrize(("model", "name"), [("tiny", "comet"), ("unite", "comet"), ("unite", "comet-kiwi")])
def test_texts_are_cut_where_their_ends_do_not_change_the_score(real: CometSettings, model: str, name: str) -> None:
    path = real.model.replace("/tiny/", f"/{model}/")
    metric = metric_from(name, settings(name, comet=real.model_copy(update={"model": path, "kiwi_model": path})))
    rows = [("Hunde a", "zwei " * count, "red") for count in range(1, 65)]
    ends = metric.compute([(source, f"{text} bicycle", other) for source, text, other in rows])
    same = np.isclose(metric.compute(rows), ends, rtol=0, atol=1e-4)
    metric.compute([(source, f"{text} bicycle", other) for source, text, other in rows])
    assert same.any()
    assert not same.all()
    cut = np.array(metric.cut)
    assert not (same & ~cut).any(), "each text whose end is not read is counted"
    assert not (cut[: same.argmax() - 8]).any(), "and those that are read are not"
    metric.close()


@with_comet
def test_scores_in_fp16_equal_those_of_comet_score(real: CometSettings, lines: list[list[str]], tmp_path: Path) -> None:
    files = [tmp_path / letter for letter in "str"]
    for file, side in zip(files, lines, strict=True):
        file.write_text("".join(f"{line}\n" for line in side))
    options = [word for pair in zip(("-s", "-t", "-r"), map(str, files), strict=True) for word in pair]
    command = [PYTHON, "-W", "ignore", "-m", "comet.cli.score", *options, "--model", real.model, "--gpus", "0"]
    subprocess.run([*command, "--to_json", str(tmp_path / "json")], check=True, capture_output=True)
    (wanted,) = json.loads((tmp_path / "json").read_text()).values()
    metric = metric_from("comet", settings("comet", comet=real.model_copy(update={"precision": "fp16"})))
    counts = metric.count(lines[1], [lines[2]], lines[0])
    np.testing.assert_allclose(counts[:, 0] / 100, [each["COMET"] for each in wanted], rtol=0, atol=1e-5)
    metric.close()


@with_comet
def test_texts_that_rows_share_are_encoded_once_with_equal_scores(real: CometSettings, lines: list[list[str]]) -> None:
    metric = metric_from("comet", settings("comet", comet=real))
    sources, hypotheses = lines[0][:3], lines[1][:7]
    rows = [(source, one, other) for source in sources for one in hypotheses for other in hypotheses]
    together, chosen = metric.compute(rows), [*range(0, len(rows), 11)]
    apart = [metric.compute([rows[number]])[0] for number in chosen]
    np.testing.assert_allclose([together[number] for number in chosen], apart, rtol=0, atol=1e-3)  # in per cent
    assert np.std(together) > 1
