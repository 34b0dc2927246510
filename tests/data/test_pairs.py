"""Pairs are read in order and lazily from every format; malformed lines are one-line errors with their place."""

import json
import os
from itertools import islice

import pytest

from translume.config import Config
from translume.config.data import CleaningSettings, DataSettings
from translume.data.pairs import expand_pairs, origins, read_pairs, refuse_pipes
from translume.data.token_cache import prepare
from translume.errors import DataError, SettingsError


def texts(settings, split="train"):
    return [(pair.source, pair.target) for pair in read_pairs(settings, split)]


def fault(settings, kind=DataError, split="train"):
    with pytest.raises(kind) as error:
        list(read_pairs(settings, split))
    return str(error.value)


def test_parallel_files_are_read_before_others(write):
    a, b = write("a.en", ["one", "two"]), write("a.de", ["eins", "zwei"])
    c, d = write("b.en", ["three"]), write("b.de", ["drei"])
    tsv = write("c.tsv", ["four\tvier"])
    jsonl = write("d.jsonl", [json.dumps({"source": "five", "target": "fünf", "other": 5})])
    settings = DataSettings(train_source=(a, c), train_target=(b, d), train=(tsv, jsonl))
    found = list(read_pairs(settings, "train"))
    assert texts(settings) == [("one", "eins"), ("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf")]
    assert [(pair.file, pair.line) for pair in found] == [(a, 1), (a, 2), (c, 1), (tsv, 1), (jsonl, 1)]


def test_validation_files_are_read_separately(write):
    settings = DataSettings(train=(write("a.tsv", ["a\tb"]),), valid=(write("b.tsv", ["c\td"]),))
    assert texts(settings, "valid") == [("c", "d")]
    assert texts(settings.model_copy(update={"valid": ()}), "valid") == []


def test_columns_choose_fields_and_keys(write):
    tsv = DataSettings(train=(write("a.tsv", ["id\tein\tone\tx"]),), columns=(2, 1))
    assert texts(tsv) == [("one", "ein")]
    line = json.dumps({"translation": {"en": "one", "de": "eins"}})
    nested = DataSettings(train=(write("a.jsonl", [line]),), columns=("translation.en", "translation.de"))
    assert texts(nested) == [("one", "eins")]


def test_reading_is_lazy(write):
    good = [f"{i}\tx" for i in range(300_000)]
    settings = DataSettings(train=(write("a.tsv", [*good, "no pair"]),))
    assert [pair.line for pair in islice(read_pairs(settings, "train"), 3)] == [1, 2, 3]


@pytest.mark.parametrize(("source", "target"), [(3, 5), (5, 3), (0, 2), (2, 0)])
def test_unequal_files_name_both_counts(write, source, target):
    a, b = write("train.en", ["x"] * source), write("train.de", ["y"] * target)
    message = fault(DataSettings(train_source=(a,), train_target=(b,)))
    assert message == f"{a} has {source} lines but {b} has {target}; expected as many in both"


def test_empty_files_are_errors(write):
    a, b = write("train.en", ""), write("train.de", "")
    assert fault(DataSettings(train_source=(a,), train_target=(b,))) == f"{a}: empty file, expected one sentence a line"
    for name in ("a.tsv", "a.jsonl"):
        path = write(name, "")
        assert fault(DataSettings(train=(path,))) == f"{path}: empty file, expected one sentence a line"


def test_malformed_lines_are_reported_with_their_number(write):
    tsv = write("a.tsv", ["a\tb", "a\tb\tc"])
    assert fault(DataSettings(train=(tsv,))) == f"{tsv}:2: 3 tab-separated fields, expected 2"
    assert fault(DataSettings(train=(tsv,), columns=(0, 2))) == f"{tsv}:1: 2 tab-separated fields, expected at least 3"
    cases = {
        "{": "not JSON; expected one object a line",
        "[" * 100_000: "not JSON; expected one object a line",
        '{"id": ' + "1" * 5000 + "}": "not JSON; expected one object a line",
        "7": "not a JSON object; expected one object a line, with 'source' and 'target'",
        "[7]": "a JSON array; expected one object a line, with 'source' and 'target'",
        '{"source": "a", "target": 7.5}': "'target' is not text",
        '{"source": "\\ud800", "target": "b"}': "'source' holds half a surrogate pair, which is not text",
    }
    for line, wanted in cases.items():
        path = write("a.jsonl", ['{"source": "a", "target": "b"}', line])
        assert fault(DataSettings(train=(path,))) == f"{path}:2: {wanted}"


MISSING = ['{"source": "a", "target": null}', '{"source": "a"}', '{"source": null, "target": "b"}', "{}"]


@pytest.mark.parametrize("row", MISSING)
@pytest.mark.parametrize("first", [True, False])
def test_a_row_of_json_without_a_text_is_empty_and_counted(write, by_bytes, tmp_path, row, first):
    rows = ['{"source": "a", "target": "b"}', row]
    data = DataSettings(train=(write("a.jsonl", rows[::-1] if first else rows),), valid=(write("b.tsv", ["a\tb"]),))
    found = prepare(data, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert (found.account.read, found.account.used, found.account.dropped) == (2, 1, {"empty": 1})


@pytest.mark.parametrize("rows", [["{}"], ['{"source": "a", "tgt": "b"}'] * 3, ['{"source": "a", "tgt": null}'] * 2000])
def test_a_key_that_no_row_has_is_an_error(write, rows):
    path = write("a.jsonl", rows)
    wanted = "'source'; it has: nothing" if rows == ["{}"] else "'target'; it has: source, tgt"
    assert fault(DataSettings(train=(path,))) == f"{path}:1: no {wanted}"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_two_columns_of_the_name_that_is_read_are_an_error(write, name):
    delimiter = "," if name == "a.csv" else "\t"
    path = write(name, [delimiter.join(row) for row in (["id", "en", "de", "en"], ["1", "a", "b", "c"])])
    assert texts(DataSettings(train=(path,), columns=("id", "de"))) == [("1", "b")]
    for columns in (("en", "de"), (2, "en")):
        assert fault(DataSettings(train=(path,), columns=columns)) == (
            f"{path}:1: 2 columns 'en', expected one; rename the others"
        )


def test_a_file_that_is_one_json_array_is_named(write):
    path = write("a.json", ["[", '  {"source": "a", "target": "b"}', "]"])
    assert fault(DataSettings(train=(path,))) == f"{path}:1: the beginning of a JSON array; expected one object a line"


def test_whole_numbers_and_truth_values_in_json_are_texts(write):
    path = write("a.jsonl", ['{"source": 7, "target": true}', '{"source": -12345678901234567890, "target": "b"}'])
    found = [(pair.source, pair.target) for pair in read_pairs(DataSettings(train=(path,)), "train")]
    assert found == [("7", "true"), ("-12345678901234567890", "b")]


def test_a_cell_of_a_csv_file_may_be_long(write):
    path = write("a.csv", ["source,target", f"{'x ' * 80_000},y"])
    found = list(read_pairs(DataSettings(train=(path,), columns=("source", "target")), "train"))
    assert [len(pair.source.split()) for pair in found] == [80_000]


def test_inconsistent_data_settings_are_settings_errors(write):
    assert fault(DataSettings(), SettingsError) == (
        "data: no training files; expected data.train_source and data.train_target, or data.train (a table)"
    )
    assert fault(DataSettings(train_source=("a", "b"), train_target=("c",)), SettingsError) == (
        "data.train_source: 2 files, but data.train_target has 1; expected as many of each"
    )
    assert fault(DataSettings(train=("a",), weights=(1.0, 2.0)), SettingsError) == (
        "data.weights: 2 numbers, expected 1, one for each training file"
    )
    wrong = "data.weights: expected numbers from 0, such as 1 or 2.5, not all 0"
    for weights in ((-1.0,), (0.0,), (1e6,)):
        assert fault(DataSettings(train=("a",), weights=weights), SettingsError) == wrong
    assert fault(DataSettings(train=("a",), columns=(0,)), SettingsError) == (
        "data.columns: 1 columns, expected 2: source and target"
    )
    assert fault(DataSettings(train_source=("a",), train_target=("b",), columns=(0, 1)), SettingsError) == (
        "data.columns: there is no TSV, CSV or JSONL file; expected one in data.train or data.valid"
    )
    unknown = CleaningSettings(target_script="ltain")
    assert fault(DataSettings(train=("a",), cleaning=unknown), SettingsError) == (
        "data.cleaning: no script 'ltain'; did you mean 'latin'?"
    )
    named = DataSettings(train=(write("a.tsv", ["a\tb"]),), columns=("en", "de"))
    assert fault(named) == f"{named.train[0]}:1: no column 'en'; known: a, b"
    negative = DataSettings(train=(write("a.tsv", ["a\tb"]),), columns=(0, -1))
    assert fault(negative, SettingsError) == (
        "data.columns: found -1, expected a number from 0, or a name in the first line"
    )


def test_standard_input_can_be_one_side_only():
    found = fault(DataSettings(train_source=("-",), train_target=("-",)))
    assert found == "standard input: given twice; at least one side must be a file"


def test_file_with_a_single_line_is_read(write):
    source, target = write("a", ["x"]), write("b", ["y", "z"])
    found = fault(DataSettings(train_source=(source,), train_target=(target,)))
    assert found == f"{source} has 1 line but {target} has 2; expected as many in both"


def test_a_spreadsheet_saved_by_german_excel_is_read(tmp_path):
    file = tmp_path / "a.csv"
    # A byte order mark, Windows line ends, semicolons, quotes around what has a semicolon, a quote or a line end.
    rows = [
        "Deutsch;Englisch;Nr",
        '"Gut; danke";Fine;1',
        '"Er sagte ""ja""";"He said ""yes""";2',
        '"zwei\r\nZeilen";"2, lines";3',
    ]
    file.write_bytes(b"\xef\xbb\xbf" + "".join(f"{row}\r\n" for row in rows).encode())
    settings = DataSettings(train=(str(file),), columns=("Englisch", "Deutsch"))
    assert [(pair.target, pair.source, pair.line) for pair in read_pairs(settings, "train")] == [
        ("Gut; danke", "Fine", 2),
        ('Er sagte "ja"', 'He said "yes"', 3),
        ("zwei\nZeilen", "2, lines", 4),
    ]
    assert fault(settings.model_copy(update={"columns": ("English", "Deutsch")})) == (
        f"{file}:1: no column 'English'; did you mean 'Englisch'?"
    )


@pytest.mark.parametrize(
    "lines", [["a,b", '"c, d;",e'], ["a\tb", "c, d;\te"], ["sep=|", "a|b", "c, d;|e"], ["sep=\t", "a\tb", "c, d;\te"]]
)
def test_the_delimiter_of_a_csv_file_is_found(write, lines):
    assert texts(DataSettings(train=(write("a.csv", lines),))) == [("a", "b"), ("c, d;", "e")]


def test_a_damaged_csv_file_names_the_row(write):
    file = write("a.csv", ["a;b", 'c;"d', "e;f"])
    assert fault(DataSettings(train=(file,))) == f"{file}:2: not CSV: unexpected end of data"
    file = write("a.csv", ["a;b", "c"])
    assert fault(DataSettings(train=(file,))) == f"{file}:2: 1 columns, expected 2"


def test_a_template_joins_columns_to_one_source(write):
    jsonl = write("a.jsonl", [json.dumps({"question": "who?", "passage": {"text": "I {0}."}, "target": "me"})])
    tsv = write("a.tsv", ["id\tquestion\tpassage.text\ttarget", "7\twho?\tI {0}.\tme"])
    settings = DataSettings(train=(jsonl, tsv), template="{{q}} {question} | {passage.text}", columns=("target",))
    assert texts(settings) == [("{q} who? | I {0}.", "me")] * 2
    numbered = DataSettings(train=(write("b.tsv", ["7\twho?\tI.\tme"]),), template="{1} | {2} | {1}", columns=(3,))
    assert texts(numbered) == [("who? | I. | who?", "me")]


@pytest.mark.parametrize("template", ["no column", "{}", "{a", "{a:>7}", "{a!r}"])
def test_a_template_that_names_no_column_is_refused(write, template):
    settings = DataSettings(train=(write("a.tsv", ["a\tb"]),), template=template, columns=("b",))
    assert fault(settings, SettingsError) == (
        f"data.template: found '{template}', expected columns in braces such as '{{question}} | {{passage}}'"
    )


def test_a_template_with_a_missing_column_or_two_targets_is_refused(write):
    file = write("a.jsonl", [json.dumps({"question": "who?", "answer": "me"})])
    settings = DataSettings(train=(file,), template="{queston}", columns=("answer",))
    assert fault(settings) == f"{file}:1: no 'queston'; it has: question, answer"
    both = settings.model_copy(update={"columns": ("question", "answer")})
    assert fault(both, SettingsError) == "data.columns: 2 columns, expected 1 with data.template: the target"
    none = DataSettings(train_source=("a",), train_target=("b",), template="{a}")
    assert fault(none, SettingsError) == (
        "data.template: there is no TSV, CSV or JSONL file; expected one in data.train or data.valid"
    )


def test_a_pattern_stands_for_its_files_in_the_order_of_their_names(write, tmp_path):
    for name in ("b", "a"):
        write(f"{name}.en", [f"{name} in English"])
        write(f"{name}.de", [f"{name} auf Deutsch"])
    table = write("[c].tsv", ["x\ty"])
    settings = DataSettings(
        train_source=(f"{tmp_path}/*.en",), train_target=(f"{tmp_path}/*.de",), train=(table,), weights=(2.0, 3.0)
    )
    assert texts(settings) == [("a in English", "a auf Deutsch"), ("b in English", "b auf Deutsch"), ("x", "y")]
    assert [origin.weight for origin in origins(settings, "train")] == [2.0, 2.0, 3.0]
    one = settings.model_copy(update={"train_target": (f"{tmp_path}/a.de",)})
    assert fault(one, SettingsError) == (
        f"data.train_source: {tmp_path}/*.en stands for 2 files, but {tmp_path}/a.de for 1; expected as many of each"
    )
    none = DataSettings(train=(f"{tmp_path}/*.jsonl",))
    assert fault(none, SettingsError) == f"data.train: {tmp_path}/*.jsonl: no such file"


def test_patterns_are_found_in_a_folder_whose_name_has_brackets(tmp_path):
    folder = tmp_path / "r[1]"
    folder.mkdir()
    (folder / "a.tsv").write_text("x\ty\n")
    (folder / "c.toml").write_text('[data]\ntrain = ["*.tsv"]\n')
    assert [pair.source for pair in read_pairs(Config.read(folder / "c.toml").data, "train")] == ["x"]


NAMES = {  # names of the sources and of the targets: the number of the first pair that does not correspond, or None
    "numbers": ("f1.en f2.en f10.en", "f1.de f2.de f10.de", None),
    "languages before": ("en-1.gz en-2.gz", "de-1.gz de-2.gz", None),
    "folders": ("en/a.txt en/b.txt", "de/a.txt de/b.txt", None),
    "zeros": ("p01.en p02.en", "p1.de p2.de", None),
    "both languages in each name": ("wmt.en-de.1.en wmt.en-de.2.en", "wmt.en-de.1.de wmt.en-de.2.de", None),
    "words": ("src_anna.txt src_bert.txt", "tgt_anna.txt tgt_bert.txt", None),
    "one pair": ("dog.en", "hund.de", None),
    "one is renamed": (
        "f1.en f2.en f3.en f4.en",
        "a3.de f1.de f2.de f4.de",
        0,
    ),
    "one is missing on each side": ("f1.en f2.en f4.en", "f1.de f2.de f3.de", 2),
    "another order": ("f1.en f10.en f2.en", "f10_de f1_de f2_de", 0),
    "nothing in common": ("dog.en cat.en", "hund.de katze.de", 0),
}


@pytest.mark.parametrize(("sources", "targets", "wrong"), NAMES.values(), ids=NAMES)
def test_files_of_two_patterns_are_paired_only_if_their_names_correspond(tmp_path, sources, targets, wrong):
    for side, names in (("s", sources), ("t", targets)):
        for name in names.split():
            (tmp_path / side / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / side / name).write_text("x\n")
    patterns = [f"{tmp_path}/s/**", f"{tmp_path}/t/**"]
    if wrong is None:
        assert [len(files) for files in expand_pairs(*patterns, "a", "b")] == [len(sources.split())] * 2
        return
    with pytest.raises(SettingsError) as error:
        expand_pairs(*patterns, "data.train_source", "data.train_target")
    first, second = (
        f"{tmp_path}/{side}/{sorted(names.split())[wrong]}" for side, names in (("s", sources), ("t", targets))
    )
    assert str(error.value) == (
        f"data.train_source: {patterns[0]} and {patterns[1]}: {first} would be paired with {second}, whose name does "
        "not correspond; expected names that differ in the language only, or a list of the files"
    )


@pytest.mark.parametrize("task", ["sequence", "language_model"])
def test_an_empty_file_among_others_is_no_error_and_is_named(write, by_bytes, tmp_path, task):
    files = [write(f"p{number}.tsv", ["a\tb"] * 3 if number != 1 else "") for number in range(3)]
    data = DataSettings(train=(f"{tmp_path}/p*.tsv",), valid=(files[0],), task=task)
    found = prepare(data, by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert (found.account.read, found.first) == (6, (0, 3, 3, 6))
    assert found.without_pairs == f"1 of 3 files without usable pairs: {files[1]}"
    assert len(list(read_pairs(data, "train"))) == 6


def test_files_that_are_all_empty_are_an_error(write, by_bytes, tmp_path):
    a, b = write("a.tsv", ""), write("b.tsv", "")
    data = DataSettings(train=(a, b))
    assert fault(data) == f"{a}: empty file, like all 2 of them; expected one sentence a line"
    with pytest.raises(DataError, match=r"^data: all 2 files are empty, expected one sentence a line$"):
        prepare(data, by_bytes, by_bytes, tmp_path / "cache", split="train")


@pytest.mark.parametrize("name", ["train_source", "train_target", "valid_source", "valid_target"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_pipe_is_refused_before_it_is_opened(corpus_files, tmp_path, name, kind):
    pipe = str(tmp_path / "pipe") if kind == "fifo" else "/dev/zero"
    if kind == "fifo":
        os.mkfifo(pipe)
    with pytest.raises(DataError) as error:
        refuse_pipes(corpus_files([("a", "b")], **{name: (pipe,)}))
    assert str(error.value) == (
        f"{pipe}: a pipe or device, which can be read only once; expected a file: write it to one first"
    )
