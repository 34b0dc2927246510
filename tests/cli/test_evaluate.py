"""`translume evaluate`: what it and `inspect corpus` read, existing translations, and calibration."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from tests.evaluation import fake_comet

from translume.checkpoint import load_checkpoint
from translume.config import EvaluationSettings
from translume.evaluation import metric_from


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, train_for_a_moment: Callable[..., Path]) -> Path:
    """Return a folder with a briefly trained model and its twelve pairs in several formats."""
    folder = train_for_a_moment(tmp_path_factory.mktemp("pairs"), model=1, other=2)
    sources, targets = ((folder / name).read_text(encoding="utf-8").splitlines() for name in ("a.en", "a.de"))
    pairs = list(zip(sources, targets, strict=True))
    (folder / "a.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in pairs), encoding="utf-8")
    (folder / "a.csv").write_text("".join(f"{one};{other}\r\n" for one, other in pairs), encoding="utf-8")
    rows = [json.dumps({"source": one, "target": other}) for one, other in pairs]
    (folder / "a.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    # The second reference is a copy of the source; the fifth line has only one.
    others = [targets[line] if line == 4 else f"{targets[line]}\t{sources[line]}" for line in range(12)]
    (folder / "refs.tsv").write_text("".join(f"{line}\n" for line in others), encoding="utf-8")
    return folder


def metrics(text: str) -> dict[str, float]:
    return {score["name"]: score["value"] for score in json.loads(text)["scores"]}


@pytest.mark.parametrize("command", [("evaluate",), ("inspect", "corpus")])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_one_file_of_pairs_equals_two_parallel_files(run, folder: Path, command: tuple[str, ...], name: str) -> None:
    two = run(*command, folder / "model", folder / "a.en", folder / "a.de")
    one = run(*command, folder / "model", folder / name)
    assert (one.exit_code, one.stderr) == (0, two.stderr)
    assert one.stdout == two.stdout


def test_several_references_are_files_or_columns(run, folder: Path) -> None:
    words = ("--metrics", "cer,bleu", "--json")
    two = run("evaluate", folder / "model", folder / "a.en", folder / "a.de", folder / "a.en", *words)
    assert two.exit_code == 0, two.stderr
    assert "nrefs:2" in json.loads(two.stdout)["scores"][0]["signature"]
    columns = run("evaluate", folder / "model", folder / "a.en", folder / "refs.tsv", *words)
    assert "nrefs:var" in json.loads(columns.stdout)["scores"][0]["signature"]
    assert metrics(columns.stdout)["cer"] >= metrics(two.stdout)["cer"]


def test_written_translations_have_a_line_for_each_pair(run, folder: Path, tmp_path: Path) -> None:
    """Line breaks in a cell are line breaks of its translation too."""
    (source, target), *_ = zip(*((folder / name).read_text().splitlines() for name in ("a.en", "a.de")), strict=True)
    rows = [json.dumps({"source": text, "target": target}) for text in (f"{source}\n{source}", source)]
    (tmp_path / "breaks.jsonl").write_text("\n".join(rows))
    done = run("evaluate", folder / "model", tmp_path / "breaks.jsonl", "--write", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    assert len((tmp_path / "out").read_text().splitlines()) == 2


def test_learned_metrics_are_printed_and_compared(run, folder: Path, tmp_path: Path) -> None:
    comet = fake_comet.make(tmp_path)
    chosen = [f"--set=evaluation.comet.{name}={getattr(comet, name)}" for name in ("model", "kiwi_model", "python")]
    files, out = (folder / "a.en", folder / "a.de"), tmp_path / "out"
    done = run("evaluate", folder / "model", *files, "--metrics", "comet,comet-kiwi", *chosen, "--write", out)
    assert done.exit_code == 0, done.stderr
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (files[0], out, files[1])]
    value = 100 * fmean(fake_comet.score(*row) for row in zip(*texts, strict=True))
    first, second = done.stdout.splitlines()
    assert first.startswith("COMET|nrefs:1|model:tiny|sha256:")
    assert first.endswith(f"|precision:fp32|comet:9.9 = {value:.2f}")
    assert second.startswith("COMET-Kiwi|nrefs:0|model:qe|sha256:")
    words = ("--hypotheses", out, "--source", files[0], "--metrics", "comet-kiwi", *chosen)
    assert run("evaluate", *words).stdout == f"{second}\n"
    compared = run("evaluate", folder / "model", *files, "--metrics", "comet", *chosen, "--compare", folder / "model")
    assert f"sentences:12: {value:.2f} ± " in compared.stdout
    assert "difference +0.00 [+0.00, +0.00], p = 1.0000" in compared.stdout
    rows = len({*zip(*texts, strict=True)}) + len({*zip(*texts[:2], strict=True)})
    assert len(fake_comet.rows_scored(tmp_path)) == rows
    for name in ("comet", "comet-kiwi"):
        metric_from(name, EvaluationSettings(comet=comet)).close()


def test_the_commands_that_install_comet_are_printed(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "a b"))
    make, install = run("metrics", "install", "comet").stdout.splitlines()
    assert make.endswith(f" -m venv '{tmp_path}/a b/comet'")
    assert install == f"'{tmp_path}/a b/comet/bin/pip' install unbabel-comet==2.2.7 'setuptools<81'"
    assert "Invalid value for '{comet}': 'comett' is not 'comet'." in run("metrics", "install", "comett").stderr


def test_existing_translations_are_scored_with_or_without_a_model(run, folder: Path) -> None:
    found = run("evaluate", "--hypotheses", folder / "a.de", folder / "a.de", "--metrics", "exact_match,cer")
    assert (found.exit_code, found.stderr) == (0, "")
    assert [line.split(" = ")[1].split()[0] for line in found.stdout.splitlines()] == ["100.00", "0.00"]
    own = run("evaluate", folder / "model", folder / "a.en", folder / "a.de", "--write", folder / "out", "--json")
    again = run("evaluate", folder / "model", folder / "a.de", "--hypotheses", folder / "out", "--json")
    assert metrics(again.stdout) == metrics(own.stdout)
    several = run("evaluate", "--hypotheses", folder / "a.de", folder / "refs.tsv", "--metrics", "cer")
    note = f"{folder}/refs.tsv: 2 references a text; tabs separate those of a .tsv file\n"
    assert (several.exit_code, several.stderr) == (0, note)
    files = run("evaluate", folder / "model", folder / "a.en", folder / "a.de", "--hypotheses", folder / "a.de")
    assert (files.exit_code, files.stderr) == (0, f"{folder}/a.en, {folder}/a.de: 2 references a text\n")
    sari = run("evaluate", "--hypotheses", folder / "a.en", folder / "a.de", "--source", folder / "a.en",
               "--metrics", "sari")  # fmt: skip
    assert sari.stdout.startswith("SARI|nrefs:1|case:lc|tok:13a|mean:corpus|delete:f1 = ")


def test_an_ensemble_of_a_model_with_itself_scores_as_the_model(run, folder: Path) -> None:
    words = ("evaluate", folder / "model", folder / "a.tsv", "--json")
    assert run(*words, "--ensemble", folder / "model").stdout == run(*words).stdout


def test_without_evaluation_metrics_the_metric_of_training_is_reported(run, folder: Path) -> None:
    words = ["train", folder / "a.toml", "--out", folder / "exact", "--set", "training.metric=exact_match"]
    assert run(*words, "--threads", "1").exit_code == 0
    assert list(metrics(run("evaluate", folder / "exact", folder / "a.tsv", "--json").stdout)) == ["exact_match"]
    assert list(metrics(run("evaluate", folder / "model", folder / "a.tsv", "--json").stdout)) == ["bleu", "chrf"]


def test_empty_cells_between_references_are_no_references(run, tmp_path: Path) -> None:
    (tmp_path / "refs.tsv").write_text("a\t\tb\n\t\n", encoding="utf-8")
    (tmp_path / "out").write_text("\n\n", encoding="utf-8")
    words = ("--metrics", "exact_match", "--json")
    assert metrics(run("evaluate", "--hypotheses", tmp_path / "out", tmp_path / "refs.tsv", *words).stdout) == {
        "exact_match": 50.0
    }


def test_scores_of_groups_are_a_table_for_each_name(run, folder: Path, tmp_path: Path) -> None:
    pairs = [line.split("\t") for line in (folder / "a.tsv").read_text().splitlines()]
    rows = [{"source": one, "target": other, "domain": "ab"[number % 2]} for number, (one, other) in enumerate(pairs)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "out").write_text(
        "".join(f"{other if number % 2 else 'x'}\n" for number, (_, other) in enumerate(pairs))
    )
    words = ("evaluate", folder / "model", "--metrics", "exact_match", "--by", "length,domain,rare")
    train = ("--train", folder / "a.de")
    found = run(*words, tmp_path / "d.jsonl", *train)
    assert found.exit_code == 0, found.stderr
    assert [line for line in found.stdout.splitlines() if line.startswith("| by")] == [
        f"| by {name} | sentences | exact match |" for name in ("length", "domain", "rare")
    ]
    (tmp_path / "s.jsonl").write_text((tmp_path / "d.jsonl").read_text())
    scored = run("evaluate", "--hypotheses", tmp_path / "out", folder / "a.de", "--source", folder / "a.en", "--by",
                 "length", "--metrics", "exact_match", "--json")  # fmt: skip
    whole, group = map(json.loads, scored.stdout.splitlines())
    assert (group["by"], group["group"], group["sentences"]) == ("length", "0-10", 12)
    assert group["scores"][0]["value"] == whole["scores"][0]["value"] == 50


def test_several_systems_are_compared_and_judged_blindly(run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x\n" * 12)
    (tmp_path / "terms.tsv").write_text("ab\tx\n")
    systems = ("--hypotheses", folder / "a.de", "--hypotheses", tmp_path / "out")
    more = ("--source", folder / "a.en", "--glossary", tmp_path / "terms.tsv", "--metrics", "exact_match")
    sheet = tmp_path / "sheet.tsv"
    found = run(
        "evaluate", *systems, folder / "a.de", *more, "--significance", "randomisation", "--sheet", "esa", sheet
    )
    assert found.exit_code == 0, found.stderr
    first, *_, difference, _ = found.stdout.splitlines()
    assert first == f"{folder}/a.de:"
    assert "|ar:10000|seed:12345|sentences:12: 100.00 ± 0.00 against 0.00 ± 0.00, difference -100.00" in difference
    assert found.stderr.splitlines()[-1] == f"{sheet}: 24 rows for judges; {tmp_path}/sheet.key.tsv says whose they are"
    head, *rows = sheet.read_text().splitlines()
    good = {f"{row.rstrip()}\t{10 if row.split(chr(9))[2] == 'x' else 90}\t\n" for row in rows}
    (tmp_path / "judge.tsv").write_text(f"{head}\n{''.join(sorted(good))}")
    judged = run("evaluate", "--judgements", tmp_path / "sheet.key.tsv", tmp_path / "judge.tsv")
    assert judged.exit_code == 0, judged.stderr
    assert judged.stdout.splitlines()[:2] == [
        f"{folder}/a.de: ESA|judges:1 = 90.00 [90.00, 90.00]",
        f"{tmp_path}/out: ESA|judges:1 = 10.00 [10.00, 10.00]",
    ]
    assert judged.stdout.splitlines()[2].endswith("difference -80.00 [-80.00, -80.00], p = 0.0010")
    as_json = run("evaluate", "--judgements", tmp_path / "sheet.key.tsv", tmp_path / "judge.tsv", "--json")
    assert [json.loads(line).get("value") for line in as_json.stdout.splitlines()] == [90.0, 10.0, None]


def test_a_model_and_another_write_a_sheet(run, folder: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "m.tsv"
    done = run("evaluate", folder / "model", folder / "a.tsv", "--compare", folder / "other", "--sheet", "mqm", sheet)
    assert done.exit_code == 0, done.stderr
    names = {line.split("\t")[1] for line in (tmp_path / "m.key.tsv").read_text().splitlines()[1:]}
    assert names == {f"{folder}/model", f"{folder}/other"}


UNEQUAL = "{folder}/a.en has 12 lines but {folder}/short has 1; expected as many in both"
TABLE = (
    "{folder}/{file}: a table, expected one reference a line, or a file named .tsv with tabs between the references of "
    "a text"
)
NO_SOURCES = "evaluation.metrics: 'sari' compares with the sources; expected --source FILE"
LINES = "{folder}/{file}: a table, expected one text a line"
NO_STRIDE = "evaluate: evaluation.stride is for language models, found translations"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model", "a.en", "refs.tsv", "short"], UNEQUAL),
        (["--hypotheses", "a.en", "short"], UNEQUAL),
        (["--hypotheses", "a.en", "--hypotheses", "short", "a.de"], UNEQUAL),
        (["--hypotheses", "a.en", "a.de", "--by", "length"], "--by length: expected --source FILE, the sources"),
        (["model", "a.en", "a.de", "--by", "rare"], "--by rare: expected --train FILE, the training targets"),
        (["model", "a.en", "a.de", "--by", "lenght"],
         "--by lenght: expected a table with this column; did you mean 'length'?"),
        (["model", "a.jsonl", "--by", "domain"], "{folder}/a.jsonl:1: no 'domain'; it has: source, target"),
        (["model", "a.tsv", "--sheet", "esa", "out.csv"],
         "--sheet: found 'out.csv', expected a name that ends in .tsv"),
        (["--hypotheses", "a.en", "a.de", "--sheet", "esa", "none.tsv"],
         "--sheet: expected the sources, which judges read; --source FILE names them"),
        (["--judgements", "a.tsv", "a.tsv"], "{folder}/a.tsv:1: no column 'id'; known: ab kl, AB KL"),
        *(
            (["--judgements", "a.tsv", "a.tsv", *more], f"{more[0]} cannot be combined with --judgements")
            for more in (["--metrics", "chrf"], ["--beam", "3"], ["--compare", "model"], ["--lowercase"])
        ),
        *(
            ([*words, "--significance", "bootstrap"],
             "--significance cannot be combined with one system; --compare or --hypotheses names another")
            for words in (["model", "a.tsv"], ["--hypotheses", "a.en", "a.de"])
        ),
        (["--hypotheses", "a.en", "a.de", "--source", "short"], UNEQUAL),
        (["--hypotheses", "a.en", "a.de", "--metrics", "sari"], NO_SOURCES),
        *(
            (["--hypotheses", "a.en", "a.de", *more], f"{more[0]} cannot be combined with --hypotheses")
            for more in (["--compare", "model"], ["--average", "probability"], ["--record"], ["--calibration", "-"])
        ),
        (["model", "a.tsv", "--ensemble", "other", "--record"], "--record cannot be combined with --ensemble"),
        (["model", "a.tsv", "--ensemble", "other", "--fit-temperature"],
         "--fit-temperature cannot be combined with --ensemble"),
        (["model", "--direction", "en-de", "a.en", "a.de", "--write", "out"],
         "--write cannot be combined with --direction"),
        (["--hypotheses", "a.en", "a.de", "--stride", "3"], NO_STRIDE),
        (["--hypotheses", "a.en", "a.de", "--to", "de"],
         "evaluate: decoding.to has no effect with --hypotheses: nothing is translated"),
        (["model", "a.tsv", "--stride", "3"], NO_STRIDE),
        (["--hypotheses", "a.jsonl", "a.de"], LINES.replace("{file}", "a.jsonl")),
        (["--hypotheses", "a.en", "a.de", "--source", "a.tsv"], LINES.replace("{file}", "a.tsv")),
        (["--hypotheses", "a.en", "a.jsonl"], TABLE.replace("{file}", "a.jsonl")),
        (["model", "a.en", "a.csv"], TABLE.replace("{file}", "a.csv")),
        (["model", "a.tsv", "--source", "a.en"], "--source: expected --hypotheses as well"),
        (["model", "a.en"], "{folder}/a.en: no references: one text a line and no tab; expected SOURCE REFERENCE"),
        (["model", "a.tsv", "--metrics", "blue"], "evaluation.metrics: found 'blue'; did you mean 'bleu'?"),
        (["model", "a.tsv", "--compare", "nosuch"], "nosuch: not a model folder: there is no such folder"),
        (["model", "a.tsv", "--calibration", "plot.exe"],
         "plot.exe: found '.exe', expected an image extension such as .png, .svg or .pdf"),
        (["model", "a.tsv", "--calibration", "none/plot.png"],
         "none/plot.png: cannot be written: No such file or directory"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_one_line_error_before_anything_is_translated(
    run, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("something was translated")

    monkeypatch.setattr("translume.translator.Translator.translate_all", fail)
    (folder / "short").write_text("A\n", encoding="utf-8")
    named = [folder / word if (folder / word).exists() else word for word in words]
    done = run("evaluate", *named)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"Error: {message.format(folder=folder)}\n")


def test_evaluate_counts_the_sources_that_are_cut(run, folder: Path) -> None:
    cut = ("--set", "data.cleaning.max_tokens=5", "--set", "data.cleaning.too_long=keep_first")
    assert run("train", folder / "a.toml", "--out", folder / "cut", "--threads", "1", *cut).exit_code == 0
    found = run("evaluate", folder / "cut", folder / "a.tsv", "--json")
    assert json.loads(found.stdout)["truncated"] == 5
    message = "5 of 12 texts were longer than the model reads and were truncated"
    assert message in found.stderr.splitlines()


def test_a_model_trained_with_a_template_reads_tables(run, folder: Path) -> None:
    sources = (folder / "a.en").read_text(encoding="utf-8").splitlines()
    rows = [dict(zip(("first", "second"), source.split(), strict=True)) for source in sources]
    targets = (folder / "a.de").read_text(encoding="utf-8").splitlines()
    jsonl = [json.dumps({**row, "answer": target}) for row, target in zip(rows, targets, strict=True)]
    (folder / "t.jsonl").write_text("".join(f"{row}\n" for row in jsonl), encoding="utf-8")
    (folder / "t.toml").write_text(
        (folder / "a.toml").read_text(encoding="utf-8").replace(
            'data = {train_source = "a.en", train_target = "a.de", valid_source = "a.en", valid_target = "a.de"}',
            'data = {train = "t.jsonl", valid = "t.jsonl", template = "{first} | {second}", columns = "answer"}',
        ),
        encoding="utf-8",
    )  # fmt: skip
    assert run("train", folder / "t.toml", "--out", folder / "t", "--threads", "1").exit_code == 0
    (folder / "in.csv").write_text("second,first\nkl,ab\n", encoding="utf-8")
    table = run("translate", folder / "t", folder / "in.csv", "--json")
    assert json.loads(table.stdout)["source"] == "ab | kl"
    assert table.stdout == run("translate", folder / "t", "--json", text="ab | kl\n").stdout
    score = run("evaluate", folder / "t", folder / "t.jsonl", "--json")
    assert (score.exit_code, len(metrics(score.stdout))) == (0, 2)
    apart = run("evaluate", folder / "t", folder / "t.jsonl", folder / "a.de", "--json")
    assert (apart.exit_code, apart.stdout) == (0, score.stdout)
    run("evaluate", folder / "t", folder / "t.jsonl", "--write", folder / "t.out")
    stored = run("evaluate", folder / "t", folder / "t.jsonl", "--hypotheses", folder / "t.out", "--json")
    assert (stored.exit_code, metrics(stored.stdout)) == (0, metrics(score.stdout))
    assert stored.stderr == f"{folder}/t.jsonl: read as sources and references, in the columns of the training data\n"
    for words in (("score",), ("inspect", "corpus")):
        read = run(*words, folder / "t", folder / "t.jsonl", folder / "a.de")
        assert (read.exit_code, read.stderr) == (1, f"Error: {folder}/t.jsonl: a table, expected one text a line\n")
    both = run(
        "evaluate", folder / "t", folder / "t.jsonl", "--hypotheses", folder / "t.out", "--source", folder / "a.en"
    )
    message = f"Error: --source cannot be combined with {folder}/t.jsonl, a table of sources and references\n"
    assert (both.exit_code, both.stderr) == (1, message)
    base = run("init", "--from", folder / "t", folder / "t.jsonl")  # with the model's template
    data = tomllib.loads(base.stdout)["data"]
    assert (data["template"], data["columns"]) == ("{first} | {second}", "answer")
    (folder / "more.toml").write_text(base.stdout, encoding="utf-8")
    more = ("train", folder / "more.toml", "--from", folder / "t", "--out", folder / "more", "--threads", "1")
    assert run(*more, "--set", "training.updates=1").exit_code == 0
    plain = run("init", "--from", folder / "t", folder / "a.tsv", "--columns", "0,1")
    assert "template" not in tomllib.loads(plain.stdout)["data"]
    (folder / "more.toml").write_text(plain.stdout, encoding="utf-8")
    assert run(*more[:5], folder / "plain", "--threads", "1", "--set", "training.updates=1").exit_code == 0
    (folder / "in.csv").write_text("second,frist\nkl,ab\n", encoding="utf-8")
    wrong = run("translate", folder / "t", folder / "in.csv")
    message = f"Error: {folder}/in.csv:1: no column 'first'; did you mean 'frist'?\n"
    assert (wrong.exit_code, wrong.stdout, wrong.stderr) == (1, "", message)


def test_a_model_trained_on_a_spreadsheet_translates_a_column_of_another(run, folder: Path) -> None:
    rows = (folder / "a.csv").read_text(encoding="utf-8")
    (folder / "s.csv").write_text(f"Englisch;Deutsch\r\n{rows}", encoding="utf-8")
    parallel = 'data = {train_source = "a.en", train_target = "a.de", valid_source = "a.en", valid_target = "a.de"}'
    table = 'data = {train = "s.csv", valid = "s.csv", columns = ["Englisch", "Deutsch"]}'
    text = (folder / "a.toml").read_text(encoding="utf-8")
    (folder / "s.toml").write_text(text.replace(parallel, table), encoding="utf-8")
    assert run("train", folder / "s.toml", "--out", folder / "s", "--threads", "1").exit_code == 0
    (folder / "new.csv").write_bytes('Nr.;Englisch\r\n1;"ab\r\nkl"\r\n2;\r\n3;kl\r\n'.encode("utf-8-sig"))
    found = run("translate", folder / "s", folder / "new.csv")
    assert (found.exit_code, found.stdout) == (0, run("translate", folder / "s", text="ab kl\n\nkl\n").stdout)
    assert found.stdout.count("\n") == 3
    lines = run("translate", folder / "model", folder / "new.csv")  # a model of two files reads lines
    assert lines.stdout.count("\n") == 5


def words(folder: Path, *options: str | Path) -> tuple[str | Path, ...]:
    return ("evaluate", folder / "model", folder / "a.en", folder / "a.de", "--beam", "1", *options)


def test_calibration_is_measured_drawn_fitted_and_used(run, folder: Path) -> None:
    result = run(*words(folder, "--calibration", "-", "--json"))
    assert result.exit_code == 0, result.stderr
    scores, measured = map(json.loads, result.stdout.splitlines())
    assert sorted(scores) == ["reached_limit", "scores", "sentences", "truncated"]
    assert measured["calibration"]["temperature"] == 1.0
    assert load_checkpoint(folder / "model").temperature is None
    refused = run(*words(folder, "--calibrated"))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == (
        "Error: decoding.calibrated: no temperature was fitted to the model's weights; "
        "translume evaluate MODEL SOURCE REFERENCE --fit-temperature fits one\n"
    )
    result = run(*words(folder, "--calibration", folder / "plot.png", "--fit-temperature", "--record"))
    assert result.exit_code == 0, result.stderr
    assert result.stderr == (
        f"{folder}/model: temperature stored; --calibrated or decoding.calibrated = true uses it\n"
        f"{folder}/plot.png: written\n"
        "12 of 12 translations reached the length limit of 24 tokens; --max-length N sets another\n"
    )
    heads = [line.split("|")[0] for line in result.stdout.splitlines()]
    assert heads == ["BLEU", "chrF2", "temperature", *["ECE"] * 4]
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not list(folder.glob(".*.part"))
    stored = load_checkpoint(folder / "model").temperature
    assert stored is not None
    events = [json.loads(line) for line in (folder / "model" / "history.jsonl").read_text().splitlines()]
    last = [each for each in events if each["event"] == "calibrated"]
    assert last[0]["fitted"] == stored.to_dict()
    assert [each["calibration"]["temperature"] for each in last[1:]] == [1.0, stored.value]
    result = run(*words(folder, "--calibrated", "--calibration", "-", "--json"))
    found = [json.loads(line)["calibration"] for line in result.stdout.splitlines()[1:]]
    assert [each["temperature"] for each in found] == [1.0, stored.value]
    assert found[0] == measured["calibration"]
    assert found[1]["nll"] == pytest.approx(stored.nll, rel=1e-6)
    assert run("show", folder / "model").exit_code == 0


def test_unsmooth_option_removes_label_smoothing(run, folder: Path) -> None:
    result = run("translate", folder / "model", "--unsmooth", "0.1", "--beam", "2", text="ab kl\n")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    result = run("translate", folder / "model", "--unsmooth", "1.5", text="ab kl\n")
    assert result.exit_code == 1
    assert result.stderr == "Error: decoding.unsmooth: found 1.5, expected less than 1\n"


def test_run_with_calibrated_decoding_validates_before_calibration(run, folder: Path) -> None:
    wishes = ("decoding.calibrated=true", "training.metric=exact_match", "training.updates=1")
    options = [word for wish in wishes for word in ("--set", wish)]
    result = run("train", folder / "a.toml", "--out", folder / "later", "--threads", "1", *options)
    assert result.exit_code == 0, result.stderr
    assert run("translate", folder / "later", "--uncalibrated", text="ab\n").exit_code == 0
