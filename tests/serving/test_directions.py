"""One model of several languages in a server: all of its directions, in every interface."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from translume.checkpoint import save_model
from translume.config import CorpusSettings, TokenizerSettings
from translume.serving.models import ServedModel
from translume.serving.work import Part, Translating
from translume.text import train_tokenizer
from translume.translator import Translator, load

ALPHABET = "abcdefghijklm nopqrstuvwxyz.!?"


class German:
    """A detector that takes every text for German."""

    def languages(self, text: str, among: Sequence[str]) -> list[tuple[str, float]]:
        assert list(among) == ["en", "de", "fr"]
        return [("de", 0.75)]


@pytest.fixture(scope="module")
def many(make: Callable[..., Translator], tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Return a translator en→de, de→en and en→fr; fr→de and others are zero-shot."""
    plain = make("decoding.beam=2", "decoding.max_length=7").checkpoint
    pieces = train_tokenizer(
        TokenizerSettings(kind="character", size=61, unknown="token"), [ALPHABET[:-3]], ("en", "de", "fr")
    )
    assert len(pieces) == len(plain.source_tokenizer)
    pairs = (("en", "de"), ("de", "en"), ("en", "fr"))
    config = plain.config.model_copy(
        update={
            "model": plain.config.model.model_copy(update={"language_tags": "target"}),
            "data": plain.config.data.model_copy(
                update={
                    "source_language": "",
                    "target_language": "",
                    "corpus": tuple(CorpusSettings(source_language=a, target_language=b) for a, b in pairs),
                }
            ),
        }
    )
    folder = tmp_path_factory.mktemp("many") / "many"
    save_model(folder, replace(plain, config=config, source_tokenizer=pieces, target_tokenizer=pieces))
    return load(folder, device="cpu", dtype="fp32")


@pytest.fixture(scope="module")
def server(start: Callable[..., Any], many: Translator) -> Any:
    return start(ServedModel.from_model("many", many), detector=German())


def text_of(many: Translator, to: str, from_: str) -> str:
    return many.translate("hello", to=to, from_=from_).text


def test_all_directions_are_listed(server: Any) -> None:
    listed = {each["code"]: each["targets"] for each in server.get("/languages").json()}
    assert listed == {"en": ["de", "fr"], "de": ["en"], "fr": []}
    (model,) = server.get("/v1/models").json()["models"]
    assert model["directions"] == [["en", "de"], ["de", "en"], ["en", "fr"]]


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en"), ("en", "fr")])
def test_a_request_names_its_direction(server: Any, many: Translator, source: str, target: str) -> None:
    wanted = text_of(many, target, source)
    given = {"source": source, "target": target}
    assert server.post("/translate", {"q": "hello", **given}).json() == {"translatedText": wanted}
    for named in (given, {"model": "many", **given}, {"model": f"many:{source}-{target}"}):
        found = server.post("/v1/translate", {"text": "hello", **named}).json()
        assert found["translations"][0]["text"] == wanted
    scored = server.post("/v1/score", {"sources": "hello", "targets": "abc", **given}).json()["scores"][0]
    assert scored["log_prob"] == pytest.approx(many.score("hello", "abc", to=target, from_=source).log_prob, abs=1e-3)
    shown = server.post("/v1/inspect", {"text": "hello", **given}).json()
    assert shown["trace"]["target"] == wanted


def test_lines_of_all_directions_share_a_batch_and_are_translated_as_alone(many: Translator) -> None:
    asked = [
        (text, {"from_": source, "to": target})
        for text in ("hello", "a man.", "no")
        for source, target in (("en", "de"), ("de", "en"), ("en", "fr"))
    ]
    given = [
        Translating(many, many.config.decoding.model_copy(update=codes)).shared([Part(text=text)])[0]
        for text, codes in asked
    ]
    (work,) = {shared for shared, _ in given}  # the scheduler and a running search join equal works
    batch = work.begin()
    batch.enter(dict(enumerate(item for _, item in given)))
    found = [result for _, result in sorted(batch.run(tuple).items())]
    assert [each.text for each in found] == [many.translate(text, **codes).text for text, codes in asked]
    assert len({each.text for each in found}) > len(asked) // 2
    sizes = [shared.size(item) for shared, item in given]
    assert sizes == [
        Translating(many, many.config.decoding.model_copy(update=codes)).size(Part(text=text)) for text, codes in asked
    ]


def test_the_source_is_detected_among_the_languages_of_the_model(server: Any, many: Translator) -> None:
    found = server.post("/translate", {"q": "hello", "source": "auto", "target": "en"}).json()
    assert found["detectedLanguage"] == {"confidence": 75.0, "language": "de"}
    assert found["translatedText"] == text_of(many, "en", "de")


def test_a_direction_that_is_not_offered_is_refused(server: Any) -> None:
    found = server.post("/translate", {"q": "hello", "source": "de", "target": "fr"})
    assert (found.status, found.json()["error"]) == (
        400,
        "French (fr) is not available as a target language from German (de)",
    )
    found = server.post("/v1/translate", {"text": "hello", "model": "many"})
    assert found.status == 422
    assert found.json()["error"].startswith("to: empty, expected one of the model's languages (--to): de, en, fr")
