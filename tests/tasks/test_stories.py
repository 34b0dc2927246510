"""Questions about stories, whose sentences are one vector each: from a file to answers, inspected and served."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import translume
from translume.cli import main
from translume.config import Config
from translume.errors import SettingsError
from translume.interchange.export import export
from translume.serving.api.app import build_app
from translume.serving.models import ServedModel, ServedModels
from translume.serving.server import Server
from translume.training import train
from translume.translator import Translator

NAMES, PLACES = ("ann", "bob", "eve"), ("garden", "park", "office")
STORY = "bob went to the park . ann went to the office . bob is in the garden . where is bob ?"


def stories(count: int, seed: int) -> str:
    """Lines of a story, whose last sentence is a question, and its answer."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        found = [(draw.choice(NAMES), draw.choice(PLACES)) for _ in range(draw.randint(1, 4))]
        who = draw.choice(found)[0]
        told = [f"{name} {draw.choice(('went to', 'is in'))} the {place} ." for name, place in found]
        lines.append(f"{' '.join(told)} where is {who} ?\t{dict(found)[who]}\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stories")
    (folder / "train.tsv").write_text(stories(2_000, 1))
    (folder / "valid.tsv").write_text(stories(100, 2))
    (folder / "stories.toml").write_text(
        'data.train = "train.tsv"\ndata.valid = "valid.tsv"\n'
        'tokenizer = {kind = "word", size = 40, unknown = "token"}\n'
        "[model]\nwidth = 32\nhead_width = 16\nfeed_forward = 64\n"
        "encoder_layers = 2\ndecoder_layers = 1\ndropout = 0.0\n"
        'positions = "rotary"\nsegments = 6\nsegment_separator = "."\nsegment_pooling = "sum"\n'
        "[training]\nupdates = 200\nmax_tokens = 1000\nlearning_rate = 0.004\nwarmup_updates = 30\n"
        'validate_every = 200\nsave_every = 50\nmetric = "exact_match"\nprecision = "fp32"\n'
    )
    main(["train", str(folder / "stories.toml"), "--out", str(folder / "model")], standalone_mode=False)
    return folder / "model"


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_answers_follow_the_last_sentence_about_a_name(model: Path, engine: str) -> None:
    asked = [line.split("\t") for line in stories(100, 3).splitlines()]
    found = translume.load(model, engine=engine).translate_all([question for question, _ in asked])
    assert sum(each.text == answer for each, (_, answer) in zip(found, asked, strict=True)) >= 90


def test_an_answer_is_traced_to_whole_sentences(model: Path) -> None:
    found = translume.trace(translume.load(model), STORY)
    assert [word.text for word in found.source_words] == STORY.replace(". ", ".|").split("|")
    occlusion = found.attributions[0].values[0][:3]  # without the question
    assert (found.target, occlusion.index(max(occlusion))) == ("garden", 2)
    assert found.attributions[0].baseline == "the source without the segment"


def test_what_needs_tokens_of_the_source_says_why_it_is_refused(model: Path, tmp_path: Path) -> None:
    setting = "model.segment_pooling = 'sum'"
    with pytest.raises(SettingsError) as error:
        translume.load(model).translate(STORY, alignment=True)
    assert str(error.value) == f"decoding.alignment: found true, must be false with {setting}"
    with pytest.raises(SettingsError) as error:
        next(train(translume.load(model).config.change("decoding.alignment=true"), tmp_path / "trained"))
    assert str(error.value) == f"decoding.alignment: found true, must be false with {setting}"
    with pytest.raises(SettingsError) as error:
        export(model, "ctranslate2", tmp_path / "exported")
    assert str(error.value) == (
        f"export: {model}: found {setting}, which only Translume reads; expected a model that reads tokens of text"
    )
    assert export(model, "translume", tmp_path / "own").difference == 0


def test_a_server_gives_the_details_of_an_answer_without_an_alignment(model: Path) -> None:
    models = ServedModels([ServedModel.from_model("stories", translume.load(model))])
    with TestClient(build_app(Server(models=models)), "http://localhost") as client:
        response = client.post("/v1/translate", json={"text": STORY, "detail": True})
    assert "alignment" not in response.json()["translations"][0]["hypotheses"][0]


def test_documents_are_translated_without_an_alignment(model: Path, tmp_path: Path, capsys) -> None:
    page = tmp_path / "story.html"
    page.write_text("<p>bob went to the <b>park</b> . where is bob ?</p>")
    main(["translate", str(model), str(page)], standalone_mode=False)
    assert capsys.readouterr().out == "<p><b>park</b></p>"
    main(["translate", str(model), str(page), "--alignment"], standalone_mode=False)
    assert capsys.readouterr().err == (
        "Error: decoding.alignment: found true, must be false with model.segment_pooling = 'sum'\n"
    )


def test_an_ensemble_reads_the_same_positions(model: Path) -> None:
    one = translume.load(model)
    other = replace(one.checkpoint, config=one.config.change("model.segment_separator=?"))
    with pytest.raises(SettingsError) as error:
        one.ensemble_with(Translator(other))
    assert str(error.value) == (
        "ensemble: model 2 has another model.segment_pooling or another separator than model 1, expected the same"
    )


def test_a_vocabulary_that_grows_keeps_its_separators(model: Path, tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text("zoe went to the zoo . where is zoe ?\tzoo\n" * 20)
    data = {"train": str(tmp_path / "new.tsv"), "valid": str(tmp_path / "new.tsv")}
    training = {"updates": 1, "warmup_updates": 1, "max_tokens": 500, "precision": "fp32"}
    config = Config.build({"data": data, "training": training, "tokenizer": {"extend": 3}})
    list(train(config, tmp_path / "grown", source=model))
    found = translume.load(tmp_path / "grown").checkpoint
    (ends,) = found.model.encoder.embedding.separators.nonzero()[:, 0].tolist()
    assert found.source_tokenizer.decode([ends]) == "."
    assert len(found.source_tokenizer) > len(translume.load(model).checkpoint.source_tokenizer)
