"""`translume inspect` of a classifier: the evidence for a text, and calibration on labelled texts."""

import json

import pytest
from click.testing import CliRunner
from tests.classification.scoring import evaluate_classification

import translume
from translume.cli import main
from translume.translator import load

from .conftest import texts


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="translume")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Return a file of texts and a file of their labels; the last label is wrong."""
    folder = tmp_path_factory.mktemp("labelled")
    found = [*texts(37, 8)]
    found[-1] = (found[-1][0], "colour" if found[-1][1] != "colour" else "fruit")
    for name, side in (("texts", 0), ("labels", 1)):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in found))
    return folder / "texts", folder / "labels"


def test_the_deciding_word_has_the_evidence(trained):
    shown = run("inspect", trained, "a b owl c", "--top", 2)
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[0] == "text    a b owl c"
    assert lines[1].startswith("class   animal; margin ")
    (row,) = (line for line in lines if line.startswith("owl "))
    assert float(row.split()[1]) > 1.0
    assert all(abs(float(line.split()[1])) < 1.0 for line in lines if line[:2] in ("a ", "b ", "c "))


def test_json_contains_the_trace_and_html_is_written(trained, tmp_path):
    out = tmp_path / "out.html"
    shown = run("inspect", trained, "a b owl c", "--json", "--html", out, "--attribution", "occlusion-mask")
    assert shown.exit_code == 0, shown.output
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("{")]
    trace = translume.ClassTrace.from_dict(json.loads(line)["trace"])
    assert trace == translume.trace_classification(
        load(trained, device="cpu"),
        "a b owl c",
        show=("pooling", "occlusion", "occlusion-mask", "input-gradient"),
    )
    assert "<!doctype html>" in out.read_text(encoding="utf-8")


def test_a_labelled_corpus_shows_calibration_and_the_most_confident_mistakes(trained, labelled):
    shown = run("inspect", "corpus", trained, *labelled)
    assert shown.exit_code == 0, shown.output
    sources, labels = (file.read_text().splitlines() for file in labelled)
    scores = evaluate_classification(load(trained, device="cpu"), sources, labels)
    assert str(scores.scores[0]) in shown.output
    assert scores.calibration in shown.output
    counts = [each.count for each in scores.reliability.bins if each.count]
    rows = [line.split() for line in shown.output.splitlines() if " to " in line and "█" in line]
    assert [int(row[3]) for row in rows] == counts
    assert "  line 37: " in shown.output
    assert sources[-1] in shown.output
    as_json = run("inspect", "corpus", trained, *labelled, "--json")
    content = json.loads(as_json.stdout)
    assert content["mistakes"][0]["line"] == 37
    assert content["mistakes"][0]["wanted"] == labels[-1]
    assert content["calibration"] == scores.reliability.to_dict()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["text", "MODEL", "a", "--target", "b"], "--target cannot be combined with a classifier"),
        (["text", "MODEL", "a", "--alternatives", "3"], "--alternatives cannot be combined with a classifier"),
        (["text", "MODEL", "a", "--beam", "2"], "inspect: decoding.beam has no effect on a classifier here"),
        (["text", "MODEL", "a", "--attribution", "oclusion"],
         "attribution: found 'oclusion'; did you mean 'occlusion'?"),
        (["text", "MODEL", " "], "text: found a blank text, expected a text to classify"),
        (["edit", "MODEL", "a", "b"],
         "MODEL: is a classifier, expected a translator; its commands are classify, evaluate and inspect"),
        (["corpus", "MODEL", "TEXTS", "LABELS", "--html", "OUT"], "--html cannot be combined with a classifier"),
        (["corpus", "MODEL", "TEXTS", "LABELS", "--compare", "MODEL"],
         "--compare cannot be combined with a classifier"),
    ],
)  # fmt: skip
def test_invalid_options_give_a_one_line_error(trained, labelled, tmp_path, words, message):
    places = {"MODEL": trained, "TEXTS": labelled[0], "LABELS": labelled[1], "OUT": tmp_path / "out.html"}
    shown = run("inspect", *[places.get(word, word) for word in words])
    assert (shown.exit_code, shown.output) == (1, f"Error: {message.replace('MODEL', str(trained))}\n")


def test_files_of_unequal_length_and_unknown_labels_are_named(trained, labelled, tmp_path):
    short = tmp_path / "short"
    short.write_text("animal\nfruit\n")
    shown = run("inspect", "corpus", trained, labelled[0], short)
    assert shown.output.strip().removeprefix("Error: ") == (
        f"{labelled[0]} has 37 lines but {short} has 2; expected as many in both"
    )
    wrong = tmp_path / "wrong"
    wrong.write_text("".join(["animal\n"] * 36 + ["animol\n"]))
    shown = run("inspect", "corpus", trained, labelled[0], wrong)
    assert shown.output.strip().removeprefix("Error: ") == (
        f"{wrong}:37: label 'animol' is not in the training data; did you mean 'animal'?"
    )
