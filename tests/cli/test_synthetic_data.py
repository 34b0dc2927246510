"""Training data made by a model: back-translations of texts, and targets of a teacher."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from translume.checkpoint import load_checkpoint, read_config, save_model
from translume.data.lines import read_lines


@pytest.fixture(scope="module")
def folder(train_for_a_moment: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_for_a_moment(tmp_path_factory.mktemp("synthetic"), model=1)


def test_back_translations_are_tagged_and_stand_before_their_texts(run, folder: Path, tmp_path: Path) -> None:
    texts = ["ab kl", "", "cde\tmno", "cde " * 700]
    (tmp_path / "mono.de").write_text("".join(f"{text}\n" for text in texts))
    words = ["backtranslate", folder / "model", "--input", tmp_path / "mono.de", "--workers", "1", "--split", "never"]
    made = run(*words, "--output", tmp_path / "out")
    assert made.exit_code == 1
    assert f"warning: {tmp_path}/mono.de:4: the text has " in made.stderr
    assert made.stderr.splitlines()[-1] == "4 lines read, 2 pairs written, 1 empty, 1 failed"
    rows = [line.split("\t") for line in read_lines(tmp_path / "out" / "mono.de.tsv")]
    alone = run("translate", folder / "model", "--split", "never", text="ab kl\ncde mno\n").stdout.splitlines()
    assert rows == [[f"<BT> {alone[0]}", "ab kl"], [f"<BT> {alone[1]}", "cde mno"]]
    assert run(*words, "--output", tmp_path / "plain", "--tag", "").exit_code == 1
    assert next(read_lines(tmp_path / "plain" / "mono.de.tsv")) == f"{alone[0]}\tab kl"
    assert run("backtranslate", folder / "model").stderr == "Error: --input, --output: expected both\n"
    wrong = run(*words, "--output", tmp_path / "wrong", "--tag", "a\tb")
    assert wrong.stderr == "Error: --tag: found 'a\\tb', expected a word without tabs and line breaks\n"


def test_a_small_model_is_trained_on_the_translations_of_a_teacher(run, folder: Path, tmp_path: Path) -> None:
    words = ["distil", folder / "model", folder / "a.toml", "--out", tmp_path / "small", "--threads", "1"]
    words += ["--workers", "1", "--set", "model.width=8", "--set", "training.updates=2"]
    made = run(*words)
    assert made.exit_code == 0, made.stderr
    config = read_config(tmp_path / "small")
    targets = tmp_path / "small.targets" / "0000.target.txt"
    assert (config.model.width, config.data.train_target) == (8, (str(targets),))
    sources = (folder / "a.en").read_text()
    assert targets.read_text() == run("translate", folder / "model", text=sources).stdout
    written = targets.stat().st_mtime_ns
    assert run(*words).exit_code == 0
    assert targets.stat().st_mtime_ns == written
    other = run(*words, "--set", f"data.train_source={folder}/a.de")
    assert other.stderr == (
        f"Error: {tmp_path}/small.targets: found translations by another teacher, of other training files or with "
        "other settings of [decoding]; delete it or change --out\n"
    )
    teacher = load_checkpoint(folder / "model")
    changed = teacher.config.change("decoding.beam=2")
    save_model(tmp_path / "teacher", replace(teacher, config=changed))
    assert run(words[0], tmp_path / "teacher", *words[2:]).stderr == other.stderr
    (tmp_path / "short.de").write_text("AB KL\n")
    unequal = run(*words, "--set", f"data.train_target={tmp_path}/short.de")
    message = f"{folder}/a.en has 12 lines but {tmp_path}/short.de has 1; expected as many in both"
    assert unequal.stderr == f"Error: {message}\n"

    table = "".join(f'{{"a": "{line}", "b": "x"}}\n' for line in sources.splitlines())
    (tmp_path / "a.jsonl").write_text(table)
    words[4] = tmp_path / "smaller"
    of_table = ["data.train=['a.jsonl']", "data.train_source=[]", "data.train_target=[]", "data.columns=['a', 'b']"]
    (tmp_path / "a.toml").write_text((folder / "a.toml").read_text().replace('"a.', f'"{folder}/a.'))
    words[2] = tmp_path / "a.toml"
    made = run(*words, *(word for each in of_table for word in ("--set", each)))
    assert made.exit_code == 0, made.stderr
    assert (tmp_path / "smaller.targets" / "0000.source.txt").read_text() == sources


def test_a_teacher_with_context_reads_the_sentences_before(run, folder: Path, tmp_path: Path) -> None:
    for language in ("en", "de"):
        lines = (folder / f"a.{language}").read_text().splitlines()
        (tmp_path / f"a.{language}").write_text("\n".join([*lines[:11], "", *lines[11:], ""]))
    (tmp_path / "a.toml").write_text((folder / "a.toml").read_text())
    teacher = load_checkpoint(folder / "model")
    changes = ("data.documents=blank_line", "data.context.source=1")
    save_model(tmp_path / "teacher", replace(teacher, config=teacher.config.change(*changes)))
    words = ["distil", tmp_path / "teacher", tmp_path / "a.toml", "--out", tmp_path / "small", "--threads", "1"]
    words += ["--set", "training.updates=2", "--set", changes[0]]
    made = run(*words, "--set", changes[1])
    assert made.exit_code == 0, made.stderr
    targets, sources = (tmp_path / "small.targets" / "0000.target.txt").read_text(), (tmp_path / "a.en").read_text()
    assert targets == run("translate", tmp_path / "teacher", text=sources).stdout
    assert targets != run("translate", folder / "model", text=sources).stdout
    (tmp_path / "a.tsv").write_text("1\ta\tb\n")
    of_table = ["data.train=a.tsv", "data.train_source=[]", "data.train_target=[]", "data.columns=[1, 2]"]
    for changed, message in (
        (["data.objective=denoise", *of_table], "expected texts and their targets in one direction, in [data]"),
        (["data.document_column=0", changes[1], *of_table], "data.document_column: found tables of documents for "
         "data.context, expected parallel files with blank lines"),
    ):  # fmt: skip
        words[4] = tmp_path / "other"
        found = run(*words, *(word for each in changed for word in ("--set", each)))
        assert found.stderr == f"Error: distil: {message}\n"
        assert not (tmp_path / "other.targets").exists()


def test_a_teacher_of_several_languages_translates_in_the_direction_of_the_settings(
    run: Callable[..., Result], folder: Path, tmp_path: Path
) -> None:
    corpora = "".join(
        f'[[data.corpus]]\nsource_language = "{one}"\ntarget_language = "{other}"\n'
        f'train_source = "{folder}/a.{one}"\ntrain_target = "{folder}/a.{other}"\n'
        for one, other in (("en", "de"), ("de", "en"))
    )
    settings = "".join((folder / "a.toml").read_text().splitlines(keepends=True)[2:])
    (tmp_path / "many.toml").write_text(f"{settings}{corpora}")
    many = run("train", tmp_path / "many.toml", "--out", tmp_path / "many", "--threads", "1", "--set",
               "model.language_tags=target", "--set", "tokenizer.shared=true")  # fmt: skip
    assert many.exit_code == 0, many.stderr  # although the pair that is held out is of one direction
    words = ["distil", tmp_path / "many", folder / "a.toml", "--out", tmp_path / "small", "--threads", "1"]
    languages = ["--set", "data.source_language=en", "--set", "data.target_language=de"]
    made = run(*words, *languages, "--workers", "1", "--set", "training.updates=2")
    assert made.exit_code == 0, made.stderr
    expected = run("translate", tmp_path / "many", "--from", "en", "--to", "de", text=(folder / "a.en").read_text())
    assert (tmp_path / "small.targets" / "0000.target.txt").read_text() == expected.stdout
