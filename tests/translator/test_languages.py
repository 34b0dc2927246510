"""Models of several languages: tags in the source and after BOS, and the choice of a direction."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from translume import trace
from translume.config import DataSettings, TokenizerSettings
from translume.errors import DataError, SettingsError
from translume.inspection import record_beam
from translume.text import Tokenizer, train_tokenizer
from translume.translator import Translator

from .conftest import untrained

TEXT = "hello there."
LANGUAGES = ("en", "de", "fr")


def tokenizer(languages: Sequence[str] = LANGUAGES) -> Tokenizer:
    return train_tokenizer(
        TokenizerSettings(kind="character", size=61, unknown="token"), ["abcdefghijklm nopqrstuvwxyz.!?"], languages
    )


@pytest.fixture(scope="module")
def build() -> Callable[..., Translator]:
    """Return translators with random weights between English, German and French."""

    def made(tags: str, *options: str, data: DataSettings | None = None) -> Translator:
        pieces = tokenizer() if tags != "none" else tokenizer(())
        return untrained(
            pieces, pieces, "decoding.beam=3", "decoding.max_length=7", *options, seed=3, data=data, encoder_layers=2,
            decoder_layers=2, max_positions=41, language_tags=tags,
        )  # fmt: skip

    return made


@pytest.fixture(scope="module", params=["source", "target"])
def translator(request: pytest.FixtureRequest, build: Callable[..., Translator]) -> Translator:
    return build(request.param)


@torch.no_grad()
def log_probs_by_hand(translator: Translator, text: str, ids: Sequence[int], to: str, from_: str) -> list[float]:
    """Score a target with the plain model, whose inputs are written out here."""
    checkpoint, pieces = translator.checkpoint, translator.checkpoint.source_tokenizer
    tags, specials = pieces.languages, pieces.specials
    begins = [specials.bos]
    first = tags[to]
    if checkpoint.config.model.language_tags == "target":
        first, begins = tags[from_], [specials.bos, tags[to]]
    source = torch.tensor([[first, *pieces.encode(text), specials.eos]])
    state = checkpoint.model.start(source, torch.ones_like(source, dtype=torch.bool))
    found = []
    for place, label in enumerate(ids):
        belief, state = checkpoint.model.step(torch.tensor([[*begins, *ids[:place]]]), state)
        found.append(float(belief.log_probs()[0, label]))
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"beam": 1}, {"strategy": "sampling"}, {"coverage_penalty": 0.2}, {"alignment": True}, {"prefix": "ab"}],
    ids=str,
)
def test_every_search_reads_the_tags_and_counts_only_its_own_tokens(
    translator: Translator, options: dict[str, Any]
) -> None:
    for to in ("de", "fr"):
        best = translator.translate(TEXT, to=to, from_="en", **options).hypotheses[0]
        wanted = log_probs_by_hand(translator, TEXT, best.ids, to, "en")
        assert best.token_log_probs == pytest.approx(wanted, abs=1e-4)
        assert translator.score(TEXT, best, to=to, from_="en").token_log_probs == pytest.approx(wanted, abs=1e-4)
        fast = translator.compile().translate(TEXT, to=to, from_="en", **options)
        assert fast.hypotheses[0].ids == best.ids
        assert fast.hypotheses[0].log_prob == pytest.approx(sum(wanted), abs=1e-3)


def test_the_target_language_changes_the_translation(translator: Translator) -> None:
    german, french = (translator.translate(TEXT, to=to, from_="en").hypotheses[0] for to in ("de", "fr"))
    assert german.log_prob != french.log_prob


def test_a_trace_has_the_log_probabilities_of_the_translation(translator: Translator) -> None:
    settings = translator.config.decoding.model_copy(update={"to": "fr", "from_": "de"})
    best = translator.translate(TEXT, settings=settings).hypotheses[0]
    parts = ("attention", "prior", "lens", "occlusion", "occlusion-mask", "input-gradient")
    found = trace(translator, TEXT, settings=settings, show=parts)
    assert [step.log_p_model for step in found.steps] == pytest.approx(best.token_log_probs, abs=1e-4)
    assert found.source_tokens[0].text in ("__de__", "__fr__")
    assert found.attention is not None
    for layer in found.attention.decoder:
        assert layer is not None
        for head in layer:
            assert [len(row) for row in head] == [len(best.ids)] * len(best.ids)
            assert [sum(row) for row in head] == pytest.approx([1.0] * len(best.ids), abs=1e-4)
    record = record_beam(translator, TEXT, settings=settings)
    assert record.finished[0].log_prob == pytest.approx(best.log_prob, abs=1e-4)


def test_no_text_is_encoded_to_a_tag_and_decoding_drops_tags() -> None:
    pieces = tokenizer()
    assert pieces.languages == {"en": 4, "de": 5, "fr": 6}
    assert not set(pieces.encode("__de__ __fr__")) & set(pieces.languages.values())
    assert pieces.tokens([5]) == ["__de__"]
    assert pieces.decode([5, *pieces.encode("abc"), 6]) == "abc"
    again = Tokenizer.from_json(pieces.to_json())
    assert again.languages == pieces.languages
    assert again.digest == pieces.digest
    assert "languages" not in tokenizer(()).to_json()


def test_a_damaged_tag_is_an_error() -> None:
    text = tokenizer().to_json().replace('"fr": 6', '"fr": 600')
    with pytest.raises(DataError, match=r"^t.json: damaged: the special id 600 is not one of the \d+ of"):
        Tokenizer.from_json(text, "t.json")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"to": "fra"}, "decoding.to: found 'fra'; did you mean 'fr'?"),
        ({"to": "zh"}, "decoding.to: found 'zh'; the model translates en→de, en→fr, de→en, de→fr, fr→en, fr→de"),
        ({"from_": "en"}, "decoding.to: empty, expected one of the model's languages (--to): en, de, fr"),
        (
            {"to": "de", "from_": "de"},
            "decoding.to: found de→de; the model translates en→de, en→fr, de→en, de→fr, fr→en, fr→de",
        ),
    ],
    ids=["misspelt", "unknown", "no target", "same"],
)
def test_errors_name_the_languages_of_the_model(translator: Translator, given: Any, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        translator.translate(TEXT, **given)
    assert str(error.value) == message


def test_only_a_model_that_reads_the_language_of_the_source_needs_it(build: Callable[..., Translator]) -> None:
    assert build("source").translate(TEXT, to="de").text
    with pytest.raises(SettingsError) as error:
        build("target").translate(TEXT, to="de")
    assert str(error.value) == "decoding.from_: empty, expected one of the model's languages (--from): en, de, fr"


def test_the_languages_in_data_and_decoding_are_defaults(build: Callable[..., Translator]) -> None:
    data = DataSettings(source_language="en", target_language="de")
    tuned = build("target", data=data)
    assert str(tuned.direction()) == "en→de"
    assert str(tuned.direction(to="fr")) == "en→fr"
    assert str(build("target", "decoding.to=fr", data=data).direction()) == "en→fr"
    plain = build("none", data=data)
    assert plain.translate(TEXT, to="de").text == plain.translate(TEXT).text
    with pytest.raises(SettingsError, match=r"^decoding.to: found 'fr'; the model translates en→de$"):
        plain.translate(TEXT, to="fr")
    with pytest.raises(SettingsError, match=r"^decoding.to: found 'fr', but the model does not name its languages"):
        build("none").translate(TEXT, to="fr")
