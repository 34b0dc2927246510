"""/v1/generate returns the language model's own texts, whole or in parts."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.serving.conftest import refused

from translume.config import DecodingSettings
from translume.serving.models import ServedModel
from translume.translator import Generator, Translator


@pytest.fixture(scope="module")
def plays(start: Callable[..., Any], generator: Generator, translator: Translator) -> Any:
    served = (ServedModel.from_model("en-de", translator), ServedModel.from_model("plays", generator))
    return start(*served, texts=5, characters=300, width=6)


def test_texts_are_those_of_the_generator(plays: Any, generator: Generator) -> None:
    prompts = ["a cab", "", "x"]
    answer = plays.post("/v1/generate", prompt=prompts, detail=True).json()
    assert answer["model"] == "plays"
    for prompt, found in zip(prompts, answer["generations"], strict=True):
        wanted = generator.generate(prompt)
        (text,) = found["texts"]
        (hypothesis,) = wanted.hypotheses
        assert (found["text"], found["prompt_tokens"]) == (wanted.text, len(prompt))
        assert found["generated_tokens"] == len(hypothesis.ids)
        assert (text["tokens"], text["finished_by"]) == (list(hypothesis.tokens), hypothesis.finished_by)
        assert text["token_log_probs"] == pytest.approx(hypothesis.token_log_probs, abs=1e-4)


def test_a_request_may_change_decoding_settings(plays: Any, generator: Generator) -> None:
    changes = {"strategy": "sampling", "samples": 3, "nbest": 3, "top_p": 0.9, "seed": 4, "max_length": 7}
    (found,) = plays.post("/v1/generate", prompt="a", **changes).json()["generations"]
    wanted = generator.generate("a", settings=DecodingSettings.model_validate(changes))
    assert [each["text"] for each in found["texts"]] == [each.text for each in wanted.hypotheses]


def events(answer: Any) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in answer.body.decode().split("\n\n") if block]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in blocks]


def test_streamed_parts_are_the_text_of_the_response(plays: Any) -> None:
    body = {"prompt": ["a cab", "x"], "strategy": "sampling", "max_length": 60}  # beyond the context
    found = events(plays.post("/v1/generate", stream=True, **body))
    (kind, whole) = found[-1]
    assert kind == "done"
    assert whole == plays.post("/v1/generate", **body).json()
    for place, generation in enumerate(whole["generations"]):
        parts = [value["text"] for kind, value in found[:-1] if kind == "text" and value["place"] == place]
        assert "".join(parts) == generation["text"]


def test_stop_strings_end_a_text_and_are_not_sent(plays: Any) -> None:
    body = {"prompt": "a cab", "strategy": "sampling", "max_length": 25, "min_length": 25}
    whole = plays.post("/v1/generate", **body).json()["generations"][0]["text"]
    found = events(plays.post("/v1/generate", stream=True, stop_strings=[whole[7:10], "never"], **body))
    (kind, answer) = found[-1]
    (generation,) = answer["generations"]
    wanted = whole[: whole.index(whole[7:10])]
    assert kind == "done"
    assert (generation["text"], generation["texts"][0]["finished_by"]) == (wanted, "stop")
    assert "".join(value["text"] for kind, value in found[:-1] if kind == "text") == wanted


def test_the_server_describes_a_language_model(plays: Any, live: Any) -> None:
    (model,) = [each for each in plays.get("/v1/models").json()["models"] if each["name"] == "plays"]
    assert (model["offers"], model["max_positions"]) == (["generate"], 40)
    assert plays.get("/health/ready").status == 200
    assert refused(live.post("/v1/generate", prompt="a")) == (
        "404 no_generator model: this server has no language model"
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": 5}, "422 invalid_value prompt: found 5, expected a string or a list of strings"),
        ({"prompt": "a" * 41}, "422 text_too_long prompt: the prompt has 41 tokens, expected at most 39"),
        ({"model": "play"}, "404 unknown_model model: no such language model; did you mean 'plays'?"),
        ({"max_length": 5000}, "422 invalid_value max_length: found 5,000, expected at most 4,096"),
        ({"alignment": True}, "422 invalid_value alignment: found True, must be False for a language model"),
        ({"to": "de"}, "422 invalid_value to: found 'de', must be '' for a language model"),
        ({"stop": "b"}, "422 invalid_value stop: found 'b', expected 'optimal' or 'first'; stop_strings has texts"),
        ({"source": "en"}, "422 unknown_field source: no such field"),
    ],
)
def test_invalid_requests_get_a_one_line_error(plays: Any, fields: dict[str, Any], said: str) -> None:
    assert refused(plays.post("/v1/generate", {"prompt": "a", **fields})).startswith(said)
