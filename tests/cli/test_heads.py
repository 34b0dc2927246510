"""Comparison of heads: correct numbers, no repeated work, and a row for each failure."""

import json
import math
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translume.checkpoint import read_config, read_history
from translume.cli import main
from translume.config import Config, ProjectedSettings, SoftmaxSettings
from translume.experiments.heads import Comparison, Row, aligned, chosen_kinds, config_with, head_kinds, read_rows
from translume.experiments.measuring import Measures

ROOT = Path(__file__).resolve().parents[2]
KINDS = "softmax,projected"
WORDS = ["ab", "cde", "fghij", "kl", "mno"]
SETTINGS = """
data = {train_source = "train.en", train_target = "train.de", source_language = "en", target_language = "de"}
tokenizer = {kind = "character", size = 300}
model = {width = 14, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 7}
training = {updates = 11, max_tokens = 512, warmup_updates = 2, validate_every = 5, save_every = 5, log_every = 3}
evaluation = {metrics = ["exact_match", "chrf"], tokenize = "none"}
decoding = {strategy = "greedy", max_length = 13}
"""


def typed(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["heads", *map(str, words)], prog_name="translume", catch_exceptions=False)


def write_corpus(folder: Path) -> Path:
    """Write pairs of words and their capitals, and settings to learn them."""
    sources = [f"{first} {second} {third}" for first in WORDS for second in WORDS for third in WORDS]
    for name, texts in (("train.en", sources), ("train.de", [text.upper() for text in sources])):
        (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    path = folder / "en-de.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with en-de.toml and, in `out`, a comparison of two heads."""
    folder = tmp_path_factory.mktemp("compared")
    path = write_corpus(folder)
    result = typed(path, "--kinds", KINDS, "--out", folder / "out", "--threads", "1", "--json")
    assert result.exit_code == 0, result.stderr
    (folder / "printed.json").write_text(result.stdout, encoding="utf-8")
    (folder / "said.txt").write_text(result.stderr, encoding="utf-8")
    return folder


def test_table_has_a_row_with_plausible_numbers_for_each_head(compared: Path) -> None:
    values = json.loads((compared / "printed.json").read_text(encoding="utf-8"))
    assert (values["config"], values["updates"], values["seed"]) == ("en-de.toml", 11, 1)
    assert [(row["kind"], row["failure"]) for row in values["rows"]] == [("softmax", ""), ("projected", "")]
    for row in values["rows"]:
        found = row["measures"]
        folder = compared / "out" / row["kind"]
        finished = [record for record in read_history(folder) if record["event"] == "finished"]
        assert found["updates"] == finished[-1]["update"] == 11
        assert found["nll"] == pytest.approx(finished[-1]["nll"], rel=1e-4)
        assert 0 < found["nll"] < 2 * math.log(300)
        assert (found["normalised"], found["full_support"], found["impossible"]) == (True, True, 0)
        assert 0 <= found["ece"] <= 1
        assert found["tokens_per_second"] > 0
        assert 50e6 < row["peak_bytes"] < 50e9
        assert 0 < found["head_milliseconds"] < found["step_milliseconds"]
        assert [name for name, _, _ in found["scores"]] == ["exact_match", "chrf"]
        assert found["sentences"] == 2
    softmax, projected = (row["measures"] for row in values["rows"])
    assert projected["parameters"] > softmax["parameters"]
    assert projected["tokens"] == softmax["tokens"]


def test_the_table_is_one_object_and_is_saved_with_a_picture(compared: Path) -> None:
    printed = (compared / "printed.json").read_text(encoding="utf-8")
    assert printed.count("\n") == 1
    assert json.loads((compared / "out" / "table.json").read_text(encoding="utf-8")) == json.loads(printed)
    assert (compared / "out" / "table.png").read_bytes().startswith(b"\x89PNG")
    page = (compared / "out" / "table.md").read_text(encoding="utf-8").splitlines()
    assert page[0] == "# Output heads on en-de.toml"
    names = ["head", "parameters", "tokens/s", "peak MB", "nll", "exact_match", "chrf", "ECE", "head ms", "step ms"]
    assert [cell.strip() for cell in page[4].strip("|").split("|")] == names
    assert [line.split()[1] for line in page[6:8]] == ["softmax", "projected"]
    assert {len(line) for line in page[4:8]} == {len(page[4])}


def test_progress_of_each_head_is_printed(compared: Path) -> None:
    said = (compared / "said.txt").read_text(encoding="utf-8").splitlines()
    out = compared / "out"
    assert f"softmax (1 of 2): {out}/softmax" in said
    assert f"projected (2 of 2): {out}/projected" in said
    assert len([line for line in said if line.startswith("finished after 11 updates; kept ")]) == 2


def test_repeated_command_trains_and_measures_nothing(compared: Path) -> None:
    files = sorted(path for path in (compared / "out").rglob("*") if "table." not in path.name)
    before = [path.stat().st_mtime_ns for path in files]
    result = typed(compared / "en-de.toml", "--kinds", KINDS, "--out", compared / "out", "--threads", "1", "--json")
    assert (result.exit_code, result.stdout) == (0, (compared / "printed.json").read_text(encoding="utf-8"))
    out = compared / "out"
    assert result.stderr == f"{out}/table.md, table.json: written\n{out}/table.png: written\n"
    after = sorted(path for path in (compared / "out").rglob("*") if "table." not in path.name)
    assert [path.stat().st_mtime_ns for path in after if path != out / "measured.json"] == [
        time for path, time in zip(files, before, strict=True) if path != out / "measured.json"
    ]


def test_heads_share_the_data_and_differ_in_the_head_alone(compared: Path) -> None:
    first, second = (read_config(compared / "out" / kind) for kind in KINDS.split(","))
    assert (first.model.head.kind, second.model.head.kind) == ("softmax", "projected")
    assert second.model_copy(update={"model": first.model}) == first
    files = [sorted((compared / "out" / kind / "cache").rglob("used.tokens")) for kind in KINDS.split(",")]
    assert files[0][0].samefile(files[1][0])


def test_failed_head_is_a_row_with_the_reason_and_the_others_continue(compared: Path) -> None:
    out = compared / "out"
    (out / "entmax").write_text("in the way\n", encoding="utf-8")
    result = typed(compared / "en-de.toml", "--kinds", "entmax,softmax", "--out", out, "--threads", "1")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    reason = f"{out}/entmax: is a file, expected a folder"
    assert set(lines[2].split()[2:]) == {"|", "–"}
    assert [line.split()[1] for line in lines[2:4]] == ["entmax", "softmax"]
    assert lines[-1] == f"entmax failed: {reason}"
    assert f"entmax failed: {reason}" in result.stderr.splitlines()
    assert {row.kind: row.failure for row in read_rows(out)} == {"softmax": "", "projected": "", "entmax": reason}


def test_failure_of_all_heads_is_a_one_line_error(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    (tmp_path / "train.de").unlink()
    words = ("--kinds", "softmax", "--out", tmp_path / "out", "--set", "training.warmup_updates=1000")
    result = typed(path, "--updates", "2", *words)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == (
        "warning: training.warmup_updates = 1,000, but the training has 2 updates: "
        "the learning rate never reaches its peak"
    )
    reason = f"{tmp_path}/train.de: no such file"
    assert result.stderr.splitlines()[-1] == f"Error: {tmp_path}/out: no head was trained; softmax: {reason}"
    assert not list((tmp_path / "out").glob("*.log"))


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path, command: list[str]) -> None:
    path = write_corpus(tmp_path)
    words = ["heads", str(path), "--kinds", "softmax", "--out", str(tmp_path / "out"), "--updates", "100000"]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("update "):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().splitlines()
        assert process.wait(timeout=300) == 130
    assert said[-1] == (
        f"Interrupted, all saved; continue with: translume heads {path} --kinds softmax --updates 100000 "
        f"--out {tmp_path}/out"
    )
    last = read_history(tmp_path / "out" / "softmax")[-1]
    assert last["event"] == "interrupted"
    assert last["update"] > 0
    row = read_rows(tmp_path / "out")[0]
    assert (row.measures, row.failure) == (None, "")
    assert row.peak_bytes is not None


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        ("softmax,projectd", "found 'projectd'; did you mean 'projected'?"),
        (" , ", f"found none; known: {', '.join(head_kinds())}"),
    ],
)
def test_unknown_head_suggests_the_nearest(tmp_path: Path, kinds: str, answer: str) -> None:
    result = typed(write_corpus(tmp_path), "--kinds", kinds, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: --kinds: {answer}\n")
    assert not (tmp_path / "out").exists()


def test_kinds_are_taken_once_in_the_order_given() -> None:
    assert chosen_kinds("projected, softmax,projected") == ("projected", "softmax")
    assert chosen_kinds("all") == tuple(head_kinds())
    assert "classify" not in head_kinds()


def test_heads_share_common_settings_and_keep_defaults_for_the_rest() -> None:
    config = Config.build({"model": {"head": {"kind": "softmax", "tie": "target", "bias": False}}})
    assert config_with(config, "softmax").model == config.model
    assert config_with(config, "projected").model.head == ProjectedSettings(bias=False)  # which cannot tie
    back = Config.build({"model": {"head": {"kind": "projected", "size": 11, "bias": False}}})
    assert config_with(back, "softmax").model.head == SoftmaxSettings(tie="none", bias=False)
    assert config_with(back, "projected").model.head == ProjectedSettings(size=11, bias=False)


def test_short_runs_are_validated_often_enough_to_draw_a_curve_unless_patience_counts() -> None:
    short = config_with(Config.build({"training": {"updates": 100}}), "softmax").training
    assert (short.validate_every, short.log_every) == (10, 10)
    patient = config_with(Config.build({"training": {"updates": 100, "patience": 3}}), "softmax").training
    assert (patient.validate_every, patient.log_every) == (500, 10)
    long = Config.build({"training": {"updates": 100_000}})
    assert config_with(long, "softmax").training == long.training


def test_columns_are_aligned_with_numbers_to_the_right() -> None:
    assert aligned(["a", "numbers"], [["long name", "1"], ["b", "23"]]) == [
        "| a         | numbers |",
        "|:----------|--------:|",
        "| long name |       1 |",
        "| b         |      23 |",
    ]


def measures(
    *, normalised: bool = True, full_support: bool = True, nll: float | None = 2.3456, impossible: int = 0
) -> Measures:
    return Measures(
        updates=4000,
        parameters=1234567,
        device="cpu",
        threads=1,
        normalised=normalised,
        full_support=full_support,
        exact_loss=normalised,
        tokens_per_second=8765.4,
        nll=nll,
        tokens=1900,
        impossible=impossible,
        ece=0.01234,
        scores=(("bleu", 35.678, "nrefs:1|tok:none"),),
        sentences=500,
        head_milliseconds=0.456,
        step_milliseconds=3.21,
    )


def test_table_marks_incomparable_numbers_and_explains_them() -> None:
    rows = (
        Row(kind="softmax", settings={}, measures=measures(), peak_bytes=433_400_000),
        Row(kind="sigmoid", settings={}, measures=measures(normalised=False)),
        Row(kind="entmax", settings={}, measures=measures(full_support=False, impossible=1034)),
        Row(kind="shortlist", settings={}, measures=measures(full_support=False, impossible=1900, nll=None)),
        Row(kind="copy", settings={}, failure="killed by SIGKILL"),
    )
    config = Config.build({"training": {"updates": 4000, "seed": 7}, "decoding": {"beam": 5}})
    comparison = Comparison(config=config, name="en-de.toml", command="translume heads en-de.toml", rows=rows)
    assert (
        comparison.to_page()
        == """# Output heads on en-de.toml

    translume heads en-de.toml

| head       | parameters | tokens/s | peak MB |    nll |  bleu |    ECE | head ms | step ms |
|:-----------|-----------:|---------:|--------:|-------:|------:|-------:|--------:|--------:|
| softmax    |  1,234,567 |    8,765 |     433 |  2.346 | 35.68 | 0.0123 |    0.46 |    3.21 |
| sigmoid†   |  1,234,567 |    8,765 |       – | 2.346† | 35.68 | 0.0123 |    0.46 |    3.21 |
| entmax‡    |  1,234,567 |    8,765 |       – | 2.346‡ | 35.68 | 0.0123 |    0.46 |    3.21 |
| shortlist‡ |  1,234,567 |    8,765 |       – |      – | 35.68 | 0.0123 |    0.46 |    3.21 |
| copy       |          – |        – |       – |      – |     – |      – |       – |       – |

4,000 updates, seed 7; cpu, 1 thread. nll in nats per token and ECE: 1,900 validation tokens; bleu: 500 sentences, \
beam 5 (bleu nrefs:1|tok:none). ms: a decoding step of 64 rows, for their 10 best tokens.

† probabilities do not sum to one: the nll cannot be compared with other heads', the ECE only with care.

‡ some tokens have zero probability: the nll is the mean over the other reference tokens, and looks better the more \
are left out (entmax 1,034 of 1,900, shortlist 1,900 of 1,900).

copy failed: killed by SIGKILL
"""
    )
    assert [Row.from_dict(json.loads(json.dumps(row.to_dict()))) for row in rows] == list(rows)
