"""Commands translate and measure documents with a model that reads context."""

import json
from pathlib import Path

import pytest

from translume.checkpoint import Checkpoint, build_model, save_model
from translume.config import Config, TokenizerSettings
from translume.data.pairs import read_pairs
from translume.evaluation.metrics import document_bleu
from translume.text import train_tokenizer

SETTINGS = """
[data]
source_language = "en"
target_language = "de"
train = "train.tsv"
columns = [1, 2]
document_column = 0
context = {source = 1, target = 1}
[model]
width = 32
feed_forward = 48
encoder_layers = 1
decoder_layers = 1
attention_heads = 2
[decoding]
max_length = 9
letterless = "translate"
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an untrained model of characters."""
    import torch

    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=31, unknown="token"), ["abcdef ghij"])
    config = Config.parse(SETTINGS)
    torch.manual_seed(3)
    network = build_model(config.model, len(tokenizer), len(tokenizer)).eval()
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    folder = tmp_path_factory.mktemp("models") / "en-de"
    checkpoint = Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    save_model(folder, checkpoint)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "test.tsv"
    rows = [("1", "abc", "cba a b c"), ("1", "de", "ed e d f"), ("2", "fab", "baf b a f"), ("2", "c", "c d e f")]
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def lines_of(path: Path, column: int) -> list[str]:
    return [line.split("\t")[column] for line in path.read_text().splitlines()]


def test_blank_lines_separate_documents_for_every_way_to_translate(model: Path, table: Path, tmp_path, run) -> None:
    from translume import load

    sources = lines_of(table, 1)
    text = "\n".join([*sources[:2], "", *sources[2:]])
    wanted = [each.text for each in load(model).translate_all(text.split("\n"))]
    assert wanted[1] != load(model).translate(sources[1]).text
    found = run("translate", model, text=text)
    assert found.stdout.splitlines() == wanted
    (tmp_path / "in.en").write_text(text)
    done = run("translate", model, "--input", tmp_path / "in.en", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    (out,) = (path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name.startswith("in"))
    assert out.read_text().splitlines() == wanted


def test_documents_of_a_table_are_translated_and_measured_as_such(model: Path, table: Path, tmp_path, run) -> None:
    from translume import load

    out = tmp_path / "out.de"
    found = run("evaluate", model, table, "--json", "--write", out)
    assert found.exit_code == 0, found.output
    (score,) = [each for each in json.loads(found.stdout)["scores"] if each["name"] == "d_bleu"]
    wanted = list(load(model).translate_all(lines_of(table, 1), documents=lines_of(table, 0)))
    texts = [each.text for each in wanted]
    assert out.read_text().splitlines() == texts
    settings = load(model).config.scoring.of_language("de")
    d_bleu = document_bleu(texts, [lines_of(table, 2)], lines_of(table, 0), settings)
    assert score["value"] == pytest.approx(d_bleu.value)
    assert score["signature"].endswith("|documents:2")
    source, target = tmp_path / "test.en", tmp_path / "test.de"
    source.write_text("\n".join([*lines_of(table, 1)[:2], "", *lines_of(table, 1)[2:]]) + "\n")
    target.write_text("\n".join([*lines_of(table, 2)[:2], "", *lines_of(table, 2)[2:]]) + "\n")
    words = ("--json", "--metrics", "bleu,exact_match", "--calibration", "-")
    wanted = run("evaluate", model, table, *words).stdout
    assert run("evaluate", model, source, target, *words, "--write", out).stdout == wanted  # blank lines are no pairs
    assert out.read_text().splitlines() == [*texts[:2], "", *texts[2:]]
    again = json.loads(run("evaluate", model, target, "--hypotheses", out, *words[:3]).stdout)
    assert again["scores"] == json.loads(wanted.splitlines()[0])["scores"][:2]


def test_the_rows_of_tables_are_translated_in_their_documents(model: Path, table: Path, tmp_path, run) -> None:
    from translume import load

    sources, names = lines_of(table, 1), lines_of(table, 0)
    wanted = [each.text for each in load(model).translate_all(sources, documents=names)]
    assert wanted != [each.text for each in load(model).translate_all(sources)]
    assert run("translate", model, table).stdout.splitlines() == wanted
    for number, more in enumerate(([], ["--column", "1"], ["--workers", "2"])):
        out = tmp_path / f"out{number}"
        done = run("translate", model, "--input", table, "--output", out, *more)
        assert done.exit_code == 0, done.output
        assert (out / "test.tsv.txt").read_text().splitlines() == wanted
    assert run("translate", model, table, "--workers", "2").stdout.splitlines() == wanted
    table.write_text(table.read_text() + "3\n3\tabc\tcba\n")
    done = run("translate", model, "--input", table, "--output", tmp_path / "rest")
    assert done.stderr.splitlines()[0] == (
        f"warning: {table}:5: 1 tab-separated fields, expected at least 2; it has no result"
    )
    alone = load(model).translate("abc").text
    assert (tmp_path / "rest" / "test.tsv.txt").read_text().splitlines() == [*wanted, "", alone]


def test_a_file_of_json_is_one_document_without_the_column(model: Path, table: Path, tmp_path, run) -> None:
    from translume import load

    (tmp_path / "texts.json").write_text(json.dumps(lines_of(table, 1)[:2]))
    found = run("translate", model, tmp_path / "texts.json")
    assert found.exit_code == 0, found.output
    texts = [each.text.strip() for each in load(model).translate_all(lines_of(table, 1)[:2])]
    assert json.loads(found.stdout) == texts


def test_a_document_without_the_column_is_refused(model: Path, tmp_path, run) -> None:
    (tmp_path / "short.jsonl").write_text('{"source": "abc", "target": "cba"}\n')
    found = run("evaluate", model, tmp_path / "short.jsonl")
    assert found.exit_code == 1
    assert found.stderr == f"Error: {tmp_path / 'short.jsonl'}:1: no '0'; it has: source, target\n"


def test_other_programs_would_not_read_context(model: Path, tmp_path, run) -> None:
    found = run("export", model, "onnx", tmp_path / "other")
    assert found.stderr == (f"Error: export: {model}: found data.context, which only Translume reads; expected none\n")
    assert not (tmp_path / "other").exists()
    assert run("export", model, "translume", tmp_path / "own").exit_code == 0


def test_the_settings_are_read_and_written(tmp_path: Path) -> None:
    config = Config.parse(SETTINGS)
    assert (config.data.context.source, config.data.context.target, config.data.document_column) == (1, 1, 0)
    assert Config.parse(config.to_toml()) == config
    (tmp_path / "train.tsv").write_text("x\ta\tb\n")
    data = config.data.model_copy(update={"train": (str(tmp_path / "train.tsv"),)})
    assert [pair.document for pair in read_pairs(data, "train")] == [f"{tmp_path / 'train.tsv'}:1"]


def test_scores_of_files_are_of_documents(model: Path, table: Path, tmp_path, run) -> None:
    from translume import load

    pairs = list(zip(lines_of(table, 1), lines_of(table, 2), strict=True))
    scores = load(model).score_all(pairs, documents=lines_of(table, 0))
    wanted = [f"{each.log_prob:.4f}" for each in scores]
    assert wanted != [f"{each.log_prob:.4f}" for each in load(model).score_all(pairs)]
    for side, name in enumerate(("test.en", "test.de")):
        lines = [pair[side] for pair in pairs]
        (tmp_path / name).write_text("\n".join([*lines[:2], "", *lines[2:]]) + "\n")
    files = tmp_path / "test.en", tmp_path / "test.de"
    out = tmp_path / "out"
    assert run("score", model, "--input", files[0], "--targets", files[1], "--output", out).exit_code == 0
    (written,) = out.glob("test*")
    assert run("score", model, "--input", table, "--output", tmp_path / "rows").exit_code == 0
    (rows,) = (tmp_path / "rows").glob("test*")
    for found, parted in ((run("score", model, *files).stdout, 1), (written.read_text(), 1), (rows.read_text(), 0)):
        values = [f"{float(line):.4f}" for line in found.splitlines()]
        assert (values[:2] + values[3:] if parted else values) == wanted
