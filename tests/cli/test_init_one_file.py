"""`init` of one TSV or JSONL file with source and target, and of labelled texts."""

import json
import random
import tomllib
from pathlib import Path

import pytest

from translume.config import Config
from translume.data.pairs import Pair
from translume.experiments.columns import languages_of
from translume.experiments.proposals import choose_class
from translume.experiments.survey import Labelled, Side, survey_labelled

PAIRS = [(f"one {word}", f"{word[::-1]} eno") for word in ("two", "three", "four", "five", "six")]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def texts(count: int) -> list[tuple[str, str]]:
    """Labels and texts."""
    draw = random.Random(7)
    names = ("good", "bad", "odd")
    return [
        (label := draw.choice(names), f"{draw.choice('abcdefgh')} {label}ly {draw.choice('abcdefgh')}")
        for _ in range(count)
    ]


def data_of(result) -> dict[str, object]:
    assert result.exit_code == 0, result.stderr
    Config.parse(result.stdout)
    data: dict[str, object] = tomllib.loads(result.stdout)["data"]
    return data


def test_a_tsv_file_of_pairs_is_enough(run, tmp_path: Path) -> None:
    file = write(tmp_path / "train.en-de.tsv", ["\t".join(pair) for pair in PAIRS])
    write(tmp_path / "valid.en-de.tsv", ["a\tb"])
    result = run("init", file)
    assert data_of(result) == {
        "source_language": "en",
        "target_language": "de",
        "train": str(file),
        "valid": str(tmp_path / "valid.en-de.tsv"),
    }
    assert result.stderr == f"5 pairs, latin to latin; validated on {tmp_path}/valid.en-de.tsv\n"
    assert result.stdout.startswith("# Settings for 5 pairs, written by `translume init`")


def test_tsv_gets_the_same_settings_as_two_files_with_the_same_pairs(run, files: Path) -> None:
    sides = [(files / f"train.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")]
    write(files / "train.en-de.tsv", ["\t".join(pair) for pair in zip(*sides, strict=True)])
    one, two = run("init", files / "train.en-de.tsv"), run("init", files / "train.en", files / "train.de")
    settings = [tomllib.loads(result.stdout) for result in (one, two)]
    for each in settings:
        del each["data"]
    assert settings[0] == settings[1]
    assert one.stderr == two.stderr


@pytest.mark.parametrize(
    ("lines", "options", "columns", "languages"),
    [
        ([{"source": a, "target": b} for a, b in PAIRS], (), None, ("", "")),
        ([{"en": a, "de": b} for a, b in PAIRS], (), ["en", "de"], ("en", "de")),
        ([{"en": a, "de": b} for a, b in PAIRS], ("--columns", "de,en"), ["de", "en"], ("de", "en")),
        ([{"src": a, "tgt": b} for a, b in PAIRS], (), ["src", "tgt"], ("", "")),
        ([{"mr": a, "ref": b} for a, b in PAIRS], (), ["mr", "ref"], ("", "")),
        ([{"translation": {"en": a, "pt-BR": b}} for a, b in PAIRS], (), ["translation.en", "translation.pt-BR"],
         ("en", "pt-BR")),
    ],
)  # fmt: skip
def test_keys_of_jsonl_are_detected(run, tmp_path: Path, lines, options, columns, languages) -> None:
    file = write(tmp_path / "train.jsonl", [json.dumps(line) for line in lines])
    data = data_of(run("init", file, *options))
    assert (data.get("columns"), data["train"]) == (columns, str(file))
    assert (data["source_language"], data["target_language"]) == languages


def test_the_toml_of_pairs_and_of_labelled_texts_trains(run, tmp_path: Path) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    pairs = write(tmp_path / "pairs.tsv", [f"{one} {other}\t{other} {one}" for one in words for other in words])
    labelled = write(tmp_path / "texts.tsv", ["\t".join(pair) for pair in texts(97)])
    for name, typed in (("a", [pairs]), ("b", [labelled, "--task", "classification"])):
        (tmp_path / f"{name}.toml").write_text(run("init", *typed).stdout, encoding="utf-8")
        short = ["--set", "training.updates=2", "--set", "training.warmup_updates=1", "--set", "model.width=16"]
        result = run("train", tmp_path / f"{name}.toml", "--out", tmp_path / name, "--threads", "1", *short)
        assert result.exit_code == 0, result.stderr
    assert run("classify", tmp_path / "b", text="a goodly b\n").stdout.strip() in ("good", "bad", "odd")


@pytest.mark.parametrize("label_first", [True, False])
def test_the_label_is_the_column_with_fewer_values(run, tmp_path: Path, label_first: bool) -> None:
    found = texts(97) if label_first else [pair[::-1] for pair in texts(97)]
    file = write(tmp_path / "train.tsv", ["\t".join(pair) for pair in found])
    result = run("init", file, "--task", "classification")
    wanted = {"source_language": "", "task": "classification", "train": str(file)}
    if label_first:
        wanted["columns"] = [1, 0]
    assert {name: value for name, value in data_of(result).items() if name != "cleaning"} == wanted
    assert result.stderr == "97 texts with 3 labels, latin; 2 % of it held out for validation\n"


def test_labels_are_read_from_a_separate_file_or_jsonl(run, tmp_path: Path) -> None:
    labels, lines = zip(*texts(97), strict=True)
    write(tmp_path / "train.texts", list(lines))
    write(tmp_path / "train.labels", list(labels))
    apart = run("init", tmp_path / "train.texts", tmp_path / "train.labels", "--task", "classification")
    assert data_of(apart)["train_target"] == str(tmp_path / "train.labels")
    file = write(tmp_path / "t.jsonl", [json.dumps({"label": a, "text": b, "id": "x"}) for a, b in texts(97)])
    number = {label: number for number, label in enumerate(sorted(set(labels)))}
    numbered = write(tmp_path / "n.jsonl", [json.dumps({"label": number[a], "text": b}) for a, b in texts(97)])
    assert run("init", numbered, "--task", "classification").stderr.startswith("97 texts with 3 labels")
    together = run("init", file, "--task", "classification")
    assert "columns" not in data_of(together)
    named = run("init", file, "--task", "classification", "--columns", "text,label")
    assert data_of(named)["columns"] == ["text", "label"]
    settings = [tomllib.loads(result.stdout) for result in (apart, together, named)]
    assert settings[0]["training"] == settings[1]["training"] == settings[2]["training"]


def test_a_label_that_only_the_first_line_has_may_be_a_header(run, tmp_path: Path) -> None:
    file = write(tmp_path / "train.tsv", ["comment\tclass", *(f"{text}\t{label}" for label, text in texts(97))])
    result = run("init", file, "--task", "classification")
    assert result.exit_code == 0
    assert result.stderr == (
        f"{file}:1: no other text has the label 'class'; if this is a header, remove the line\n"
        "98 texts with 4 labels, latin; 2 % of it held out for validation\n"
    )


NO_TAB = (
    "{file}:1: found no tab, expected two parallel files, or one TSV, CSV, JSONL or Parquet file with source and "
    "target (named .csv, .jsonl, .ndjson, .json or .parquet); --task language_model trains on the texts alone"
)


@pytest.mark.parametrize(
    ("name", "lines", "options", "message"),
    [
        ("train.en", ["one two"], ("--task", "sequence"), NO_TAB),
        ("a.tsv", ["a\tb\tc"], (),
         "{file}:1: found 3 columns; choose source and target with --columns 0,1 (by name or counted from 0), "
         "or make a source of several columns with --template '{{0}} {{1}}' --columns 2"),
        ("a.tsv", ["good\t5\tI liked it", "bad\t1\tI did not", "good\t4\tas I said"], ("--task", "classification"),
         "{file}:1: found 3 columns; choose text and label with --columns 2,0 (by name or counted from 0), "
         "or make a source of several columns with --template '{{2}} {{1}}' --columns 0"),
        ("a.csv", ["Nr.;Englisch;Deutsch (neu);Bemerkung", "1;a;b;"], (),
         "{file}:1: found 4 columns; choose source and target with --columns 'Englisch,Deutsch (neu)' "
         "(by name or counted from 0), or make a source of several columns with --template"
         " '{{Englisch}} {{Nr.}}' --columns 'Deutsch (neu)'"),
        ("a.tsv", ["text\tlabel\tnumber", "x y\t1\t2"], ("--task", "classification"),
         "{file}:1: found 3 columns; choose text and label with --columns text,label (by name or counted from 0), "
         "or make a source of several columns with --template '{{text}} {{number}}' --columns label"),
        ("a.tsv", ["a\tb", "c"], (), "{file}:2: 1 tab-separated fields, expected 2"),
        ("a.tsv", [], (), "{file}: empty file, expected one source and target per line"),
        ("a.jsonl", ['{"a": "b", "n": 1}'], (),
         "{file}:1: found texts under: a; choose source and target with --columns KEY,KEY"),
        ("a.jsonl", ['{"text": "b", "n": 1}'], (),
         "{file}:1: found texts under: text; choose source and target with --columns KEY,KEY; "
         "--task language_model trains on the texts alone"),
        ("a.jsonl", ['{"text": "b", "class": 1, "share": 0.5, "sure": true}'], ("--task", "classification"),
         "{file}:1: found texts under: text, class, sure; choose text and label with --columns KEY,KEY"),
        ("a.txt", ["if x:", "\tprint(x)"], (), NO_TAB),
        ("a.jsonl", ['{"a": "b", "c": "d"}'], ("--task", "classification"),
         "{file}:1: found texts under: a, c; choose text and label with --columns KEY,KEY"),
        ("a.jsonl", ["a b"], (), "{file}:1: not JSON; expected one object a line"),
        ("a.tsv", ["a\tb"], ("--columns", "1"),
         "--columns: found '1', expected two columns such as 0,1 or source,target"),
        ("a.tsv", [f"{number}\t{-number}" for number in range(20)], ("--task", "classification"),
         "{file}: found 20 different labels for 20 texts, expected at least 2, and many texts for each; "
         "--columns TEXT,LABEL names the columns"),
        ("a.tsv", ["a\tb"], ("--valid-source", "v", "--valid-target", "v", "--valid", "w"),
         "--valid-source cannot be combined with --valid"),
    ],
)  # fmt: skip
def test_ambiguous_columns_are_a_one_line_error(run, tmp_path: Path, name, lines, options, message) -> None:
    file = write(tmp_path / name, lines)
    result = run("init", file, *options)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message.format(file=file)}\n")


def test_a_template_makes_the_source_of_several_columns(run, tmp_path: Path) -> None:
    file = write(tmp_path / "train.tsv", [f"go\tV;PST\twent {number}" for number in range(30)])
    result = run("init", file, "--template", "{0} {1}", "--columns", "2")
    assert result.exit_code == 0, result.stderr
    settings = tomllib.loads(result.stdout)["data"]
    assert (settings["template"], settings["columns"]) == ("{0} {1}", 2)
    wrong = run("init", file, "--template", "{0} {1}", "--columns", "0,2")
    message = "Error: --columns: found '0,2' with --template, expected the target's column\n"
    assert (wrong.exit_code, wrong.stderr) == (1, message)


@pytest.mark.parametrize(
    ("pairs", "kinds", "metric"),
    [
        (lambda n: ("abcd"[n % 4] * (1 + n % 7), " ".join(["æb", "tʃ", "d"][n % 3] for _ in range(3 + n % 7))),
         ("character", "word"), ["exact_match", "per"]),
        (lambda n: (f"jump {('left', 'right', 'around')[n % 3]} twice", f"I_JUMP I_{'LRA'[n % 3]}"),
         ("word", "word"), ["exact_match"]),
        (lambda n: (f"ab{n}", f"cd{n}"), ("character", "character"), ["exact_match", "cer"]),
        (lambda n: (f"prexxxxxxxxxxxx{n} V;PST;PL;1;IND", f"xxxxxxxxxxxxxxxxxxxxxxxxx{n}ti"),
         ("character", "character"), ["exact_match", "cer"]),
    ],
)  # fmt: skip
def test_tokens_follow_from_the_data(run, tmp_path: Path, pairs, kinds, metric) -> None:
    file = write(tmp_path / "a.tsv", ["\t".join(pairs(number)) for number in range(400)])
    settings = tomllib.loads(run("init", file).stdout)
    tokenizer = settings["tokenizer"]
    assert (tokenizer["kind"], tokenizer.get("target_kind", tokenizer["kind"])) == kinds
    assert tokenizer.get("normalization", "nfc") == ("nfd" if kinds == ("character", "word") else "nfc")
    assert settings["model"]["head"].get("kind", "softmax") == ("copy" if kinds[1] == "character" else "softmax")
    found = settings["evaluation"]["metrics"]
    assert ([found] if isinstance(found, str) else found) == metric
    smoothing = settings["training"].get("label_smoothing", 0.1)
    assert smoothing == (0.0 if kinds == ("word", "word") else 0.1)
    assert settings["model"].get("positions") == ("rotary" if kinds == ("word", "word") else None)


def test_a_lemma_of_another_script_than_its_tags_shares_letters_with_its_form(run, tmp_path: Path) -> None:
    file = write(tmp_path / "train.tsv", [f"ܫܘܒܩܢ\tN;SG;PSS2\tܫܘܒܩܢܟܝ{number}" for number in range(30)])
    settings = tomllib.loads(run("init", file, "--template", "{0}|{1}", "--columns", "2").stdout)
    assert settings["tokenizer"]["shared"]
    assert settings["model"]["head"] == {"kind": "copy", "tie": "all"}
    assert settings["model"]["segments"] == 2


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("train.en-de.tsv", ("en", "de")),
        ("a.zh-en.jsonl.gz", ("zh", "en")),
        ("a.tsv", ("", "")),
        ("a.b-c.tsv", ("", "")),
    ],
)
def test_both_languages_are_guessed_from_one_name(name: str, languages: tuple[str, str]) -> None:
    assert languages_of(Path(name)) == languages


def pairs_of(found: list[tuple[str, str]]) -> list[Pair]:
    return [Pair(source=text, target=label, file="f", line=line) for line, (text, label) in enumerate(found, start=1)]


def test_texts_without_a_label_are_no_class() -> None:
    found = survey_labelled(pairs_of([("a", "pos"), ("b", ""), ("c", " ")]), unspaced=False)
    assert (found.texts, found.labels) == (3, 1)


def test_a_survey_of_labelled_texts_worked_by_hand() -> None:
    found = survey_labelled(pairs_of([("A b", "x"), ("a  c d", " y"), ("e b", "y")]), unspaced=False)
    assert found == Labelled(texts=3, labels=2, recurring=2, units=7 / 3, longest=3, lone="")
    assert survey_labelled(pairs_of([("你好", "x"), ("你们", "y")]), unspaced=True).recurring == 1
    many = pairs_of([("head", "label"), *[("a", "x"), ("b", "y")] * 10])
    assert survey_labelled(many, unspaced=False).lone == "label"
    assert survey_labelled(many[:19], unspaced=False).lone == ""


@pytest.mark.parametrize("count", [2, 300, 5_000, 100_000, 10**7])
@pytest.mark.parametrize("unspaced", [False, True])
def test_recommended_settings_for_labelled_texts_are_valid(count: int, unspaced: bool) -> None:
    side = Side(
        language="", script="han" if unspaced else "latin", characters=61, words=9.0, length=50.0, cased=True,
        tokenized=False,
    )  # fmt: skip
    found = Labelled(texts=count, labels=2, recurring=count // 3, units=9.0, longest=300, lone="")
    chosen = {choice.path: choice.value for choice in choose_class(side, found)}
    assert (chosen["model.max_positions"], chosen["data.cleaning.max_tokens"]) == (512, 504)
    assert chosen["tokenizer.kind"] == ("character" if unspaced else "word")
    assert chosen["training.updates"] * chosen["training.max_tokens"] >= 2 * 9 * count
    assert chosen["training.save_every"] * 10 <= chosen["training.updates"]


@pytest.mark.parametrize(
    ("header", "languages"),
    [
        ("Deutsch;Englisch", ("de", "en")),
        ("Englisch (Original);Deutsch", ("en", "de")),
        ("de-DE;en_GB", ("de", "en")),
        ("Satz;Übersetzung", ("", "")),
        ("Source text;Target text", ("", "")),
    ],
)
def test_first_lines_of_spreadsheets_name_columns_and_languages(run, tmp_path: Path, header: str, languages) -> None:
    file = tmp_path / "pairs.csv"
    file.write_bytes("".join(f"{row}\r\n" for row in [header, *map(";".join, PAIRS)]).encode("utf-8-sig"))
    result = run("init", file)
    found = data_of(result)
    assert result.stderr.startswith("5 pairs")
    assert found["columns"] == header.split(";")
    assert (found["source_language"], found["target_language"]) == languages


@pytest.mark.parametrize(
    ("name", "separator", "first"), [("a.tsv", "\t", "'wort' | 'laut'"), ("a.csv", ";", "'Anglais?' | 'Chose'")]
)
def test_init_shows_the_first_pair_without_known_names(run, tmp_path: Path, name, separator, first) -> None:
    rows = [tuple(first.replace("'", "").split(" | ")), *PAIRS]
    result = run("init", write(tmp_path / name, [separator.join(pair) for pair in rows]))
    assert "columns" not in data_of(result)
    assert result.stderr.splitlines()[0] == (
        f"{tmp_path}/{name}:1: no known names of columns; the first pair is {first}; --columns takes names"
    )


def test_numbers_are_targets_and_an_array_is_refused_by_its_form(run, tmp_path: Path) -> None:
    rows = [json.dumps({"source": f"how many {text}", "target": number}) for number, text in enumerate("abcde")]
    assert run("init", write(tmp_path / "a.jsonl", rows)).exit_code == 0
    message = "a JSON array; expected one object a line, with 'source' and 'target'"
    array = write(tmp_path / "b.jsonl", [f"[{', '.join(rows)}]"])
    result = run("init", array)
    assert (result.exit_code, result.stderr) == (1, f"Error: {array}:1: {message}\n")


@pytest.mark.parametrize(
    "row", ['{"en": "a", "de": null}', '{"en": "a"}', '{"en": null, "de": "b"}', '{"en": " ", "de": "b"}']
)
@pytest.mark.parametrize("place", [0, 7, 29])
def test_a_row_without_a_text_is_counted_wherever_it_is(run, tmp_path: Path, row: str, place: int) -> None:
    rows = [f'{{"en": "text {number}", "de": "wort {number}"}}' for number in range(30)]
    rows[place] = row
    (tmp_path / "a.jsonl").write_text("".join(f"{each}\n" for each in rows))
    done = run("init", tmp_path / "a.jsonl")
    assert done.exit_code == 0, done.stderr
    assert 'columns = ["en", "de"]' in done.stdout
    assert done.stderr.splitlines()[0] == f"1 of 30 pairs in {tmp_path}/a.jsonl have an empty side, and are dropped"
    assert done.stdout.startswith("# Settings for 29 pairs")


def test_pairs_of_which_none_has_two_sides_are_an_error(run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "a", "target": null}\n' * 3)
    done = run("init", tmp_path / "a.jsonl", "--columns", "source,target")
    assert done.stderr == f"Error: {tmp_path}/a.jsonl: found no text on both sides in any of 3 pairs\n"


@pytest.mark.parametrize(("different", "noted"), [(2, True), (20, True), (21, False), (200, False)])
def test_targets_with_few_values_name_the_other_task(run, tmp_path: Path, different: int, noted: bool) -> None:
    rows = "".join(f"some text number {number}\tlabel {number % different}\n" for number in range(200))
    (tmp_path / "a.tsv").write_text(rows)
    hint = f"{tmp_path}/a.tsv: the targets have only {different} different values; --task classification is for labels"
    assert (hint in run("init", tmp_path / "a.tsv").stderr.splitlines()) == noted
    assert hint not in run("init", tmp_path / "a.tsv", "--task", "classification").stderr
