"""The notebooks in docs/ run, and values that are displayed in notebooks show their texts and nothing else."""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume import notebook
from translume.evaluation import Score, Scores
from translume.evaluation.calibration import Reliability
from translume.evaluation.classification import ClassCount, ClassScores
from translume.notebook import as_table, with_bar
from translume.training.events import Finished, Interrupted, Preparing, Progress, Validated, Warned
from translume.training.live_curve import POINTS, LiveCurve, curve_of
from translume.translator import Classification, Translation
from translume.translator.results import Segment, TextHypothesis

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install translume[dev]")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install translume[dev]")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install translume[dev]")

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = int(os.environ.get("TRANSLUME_NOTEBOOK_SECONDS", "600"))
"""Time limit of a cell."""
HOSTILE = "<script>alert('x')</script> & \"<b>\" {} \u202e مرحبا"

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


@pytest.fixture
def kernel(tmp_path: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to run in. Its kernels, named `warm`, find `translume` and shorten trainings."""
    folder, programs = tmp_path / "work", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    (programs / "translume").write_text(
        f'#!/bin/sh\nexec "{warm_python}" -c \'from translume.cli import main; main()\' "$@"\n', encoding="utf-8"
    )
    (programs / "translume").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("TRANSLUME_SHORT", "1")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    warm = tmp_path / "jupyter_data_dir" / "kernels" / "warm"
    warm.mkdir(parents=True)
    words = [str(warm_python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    description = {"argv": words, "display_name": "warm", "language": "python"}
    (warm / "kernel.json").write_text(json.dumps(description), encoding="utf-8")
    return folder


@every_notebook
@pytest.mark.filterwarnings("default")  # those of the client are not ours
def test_a_notebook_runs_and_draws_its_trainings(path: Path, kernel: Path) -> None:
    if path.stem == "speech":
        pytest.importorskip("soundfile", reason="soundfile is not installed (extra: audio)")
    if path.stem == "imported_model":
        pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
    content = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(kernel)}}
    nbclient.NotebookClient(content, timeout=SECONDS, kernel_name="warm", resources=resources).execute()
    for cell in content.cells:
        outputs = cell.get("outputs", [])
        printed = "".join(each.get("text", "") for each in outputs)
        assert not re.search("Traceback|failed|Error", printed), printed  # of a command, which ends no cell
        if "translume.train(" in cell.source and cell.cell_type == "code":
            shown = [each.data["text/html"] for each in outputs if each.output_type == "display_data"]
            assert len(shown) == 1, "one output that changes, not one for each update"
            assert shown[0].startswith("<svg")
            assert "finished after 5 updates" in shown[0]
        if cell.cell_type == "code" and cell.source.startswith("!translume sweep"):
            assert (kernel / "sweep" / "numbers" / "table.png").exists()


@every_notebook
def test_a_notebook_stores_no_outputs_says_how_to_install_and_explains_its_cells(path: Path) -> None:
    content = nbformat.read(path, as_version=4)
    nbformat.validate(content)
    codes = [cell for cell in content.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in codes] == [[]] * len(codes)
    assert [cell.execution_count for cell in codes] == [None] * len(codes)
    assert content.cells[0].source.startswith("# ")
    assert "Install: `pip install 'translume[" in content.cells[0].source
    assert len(content.cells) - len(codes) >= 5
    text = path.read_text(encoding="utf-8")
    assert text == nbformat.writes(content, indent=1) + "\n", "not as Jupyter writes it"


@every_notebook
def test_a_notebook_is_listed_and_its_links_lead_to_files(path: Path) -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert f"](notebooks/{path.name})" in page
    assert f"\nnotebooks/{path.stem}\n" in page
    cells = nbformat.read(path, as_version=4).cells
    links = re.findall(r"\]\(([^)]+)\)", "\n".join(cell.source for cell in cells if cell.cell_type == "markdown"))
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_there_are_six_notebooks_or_more() -> None:
    assert len(NOTEBOOKS) >= 6


class Shown(HTMLParser):
    """The texts and the elements of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self._whole = ""
        self.feed(html)
        self.close()
        self.texts.append(self._whole)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert {name for name, _ in attributes} <= {"dir", "style"}

    def handle_data(self, data: str) -> None:
        self._whole += data


ELEMENTS = {"p", "strong", "table", "thead", "tr", "td"}
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]))


@given(texts, st.lists(st.tuples(texts, texts), max_size=3), st.lists(texts, max_size=2))
def test_a_table_shows_every_text_and_has_no_elements_but_its_own(
    text: str, rows: list[tuple[str, str]], notes: list[str]
) -> None:
    shown = Shown(as_table(("one", "other"), rows, text, notes))
    assert shown.tags <= ELEMENTS
    head = "oneother" if rows else ""
    assert shown.texts == ["".join([text, head, *(cell for row in rows for cell in row), *notes])]


def hypothesis(text: str) -> TextHypothesis:
    return TextHypothesis(text=text, tokens=("a", "</s>"), ids=(5, 2), log_prob=-1.25, score=-0.625, finished_by="eos")


RELIABILITY = Reliability(ece=0.25, count=3, confidence=0.5, accuracy=0.75, bins=())
VALUES = {
    "translation": Translation(
        source=HOSTILE, text=HOSTILE, hypotheses=(hypothesis(HOSTILE), hypothesis("b")), warnings=(f"cut: {HOSTILE}",),
        quality_warnings=(f"repetition: {HOSTILE}",), segments=(Segment(start=0.5, end=1.25, text=HOSTILE),),
    ),
    "classification": Classification(
        source=HOSTILE, labels=(HOSTILE,), probabilities=((HOSTILE, 0.875), ("b", 0.125)), warnings=(HOSTILE,)
    ),
    "scores": Scores(
        scores=(Score(name="x", title=HOSTILE, value=41.0943, signature=HOSTILE, detail=HOSTILE),), translations=()
    ),
    "class scores": ClassScores(
        texts=3, names=(HOSTILE,), accuracy=50.0, macro_f1=25.0, confusion=None, reliability=RELIABILITY,
        classes=(ClassCount(label=HOSTILE, right=1, wrong=1, missed=2),),
    ),
}  # fmt: skip
FIGURES = {
    "translation": ["-1.250", "-0.625", "eos", "0.500", "1.250"],
    "classification": ["0.875", "0.125"],
    "scores": ["41.09"],
    "class scores": ["macro-F1|classes:seen|n:3 = 25.00", "ECE|of:decisions"],
}


@pytest.mark.parametrize("name", VALUES)
def test_values_display_their_figures_and_escape_hostile_texts(name: str) -> None:
    html = VALUES[name]._repr_html_()
    shown = Shown(html)
    assert shown.tags <= ELEMENTS
    assert HOSTILE in shown.texts[0]
    assert "<script" not in html
    assert [each for each in FIGURES[name] if each not in shown.texts[0]] == []


def test_a_blank_translation_displays_no_table() -> None:
    assert Translation(source=" ", text="")._repr_html_() == ""


class Publisher:
    """What IPython's kernel shows, and how often."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], str, bool]] = []

    def publish(self, values: dict[str, str], *, transient: dict[str, str], update: bool) -> None:
        self.calls.append((values, transient["display_id"], update))


def shell_of(monkeypatch: pytest.MonkeyPatch, **more: object) -> Publisher:
    """Let IPython run with a shell that has these attributes, and show every change."""
    publisher = Publisher()
    shell = SimpleNamespace(display_pub=publisher, **more)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]  # no module
    monkeypatch.setattr(notebook, "PAUSE_SECONDS", 0.0)
    return publisher


def progress(update: int, **more: Any) -> Progress:
    values: dict[str, Any] = {
        "epoch": 1, "loss": 3.0, "nll": 2.0, "tokens": 100, "tokens_per_second": 1234.0, "learning_rate": 0.1,
        "gradient_norm": 1.0, "seconds_left": 61.0, "logged": False,
    }  # fmt: skip
    return Progress(update=update, updates=4, **{**values, **more})


FINISHED = Finished(
    update=4, reason="updates", kept="the best", nll=1.0, metrics={}, best_update=4, folder=Path("m"), already=False
)
EVENTS = [
    Preparing(what="tokenizer"), progress(1, nll=4.0), progress(2, nll=3.0, logged=True),
    Validated(update=2, nll=2.5, metrics={"bleu": 12.345}, best=True, seconds=1.0), Warned(update=2, message=HOSTILE),
    progress(3, nll=3.5), progress(4, nll=None, loss=2.0, logged=True), FINISHED,
]  # fmt: skip


def test_a_training_has_one_output_that_changes_with_its_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = shell_of(monkeypatch, kernel=object())
    curve = LiveCurve()
    for event in EVENTS:
        curve.shown(event)
    assert [update for _, _, update in publisher.calls] == [False] + [True] * 7
    assert len({display for _, display, _ in publisher.calls}) == 1
    texts = [values["text/plain"] for values, _, _ in publisher.calls]
    assert texts[0] == "preparing: tokenizer"
    assert texts[2] == "update 2 of 4: 1,234 tokens/s, 61 s left; training 3.000"
    assert texts[3] == f"{texts[2]}, validation 2.500, bleu 12.35"
    assert texts[-1] == "finished after 4 updates; kept the best, validation 1.000"
    html = publisher.calls[-1][0]["text/html"]
    assert "<script" not in html
    picture = ElementTree.fromstring(f"<div>{html}</div>")  # well formed
    lines = [each.attrib["points"] for each in picture.iter("polyline")]
    # 600 × 200: four updates from left to right; 4.0 at the top, 2.0 at the bottom. Update 4 is logged instead of 3.
    assert lines == ["150.0,0.0 300.0,100.0 600.0,200.0", "300.0,150.0"]
    assert f"warning: {HOSTILE}" in ["".join(each.itertext()) for each in picture.iter("div")]


def test_an_interrupted_training_says_that_the_same_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = shell_of(monkeypatch, kernel=object())
    monkeypatch.setattr(notebook, "PAUSE_SECONDS", 1000.0)
    curve = LiveCurve()
    for event in (progress(1), progress(2), Interrupted(update=2, signal="SIGINT", folder=Path("m"))):
        curve.shown(event)
    first, last = (values["text/plain"] for values, _, _ in publisher.calls)  # the second comes too soon to be shown
    assert first.startswith("update 1 of 4")
    assert last == "interrupted after 2 updates, all saved; the same call goes on"


def test_a_curve_has_a_bounded_number_of_points_and_leaves_out_infinite_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = shell_of(monkeypatch, kernel=object())
    monkeypatch.setattr(notebook, "PAUSE_SECONDS", 1000.0)
    curve = LiveCurve()
    for update in range(1, 10_001):
        curve.shown(replace(progress(update), updates=10_000, logged=update % 10 == 0))
    curve.shown(Validated(update=10_000, nll=float("inf"), metrics={}, best=False, seconds=1.0))
    curve.shown(FINISHED)
    html = publisher.calls[-1][0]["text/html"]
    training, validation = re.findall(r'points="([^"]*)"', html)
    assert POINTS / 2 < len(training.split()) <= POINTS
    assert validation == ""
    assert "nan" not in html
    assert publisher.calls[-1][0]["text/plain"] == "finished after 4 updates; kept the best, validation 1.000"


def test_a_curve_without_points_is_an_empty_picture() -> None:
    assert "update 1<" in curve_of({"training": [], "validation": []})


@pytest.mark.parametrize("running", ["no IPython", "IPython on a terminal"])
def test_nothing_is_shown_outside_notebooks(running: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = shell_of(monkeypatch)
    monkeypatch.setattr(notebook, "DELAY_SECONDS", -1.0)
    if running == "no IPython":
        monkeypatch.delitem(sys.modules, "IPython")
    curve = LiveCurve()
    for event in EVENTS:
        curve.shown(event)
    assert list(with_bar("abc", "done", total=3)) == ["a", "b", "c"]
    assert publisher.calls == []


@pytest.mark.parametrize("total", [1, 3])
def test_a_bar_counts_items_in_one_output(total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = shell_of(monkeypatch, kernel=object())
    monkeypatch.setattr(notebook, "DELAY_SECONDS", -1.0)
    assert list(with_bar("abc"[:total], "translated & <b>", total=total)) == list("abc"[:total])
    assert [values["text/plain"].split(",")[0] for values, _, _ in publisher.calls] == [
        f"translated & <b>: {done} of {total}" for done in range(1, total + 1)
    ]
    assert [update for _, _, update in publisher.calls] == [False, *[True] * (total - 1)]
    last = publisher.calls[-1][0]["text/html"]
    assert last.startswith(f'<progress value="{total}" max="{total}"></progress> translated &amp; &lt;b&gt;: ')
    assert last.endswith("a second, 0 s left")


def test_short_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = shell_of(monkeypatch, kernel=object())
    assert list(with_bar(iter(range(50)), "done", total=50)) == list(range(50))
    assert publisher.calls == []


def test_a_bar_takes_items_only_when_they_are_asked_for() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise AssertionError("read ahead")

    assert next(with_bar(items(), "done", total=2)) == 1
