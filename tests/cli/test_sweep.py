"""Sweeps, and the comparison of heads: correct numbers, no repeated work, and a row for each failure."""

import json
import math
import re
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translume.checkpoint import read_config, read_history
from translume.cli import main
from translume.config import Config, ProjectedSettings, SoftmaxSettings
from translume.evaluation.groups import aligned
from translume.experiments.combinations import KIND, combinations, folder_name, head_kinds, parse_varied, split_values
from translume.experiments.measuring import Measured, Measures
from translume.experiments.processes import Run, Task
from translume.experiments.sweep import Row, read_run
from translume.experiments.sweep_table import make_table
from translume.training import train

pytestmark = pytest.mark.usefixtures("warm_processes")
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


def typed(*words: str | Path, command: str = "heads") -> Result:
    return CliRunner().invoke(main, [command, *map(str, words)], prog_name="translume", catch_exceptions=False)


def write_corpus(folder: Path) -> Path:
    """Write pairs of words and their capitals, and settings to learn them."""
    sources = [f"{first} {second} {third}" for first in WORDS for second in WORDS for third in WORDS]
    for name, texts in (("train.en", sources), ("train.de", [text.upper() for text in sources])):
        (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    path = folder / "en-de.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, warm_processes: None) -> Path:
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
    assert (values["title"], values["command"].split()[:2]) == ("Output heads on en-de.toml", ["translume", "heads"])
    assert [row["values"] for row in values["rows"]] == [{"head": "softmax"}, {"head": "projected"}]
    runs = [run for row in values["rows"] for run in row["runs"]]
    assert [(run["seed"], run["failure"]) for run in runs] == [(1, ""), (1, "")]
    for row, run in zip(values["rows"], runs, strict=True):
        found = run["measures"]
        folder = compared / "out" / row["name"]
        assert run["folder"] == str(folder)
        assert row["statistics"]["nll"] == {"mean": found["nll"], "sd": 0}
        assert row["curve"] == [
            [record["update"], record["nll"], 0] for record in read_history(folder) if record["event"] == "validated"
        ]
        finished = [record for record in read_history(folder) if record["event"] == "finished"]
        assert found["updates"] == finished[-1]["update"] == 11
        assert found["nll"] == pytest.approx(finished[-1]["nll"], rel=1e-4)
        assert 0 < found["nll"] < 2 * math.log(300)
        assert (found["normalised"], found["full_support"], found["impossible"]) == (True, True, 0)
        assert 0 <= found["ece"] <= 1
        assert found["tokens_per_second"] > 0
        assert 50e6 < run["peak_bytes"] < 50e9
        assert 0 < found["head_milliseconds"] < found["step_milliseconds"]
        assert [name for name, _, _ in found["scores"]] == ["exact_match", "chrf"]
        assert found["sentences"] == 2
    softmax, projected = (run["measures"] for run in runs)
    assert projected["parameters"] > softmax["parameters"]
    assert projected["tokens"] == softmax["tokens"]


def test_the_table_is_one_object_and_is_saved_with_a_picture(compared: Path) -> None:
    printed = (compared / "printed.json").read_text(encoding="utf-8")
    assert printed.count("\n") == 1
    assert json.loads((compared / "out" / "table.json").read_text(encoding="utf-8")) == json.loads(printed)
    assert (compared / "out" / "table.png").read_bytes().startswith(b"\x89PNG")
    page = (compared / "out" / "table.html").read_text(encoding="utf-8")
    (shown,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert [row[0] for row in json.loads(shown)["rows"]] == ["softmax", "projected"]
    assert [curve["points"] for curve in json.loads(shown)["curves"]] == [
        row["curve"] for row in json.loads(printed)["rows"]
    ]
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


def test_a_model_of_several_languages_has_the_scores_of_its_training(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    pairs = 'train_source = ["train.en"], train_target = ["train.de"]'
    corpora = ", ".join(f'{{source_language = "{each}", target_language = "de", {pairs}}}' for each in ("en", "fr"))
    lines = [line for line in SETTINGS.splitlines() if not line.startswith("data")]
    path.write_text("\n".join([f"data = {{corpus = [{corpora}]}}", *lines]))
    changes = [f"--set={each}" for each in ("model.language_tags=target", "training.metric=chrf", "training.updates=2")]
    result = typed(path, "--out", tmp_path / "out", "--threads", "1", "--json", *changes, command="sweep")
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    names = [name for name, *_ in row["runs"][0]["measures"]["scores"]]
    assert names == ["chrf", "chrf en→de", "chrf fr→de"]


def test_repeated_command_trains_and_measures_nothing(compared: Path) -> None:
    files = sorted(path for path in (compared / "out").rglob("*") if "table." not in path.name)
    before = [path.stat().st_mtime_ns for path in files]
    result = typed(compared / "en-de.toml", "--kinds", KINDS, "--out", compared / "out", "--threads", "1", "--json")
    assert (result.exit_code, result.stdout) == (0, (compared / "printed.json").read_text(encoding="utf-8"))
    out = compared / "out"
    assert result.stderr == f"{out}/table.md, table.json, table.html, table.png: written\n"
    after = sorted(path for path in (compared / "out").rglob("*") if "table." not in path.name)
    assert [path.stat().st_mtime_ns for path in after] == before


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
    assert result.stderr.splitlines()[-1] == f"Error: {tmp_path}/out: no model was trained; softmax: {reason}"
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
    run = read_run(tmp_path / "out" / "softmax")
    assert (run.measured, run.failure) == (None, "")
    assert run.peak_bytes is not None


def test_an_interrupted_sweep_goes_on_to_the_numbers_of_an_uninterrupted_one(
    tmp_path: Path, command: list[str]
) -> None:
    path, out = write_corpus(tmp_path), tmp_path / "out"
    words = [str(path), "--vary", "model.norm=pre,post", "--vary", "model.head.kind=adaptive"]
    words += ["--out", str(out), "--seeds", "2", "--threads", "1"]
    with subprocess.Popen([*command, "sweep", *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("update 3:"):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().splitlines()
        assert process.wait(timeout=300) == 130
    assert said[-1].startswith(f"Interrupted, all saved; continue with: translume sweep {path} --vary ")
    first = out / "model.norm=pre,model.head.kind=adaptive"
    assert read_history(first)[-1]["update"] < 11
    late = typed(*words, "--minutes", "0.0001", command="sweep")
    assert late.exit_code == 75
    assert late.stderr.splitlines()[-1].startswith("0.0001 minutes are over, all saved; missing: model.norm=pre,")
    assert late.stdout.splitlines()[-1].count("seed 2") == 2
    done = typed(*words, "--workers", "2", command="sweep")
    assert done.exit_code == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[:4]]
    assert rows[0][:2] == ["model.norm", "model.head.kind"]
    assert [row[:2] for row in rows[2:]] == [["pre", "adaptive"], ["post", "adaptive"]]
    assert all("±" in row[5] for row in rows[2:])
    assert re.search("chrf against the first row, . if p < 0.05: post, adaptive ", done.stdout)
    configs = [
        config for each in combinations([path], parse_varied(words[2::2][:2]), seeds=2) for config in each.configs
    ]
    alone = list(train(configs[0], tmp_path / "alone", threads=1))[-1]
    finished = [record for record in read_history(first) if record["event"] == "finished"][-1]
    assert alone.nll == finished["nll"]
    assert [
        read_config(out / f"model.norm=post,model.head.kind=adaptive{seed}") for seed in ("", "-seed-2")
    ] == configs[-2:]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            ["--vary", "model.nrom=pre"],
            "model.nrom=pre: {path}: model.nrom: no such setting; did you mean 'model.norm'?",
        ),
        (
            ["--vary", "model.norm=pre,pst", "--vary", "model.width=14"],
            "model.norm=pst, model.width=14: {path}: model.norm: found 'pst'; did you mean 'post'?",
        ),
        (
            ["--vary", "model.norm=pre", "--vary", "model.norm=post"],
            "--vary model.norm: found it twice; expected each setting once, with all its values",
        ),
        (
            ["--vary", "model.head.kind=softmax", "--vary", "model.head={kind = 'copy'}"],
            "--vary model.head: found model.head.kind too, which it overlaps; expected each setting once, with all its "
            "values",
        ),
        (
            ["--vary", "model.norm=pre,,post"],
            "--vary model.norm=pre,,post: expected PATH=VALUE,VALUE, such as model.norm=pre,post",
        ),
        (
            ["--vary", "training.seed=1,2"],
            "--vary training.seed: cannot be varied; --seeds N trains with several seeds",
        ),
        (["--seeds", "501", "--vary", "model.norm=pre,post"], "--vary: found 1,002 trainings, expected at most 1,000"),
        (["{path}"], "{path}: found two files of this name, expected different names"),
    ],
)
def test_wrong_sweeps_are_named_before_any_training(tmp_path: Path, words: list[str], answer: str) -> None:
    path = write_corpus(tmp_path)
    chosen = [word.replace("{path}", str(path)) for word in words]
    result = typed(path, *chosen, "--out", tmp_path / "out", command="sweep")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {answer.replace('{path}', str(path))}\n"
    assert not (tmp_path / "out").exists()


def test_unknown_head_suggests_the_nearest(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    result = typed(path, "--kinds", "softmax,projectd", "--out", tmp_path / "out")
    named = f"model.head.kind=projectd: {path}: model.head.kind: found 'projectd'; did you mean 'projected'?"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {named}\n")


def test_values_are_split_outside_of_strings_lists_and_tables() -> None:
    assert split_values("pre, post") == ["pre", "post"]
    assert split_values('"a,b",c,[1,2],{kind = "mixture", components = 3},0.1') == [
        *('"a,b"', "c", "[1,2]", '{kind = "mixture", components = 3}', "0.1")
    ]
    assert split_values("'a,b") == ["'a,b,"]
    assert parse_varied(["model.norm = post,pre,post"]) == {"model.norm": ("post", "pre")}


def test_names_of_folders_are_safe_and_distinct() -> None:
    assert folder_name("model.norm=pre,model.dropout=0.1") == "model.norm=pre,model.dropout=0.1"
    one, other = folder_name("data.train=/a b"), folder_name("data.train=/a_b")
    assert re.fullmatch(r"data.train=_a_b-[0-9a-f]{8}", one)
    assert one != other
    assert len(folder_name(300 * "a")) < 100


def head_of(folder: Path, head: str, kind: str) -> object:
    """Return the settings of the head that a sweep gives to a model with another one."""
    path = folder / "a.toml"
    path.write_text(f"[model]\nhead = {head}\n", encoding="utf-8")
    (found,) = combinations([path], {KIND: (kind,)})
    return found.configs[0].model.head


def test_heads_share_common_settings_and_keep_defaults_for_the_rest(tmp_path: Path) -> None:
    softmax = "{kind = 'softmax', tie = 'target', bias = false}"
    assert head_of(tmp_path, softmax, "softmax") == SoftmaxSettings(tie="target", bias=False)
    assert head_of(tmp_path, softmax, "projected") == ProjectedSettings(bias=False)  # which cannot tie
    projected = "{kind = 'projected', size = 11, bias = false}"
    assert head_of(tmp_path, projected, "softmax") == SoftmaxSettings(tie="none", bias=False)
    assert head_of(tmp_path, projected, "projected") == ProjectedSettings(size=11, bias=False)
    assert "classify" not in head_kinds()


def test_seeds_and_values_make_every_combination_in_order(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    varied = parse_varied(["model.head.size=3,5", "model.head.kind=projected", "training.validate_every=4"])
    found = combinations([path], varied, seeds=2, overrides=["training.seed=7"])
    assert [each.values for each in found] == [("3", "projected", "4"), ("5", "projected", "4")]
    assert [config.training.seed for each in found for config in each.configs] == [7, 8, 7, 8]
    assert [each.configs[0].model.head for each in found] == [ProjectedSettings(size=3), ProjectedSettings(size=5)]
    assert found[0].configs[0].training.validate_every == 4


@pytest.mark.parametrize(
    ("settings", "every"),
    [("updates = 100", (10, 10)), ("updates = 100\npatience = 3", (500, 10)), ("updates = 100000", (500, 50))],
)
def test_short_runs_are_validated_often_enough_to_draw_a_curve_unless_patience_counts(
    tmp_path: Path, settings: str, every: tuple[int, int]
) -> None:
    (tmp_path / "a.toml").write_text(f"[training]\n{settings}\n", encoding="utf-8")
    training = combinations([tmp_path / "a.toml"], {})[0].configs[0].training
    assert (training.validate_every, training.log_every) == every


def test_columns_are_aligned_with_numbers_to_the_right() -> None:
    assert aligned(["a", "numbers"], [["long name", "1"], ["b", "23"]]) == [
        "| a         | numbers |",
        "|:----------|--------:|",
        "| long name |       1 |",
        "| b         |      23 |",
    ]
    assert aligned(["a", "b", "c"], [["1", "2", "3"]], left=2)[1:] == ["|:----|:----|----:|", "| 1   | 2   |   3 |"]


def measures(
    *,
    normalised: bool = True,
    full_support: bool = True,
    nll: float | None = 2.3456,
    impossible: int = 0,
    scores: tuple[tuple[str, float, str], ...] = (("bleu", 35.678, "nrefs:1|tok:none"),),
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
        scores=scores,
        sentences=500,
        head_milliseconds=0.456,
        step_milliseconds=3.21,
    )


def test_table_marks_incomparable_numbers_and_explains_them() -> None:
    config = Config.build({"training": {"updates": 4000, "seed": 7}, "decoding": {"beam": 5}})

    def row(kind: str, found: Measures | None = None, peak: int | None = None, failure: str = "") -> Row:
        task = Task(kind, config, Path(kind), sentences=0, device="cpu", threads=1)
        run = Run(measured=found and Measured(measures=found), peak_bytes=peak, failure=failure)
        return Row(values=(kind,), runs=((task, run),))

    rows = [
        row("softmax", measures(), 433_400_000),
        row("sigmoid", measures(normalised=False)),
        row("entmax", measures(full_support=False, impossible=1034)),
        row("shortlist", measures(full_support=False, impossible=1900, nll=None)),
        row("copy", failure="killed by SIGKILL"),
        row("mixture"),
    ]
    title, command = "Output heads on en-de.toml", "translume heads en-de.toml"
    table = make_table(rows, title=title, command=command, columns=["head"])
    assert (
        table.to_markdown()
        == """| head       | parameters | tokens/s | peak MB |    nll |  bleu |    ECE | head ms | step ms |
|:-----------|-----------:|---------:|--------:|-------:|------:|-------:|--------:|--------:|
| softmax    |  1,234,567 |    8,765 |     433 |  2.346 | 35.68 | 0.0123 |    0.46 |    3.21 |
| sigmoid†   |  1,234,567 |    8,765 |       – | 2.346† | 35.68 | 0.0123 |    0.46 |    3.21 |
| entmax‡    |  1,234,567 |    8,765 |       – | 2.346‡ | 35.68 | 0.0123 |    0.46 |    3.21 |
| shortlist‡ |  1,234,567 |    8,765 |       – |      – | 35.68 | 0.0123 |    0.46 |    3.21 |
| copy       |          – |        – |       – |      – |     – |      – |       – |       – |
| mixture    |          – |        – |       – |      – |     – |      – |       – |       – |

4,000 updates, seed 7; cpu, 1 thread. nll in nats per token and ECE: 1,900 validation tokens; bleu: 500 sentences, \
beam 5 (bleu nrefs:1|tok:none). ms: a decoding step of 64 rows, for their 10 best tokens.

† probabilities do not sum to one: the nll cannot be compared with other heads', the ECE only with care.

‡ some tokens have zero probability: the nll is the mean over the other reference tokens, and looks better the more \
are left out (entmax 1,034 of 1,900, shortlist 1,900 of 1,900).

copy failed: killed by SIGKILL

Missing: mixture."""
    )


def test_seeds_are_pooled_and_compared_with_the_first_row() -> None:
    config = Config.build({"evaluation": {"metrics": ["exact_match"]}})
    references = tuple(f"text {number}" for number in range(50))

    def row(name: str, *right: int) -> Row:
        runs = []
        for count in right:
            texts = (*references[:count], *("x" for _ in references[count:]))
            score = ("exact_match", 2.0 * count, "nrefs:1")
            found = measures(nll=count / 10, scores=(score,))
            measured = Measured(measures=found, sources=references, references=references, translations=texts)
            runs.append((Task(name, config, Path(name), sentences=0, device="cpu", threads=1), Run(measured=measured)))
        return Row(values=(name,), runs=tuple(runs))

    rows = [row("first", 20, 30), row("same", 30, 20), row("better", 40, 50)]
    table = make_table(rows, title="Sweep", command="translume sweep a.toml", columns=["file"])
    assert table.comparisons[0] == {}
    same, better = (each["exact_match"] for each in table.comparisons[1:])
    assert (same.first.value, same.second.value, same.p_value) == (50, 50, 1)
    assert (better.second.value, better.sentences) == (90, 50)
    assert better.p_value < 0.01
    cells = [line.split("|")[1:] for line in table.to_markdown().splitlines()[2:5]]
    assert [[row[4].strip(), row[5].strip()] for row in cells] == [
        ["2.500 ± 0.707", "50.00 ± 14.14"],
        ["2.500 ± 0.707", "50.00 ± 14.14"],
        ["4.500 ± 0.707", "90.00 ± 14.14*"],
    ]
    assert "same +0.00 [+0.00, +0.00], p = 1.000; better +40.00 [" in table.to_markdown()
