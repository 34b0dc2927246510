"""A draft changes the speed of greedy search and nothing else; one that cannot guess is refused by name."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from translume.checkpoint import save_model, store_decoding
from translume.cli import main
from translume.config import MixtureSettings
from translume.errors import ModelFolderError, SettingsError
from translume.kernels.loading import has_kernels, kernels
from translume.translator import Translator, draft, load

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")
SENTENCES = ["a dog runs.", "two men", "a b c", "!", "no."]


@pytest.fixture
def folders(make, tmp_path) -> tuple[Path, Path]:
    """A model and a smaller one with the same vocabularies."""
    model, small = tmp_path / "model", tmp_path / "small"
    save_model(model, make(shared=False, decoder_layers=2).checkpoint)
    save_model(small, make(shared=False, seed=7).checkpoint)
    return model, small


def results(translator: Translator, **options: object) -> list[object]:
    return [(each.text, each.hypotheses) for each in (translator.translate(text, **options) for text in SENTENCES)]


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize("options", [{"strategy": "greedy"}, {"strategy": "sampling", "seed": 11}])
def test_texts_and_scores_do_not_depend_on_the_draft(folders, dtype, options):
    if dtype == "int8" and not kernels().int8:
        pytest.skip("this processor has no int8 products")
    model, small = folders
    translator = load(model, dtype=dtype, engine="fast")
    assert isinstance(translator, Translator)
    without = results(translator, **options)
    assert results(translator, draft=str(small), draft_tokens=3, **options) == without
    assert results(translator, draft=str(model), **options) == without
    assert [*translator.engine.drafts] == [str(small), str(model)]


def test_a_draft_that_cannot_guess_is_refused_by_name(folders, make, tmp_path):
    translator = load(folders[0])
    with pytest.raises(
        ModelFolderError, match=r"^decoding.draft: .*none: not a model folder: there is no such folder$"
    ):
        translator.translate("a", strategy="greedy", draft=str(tmp_path / "none"))
    save_model(tmp_path / "bytes", make(shared=True).checkpoint)
    with pytest.raises(SettingsError) as caught:
        translator.translate("a", strategy="greedy", draft=str(tmp_path / "bytes"))
    expected = "it has another target vocabulary than the model, expected the same"
    assert str(caught.value) == f"decoding.draft: {tmp_path / 'bytes'}: {expected}"
    save_model(tmp_path / "mixture", make(shared=False, head=MixtureSettings(tie="target")).checkpoint)
    with pytest.raises(SettingsError) as caught:
        translator.translate("a", strategy="greedy", draft=str(tmp_path / "mixture"))
    expected = "its head is not one linear map, so it has no search in the kernels"
    assert str(caught.value) == f"decoding.draft: {tmp_path / 'mixture'}: {expected}"


def test_a_beam_has_no_draft(folders):
    with pytest.raises(SettingsError) as caught:
        load(folders[0]).translate("a", beam=3, draft=str(folders[1]))
    assert str(caught.value) == ("decoding.draft: strategy 'beam' does not read it, expected 'greedy' or 'sampling'")


def test_a_moved_model_translates_without_the_draft_that_its_settings_name(folders, caplog):
    model, small = folders
    store_decoding(model, {"draft": str(small), "strategy": "greedy"})
    expected = load(model).translate("a dog")
    shutil.rmtree(small)
    assert load(model).translate("a dog") == expected
    assert caplog.messages == [
        f"decoding.draft: {small}: not a model folder: there is no such folder; searched without a draft"
    ]


def test_pack_measures_a_draft_and_keeps_one_that_pays(folders, monkeypatch, tmp_path):
    model, small = map(str, folders)
    lines = tmp_path / "lines"
    lines.write_text("a dog\n\ntwo men\n")
    alone = CliRunner().invoke(main, ["pack", model, "--draft", small])
    assert (alone.exit_code, alone.stderr) == (
        1, "Error: --draft and --lines: found only one of them, expected both\n",
    )  # fmt: skip
    for worth, kept in ((1e9, ""), (1e-9, str(folders[1].absolute()))):
        monkeypatch.setattr(draft, "WORTH", worth)
        run = CliRunner().invoke(main, ["pack", model, "--draft", small, "--lines", str(lines)])
        assert (run.exit_code, run.exception) == (0, None), run.stderr
        assert [line.partition(":")[0] for line in run.stdout.splitlines()[:3]] == [
            "no draft", "1 tokens guessed", "2 tokens guessed",
        ]  # fmt: skip
        assert load(model).config.decoding.draft == kept
    kept_draft, without = (load(model).translate("a dog", strategy="greedy", **words) for words in ({}, {"draft": ""}))
    assert kept_draft == without
