"""The scripts of docs/from_ctranslate2.md, with CTranslate2 and with Translume, print the same."""

import inspect
import io
import re
import runpy
from pathlib import Path

import pytest
import torch

import translume
from translume.translator import Translator

from .conftest import SOURCES, TARGETS

pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra: export)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from_ctranslate2.md").read_text(encoding="utf-8")
UPDATES = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, opus) -> Path:
    """Return a folder with an OPUS-MT model that learned six pairs, converted by CTranslate2 and by Translume."""
    folder = tmp_path_factory.mktemp("moving")
    opus.write(folder / "opus-mt", tokenizer={"character_coverage": 1.0})
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder / "opus-mt")
    model = transformers.MarianMTModel.from_pretrained(folder / "opus-mt").train()
    pairs = tokenizer(list(SOURCES), text_target=list(TARGETS), padding=True, return_tensors="pt")
    pairs["labels"][pairs["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(5)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        model(**pairs).loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.model.shared.weight[-1] = 0.0  # as in every OPUS-MT model; CTranslate2 starts targets with zeros
    model.save_pretrained(folder / "opus-mt")
    ctranslate2.converters.TransformersConverter(str(folder / "opus-mt")).convert(str(folder / "opus-ct2"))
    translume.import_model(folder / "opus-mt", folder / "models" / "opus")
    return folder


def printed(name: str, folder: Path, monkeypatch, capsys) -> list[list[str]]:
    """Run a script of the page on the six sources, and return the columns that it prints."""
    (text,) = re.findall(rf"^```py {name}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in SOURCES)))
    runpy.run_path(f"{name}.py")
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_both_scripts_print_the_same(folder: Path, monkeypatch, capsys) -> None:
    before = printed("before", folder, monkeypatch, capsys)
    after = printed("after", folder, monkeypatch, capsys)
    assert len(before) == 2 * len(SOURCES)
    assert [text for _, text in after] == [text for _, text in before]
    assert sum(text in TARGETS for _, text in before) >= 4
    assert [float(score) for score, _ in after] == pytest.approx([float(score) for score, _ in before], abs=2e-3)


def test_every_argument_of_the_table_exists() -> None:
    table = PAGE.partition("| CTranslate2 |")[2].partition("\n\n")[0]
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    theirs, ours = zip(*(row[:2] for row in rows), strict=True)
    known = set(translume.DecodingSettings.model_fields) | set(inspect.signature(translume.load).parameters)
    assert {name for cell in ours for name in re.findall(r"`(\w+)=", cell)} <= known
    signatures = f"{ctranslate2.Translator.__init__.__doc__}{ctranslate2.Translator.translate_batch.__doc__}"
    assert {name for cell in theirs for name in re.findall(r"`(\w+)[=`]", cell)} - set(
        re.findall(r"\b(\w+):", signatures)
    ) == {"translate_file"}
    assert all(hasattr(Translator, name) for name in ("translate_all", "score_all"))
