"""From two files to an evaluated translator on the command line."""

import json
import shutil
from hashlib import blake2b
from pathlib import Path

import pytest

from translume.checkpoint import load_checkpoint, read_config
from translume.cli.show import _training as state_of
from translume.config import Config
from translume.inspection.figures import curves_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder like `files`, with a model trained for a few updates."""
    from click.testing import CliRunner

    from translume.cli import main

    folder = tmp_path_factory.mktemp("trained")
    words = ["ab", "cde", "fghij", "kl", "mno"]
    sources = [f"{first} {second} {third}" for first in words for second in words for third in words]
    for name, texts in (("train.en", sources), ("train.de", [text.upper() for text in sources])):
        (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    settings = """
data = {train_source = "train.en", train_target = "train.de", source_language = "en", target_language = "de"}
tokenizer = {kind = "character", size = 300}
model = {width = 12, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 2}
training = {updates = 7, max_tokens = 512, warmup_updates = 2, validate_every = 5, save_every = 5, log_every = 1}
"""
    (folder / "en-de.toml").write_text(settings, encoding="utf-8")
    words = ["train", str(folder / "en-de.toml"), "--out", str(folder / "model"), "--threads", "1"]
    result = CliRunner().invoke(main, words, prog_name="translume", catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    said = result.stderr.splitlines()
    assert "training data: 125 pairs read, 123 used, 2 held out for validation, 0 dropped" in said
    assert [line for line in said if line.startswith("finished after 7 updates; kept ")]
    assert said[-1] == (
        f"Next: translume translate {folder}/model < TEXT, or translume evaluate {folder}/model SOURCE REFERENCE"
    )
    return folder


def test_training_a_finished_run_again_says_so(run, trained: Path) -> None:
    result = run("train", trained / "en-de.toml", "--out", trained / "model")
    assert result.exit_code == 0
    assert result.stderr == (
        f"{trained}/model: already finished, after 7 updates; to continue, raise training.updates\n"
    )


def test_lines_out_are_lines_in_and_empty_ones_stay_empty(run, trained: Path) -> None:
    result = run("translate", trained / "model", "--strategy", "greedy", text="ab cde\n\nfghij\n")
    assert result.exit_code == 0
    lines = result.stdout.split("\n")
    assert len(lines) == 4
    assert (lines[1], lines[3]) == ("", "")


def test_translations_that_reach_their_limit_are_counted(run, trained: Path) -> None:
    endless = ("--strategy", "greedy", "--min-length", "50", "--max-length", "50")
    result = run("translate", trained / "model", *endless, text="ab cde\n\nfghij\n")
    said = "reached the length limit of 50 tokens; --max-length N sets another\n"
    assert (result.exit_code, result.stderr) == (0, f"2 of 3 translations {said}")
    result = run("evaluate", trained / "model", trained / "train.en", trained / "train.de", *endless, "--json")
    assert result.stderr == f"125 of 125 translations {said}"
    assert json.loads(result.stdout)["reached_limit"] == 125


def test_the_folder_has_the_lengths_of_the_training_data(trained: Path) -> None:
    lengths = load_checkpoint(trained / "model").lengths
    assert lengths is not None
    assert (lengths.pairs, lengths.several_sentences) == (123, 0.0)
    assert lengths.target_limit(lengths.longest_source) == 2 * max(lengths.longest_target) + 10


def test_json_is_one_object_a_line_and_nbest_lines_carry_the_number_of_their_line(run, trained: Path) -> None:
    result = run("translate", trained / "model", "--json", "--nbest", "2", "--beam", "2", text="ab cde\nkl\n")
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["source"] for each in objects] == ["ab cde", "kl"]
    assert [len(each["hypotheses"]) for each in objects] == [2, 2]
    lines = run("translate", trained / "model", "--nbest", "2", "--beam", "2", text="ab\nkl\n").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["1", "1", "2", "2"]


def test_only_decoding_may_be_changed_when_translating(run, trained: Path) -> None:
    result = run("translate", trained / "model", "--set", "model.width=16", text="ab\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: --set model.width=16: this command changes only decoding.*; the model is already trained\n"
    )


def test_score_prints_one_log_probability_per_line(run, trained: Path) -> None:
    result = run("score", trained / "model", trained / "train.en", trained / "train.de")
    values = [float(line) for line in result.stdout.splitlines()]
    assert len(values) == 125
    assert max(values) < 0


def test_evaluation_prints_signatures_and_compares(run, trained: Path) -> None:
    files = (trained / "train.en", trained / "train.de")
    options = ("--metrics", "exact_match,bleu", "--tokenize", "none", "--beam", "1")
    words = ("evaluate", trained / "model", *files, *options)
    result = run(*words, "--lowercase", "--record")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert "case:lc" in lines[1]
    assert "tok:none" in lines[1]
    compared = run(*words, "--compare", trained / "model", "--json")
    assert [json.loads(line)["first"]["name"] for line in compared.stdout.splitlines()] == ["exact_match", "bleu"]


def test_show_describes_and_draws_a_model(run, trained: Path) -> None:
    result = run("show", trained / "model", "--plot", trained / "curves.png", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["training"]["update"] == 7
    assert facts["training"]["finished"]
    assert facts["data"]["training"]["read"] == 125
    assert facts["size"]["parameters"] > 0
    assert (trained / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert Config.parse(run("show", trained / "model", "--settings").stdout) == read_config(trained / "model")


def test_show_prints_a_summary(run, trained: Path) -> None:
    lines = run("show", trained / "model").stdout.splitlines()
    assert lines[0] == f"{trained}/model: An encoder-decoder Transformer, en to de"
    assert lines[2] == "model: 1 + 1 layers, width 12, feed-forward 17, 2 attention heads, softmax head"
    assert lines[4:7] == [
        "decoding: strategy beam",
        "training data: 125 pairs read, 123 used, 2 held out for validation, 0 dropped",
        "validation data: 2 held out of the training data",
    ]
    rest = [line for line in lines[7:] if not line.startswith(("scores on", "  "))]  # of another test
    starts = ["size", "model", "vocabulary", "training", "best validation", "last validation", "committed"]
    assert [line.partition(":")[0] for line in [*lines[1:4], *rest]] == starts


def test_show_prints_the_training_files_with_digests_that_b2sum_prints(run, trained: Path) -> None:
    def digest(file: Path) -> str:
        return blake2b(file.read_bytes(), digest_size=16).hexdigest()

    files = (trained / "train.en", trained / "train.de")
    lines = run("show", trained / "model", "--data").stdout.splitlines()
    assert lines == [
        "training data: 125 pairs read, 123 used, 2 held out for validation, 0 dropped",
        "validation data: 2 held out of the training data",
        "training files (BLAKE2b-128 as of `b2sum -l 128`, bytes, pairs used):",
        *(f"  {digest(file)}  {file.stat().st_size:>13,}          123  {file}" for file in files),
    ]


def test_show_works_on_a_copy_without_the_state_for_resuming(run, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "model", tmp_path / "copy", ignore=shutil.ignore_patterns("resume", "cache"))
    for part in ("--json", "--settings", "--data"):
        assert run("show", tmp_path / "copy", part).exit_code == 0
    shown, whole = (run("show", folder).stdout.splitlines() for folder in (tmp_path / "copy", trained / "model"))
    assert [shown[1], *shown[2:]] == [whole[1].partition(", and ")[0], *whole[2:]]


def test_unknown_picture_format_is_a_one_line_error(run, trained: Path) -> None:
    result = run("show", trained / "model", "--plot", trained / "curves.bin")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: {trained}/curves.bin: found '.bin', expected an image extension such as .png, .svg or .pdf\n"
    )


def test_data_check_counts_by_rule_with_an_example(run, trained: Path) -> None:
    (trained / "dirty.en").write_text("ab cde\n\nkl\n", encoding="utf-8")
    (trained / "dirty.de").write_text("AB CDE\nX\nKL\n", encoding="utf-8")
    change = [
        f"data.{kind}_{side}={trained}/dirty.{ending}"
        for kind in ("train", "valid")
        for side, ending in (("source", "en"), ("target", "de"))
    ]
    words = [word for assignment in change for word in ("--set", assignment)]
    result = run("data", "check", trained / "en-de.toml", *words)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "train: 3 pairs read, 2 used, 1 dropped"
    assert lines[1] == "  empty: 1"
    assert lines[2] == f"    {trained}/dirty.en:2: '' | 'X'"


def test_text_to_ids_and_back(run, trained: Path) -> None:
    out = trained / "tokenizer.json"
    words = ("tokenizer", "train", "character", "--size", "300", "--out", out, trained / "train.en")
    result = run(*words)
    assert (result.exit_code, result.stdout) == (0, "")
    ids = run("tokenizer", "encode", out, "--ids", text="ab cde\n").stdout
    assert run("tokenizer", "decode", out, text=ids).stdout == "ab cde\n"
    wrong = run("tokenizer", "decode", out, text="1 x\n")
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith("Error: line 1: found 'x', expected ids from 0 to ")


def test_a_history_without_numbers_has_no_curves() -> None:
    assert curves_of([{"event": "started", "update": 0}]) == {}
    points = curves_of([{"event": "progress", "update": 5, "loss": 2.0, "nll": None, "learning_rate": 1e-3}])
    assert points == {"nats per token": {"training loss": [(5, 2.0)]}, "learning rate": {"learning rate": [(5, 0.001)]}}


def test_run_continued_after_its_end_is_not_finished() -> None:
    history = [
        {"event": "progress", "update": 7},
        {"event": "finished", "update": 7, "kept": "the last"},
        {"event": "evaluated"},
        {"event": "progress", "update": 9},
    ]
    assert (state_of(history)["update"], state_of(history)["finished"], state_of(history)["kept"]) == (9, False, None)
    assert (state_of(history[:3])["update"], state_of(history[:3])["finished"]) == (7, True)
