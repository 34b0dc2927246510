"""Pickling: errors by their attributes, models by their folder and options, as a `ProcessPoolExecutor` does it."""

import ast
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import translume
from translume.belief import BeliefError
from translume.checkpoint import save_model
from translume.data.tables import RowError
from translume.decoding import SearchError
from translume.serving.api.errors import RequestError
from translume.training.group import GroupError
from translume.translator import Translator
from translume.translator.planning import Line, LineError
from translume.translator.scoring import PairError, ScoredPair

TEXT = "abc de. fgh"
ERRORS = [
    LineError(Line(number=3, text="a", constraints=("b",)), "a sentence has 9 tokens, expected at most 4"),
    SearchError("the distribution is not finite", sentence=2, token=7),
    BeliefError(4, "row 4: no token is allowed"),
    RequestError(429, "too many requests", code="busy", field="text", retry_after=3),
    translume.SettingsError("decoding.beam: found 0"),
    GroupError("process 1 died", reports=False),
    RowError("a.tsv row 3", "its target is empty", ["a", ""]),
    PairError(ScoredPair(place="line 3", source="a", target="b"), 2, "the target has 9 tokens, expected at most 4"),
]


@pytest.fixture
def folder(tmp_path: Path, translator: Translator) -> Path:
    save_model(tmp_path / "en de", translator.checkpoint)
    return tmp_path / "en de"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_class_message_and_attributes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.args, vars(again)) == (type(error), str(error), error.args, vars(error))


def test_every_error_with_its_own_constructor_is_tested_unless_it_ends_a_command() -> None:
    sources = [
        path.read_text("utf-8") for path in Path(translume.__file__).parent.rglob("*.py") if path.parent.name != "cli"
    ]
    found = {
        node.name
        for source in sources
        if re.search(r"class \w+Error\b", source)  # reading the others would take a second
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
        if any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in node.body)
    }
    assert found == {type(error).__name__ for error in ERRORS if "__init__" in vars(type(error))}


def test_a_translator_is_pickled_by_its_folder_and_options(folder: Path) -> None:
    loaded = translume.load(folder, device="cpu", engine="plain")
    pickled = pickle.dumps(loaded)
    assert len(pickled) < 1000
    again = pickle.loads(pickled)
    assert again.translate(TEXT) == loaded.translate(TEXT)
    assert repr(again) == repr(loaded)


def test_translators_made_from_others_are_pickled(folder: Path) -> None:
    loaded = translume.load(folder, device="cpu", engine="plain")
    for made in (loaded.compile("fp32"), loaded.ensemble_with(loaded, average="log_probability")):
        again = pickle.loads(pickle.dumps(made))
        assert again.translate(TEXT) == made.translate(TEXT)
        assert repr(again) == repr(made)


def test_a_process_pool_translates_and_returns_errors(folder: Path, warm_processes: None) -> None:
    loaded = translume.load(folder, device="cpu", engine="plain", threads=1)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(loaded.translate, TEXT).result() == loaded.translate(TEXT)
        with pytest.raises(LineError, match=r"^text: a sentence has 59 tokens, expected at most 40"):
            pool.submit(loaded.translate, "a" * 59).result()


def test_a_translator_without_a_folder_refuses_in_one_line(translator: Translator) -> None:
    with pytest.raises(TypeError) as error:
        pickle.dumps(translator.compile("fp32"))
    message = "Translator: it has no model folder, so it cannot be pickled; load(folder) can"
    assert str(error.value) == message


def test_the_representation_names_languages_parameters_engine_and_folder(tmp_path: Path, make) -> None:
    translator = make("data.source_language=en", "data.target_language=de")
    parts = "28,050 parameters, 2+1 layers, width 32, softmax head over 34 tokens"
    assert repr(translator) == f"<Translator en→de: {parts}, plain model>"
    save_model(tmp_path / "en-de", translator.checkpoint)
    loaded = translume.load(tmp_path / "en-de", device="cpu")
    assert repr(loaded) == f"<Translator en→de: {parts}, fast engine fp32, {tmp_path / 'en-de'}>"
    both = loaded.compile("fp32").ensemble_with(loaded)
    assert repr(both) == f"<Translator en→de: {parts}, fast engine fp32, ensemble of 2, {tmp_path / 'en-de'}>"
