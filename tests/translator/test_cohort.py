"""Lines that share a search have the results that they have alone, whenever they enter."""

import pytest
import torch
from tests.translator.conftest import ALPHABET

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, ModelSettings, SoftmaxSettings, TokenizerSettings
from translume.engine import build_engine
from translume.kernels.loading import has_kernels
from translume.text import train_tokenizer
from translume.translator import Translator
from translume.translator.cohort import Cohort
from translume.translator.planning import Line, LineError

TEXTS = ["ab c.", "the", "a much longer sentence, with more words", "x. y! z?", " ", "qrs tuv", "zyx wvu ts"]
pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")


def built(positions: int) -> Translator:
    """A translator whose layers, logits, keys and values the kernels compute, whatever is faster on this machine."""
    torch.manual_seed(7)
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [ALPHABET])
    settings = ModelSettings(
        width=32, attention_heads=2, feed_forward=48, encoder_layers=1, decoder_layers=2, max_positions=positions,
        head=SoftmaxSettings(tie="none"),
    )  # fmt: skip
    model = build_model(settings, len(tokenizer), len(tokenizer)).eval()
    with torch.no_grad():
        model.head.weight.mul_(3.0)
        model.head.bias[tokenizer.specials.eos] += 1.5
    engine = build_engine(model)
    config = Config(model=settings).change("decoding.split=always", "decoding.max_length_ratio=2")
    return Translator(
        Checkpoint(config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer), engine
    )


@pytest.fixture(scope="module")
def translator() -> Translator:
    return built(47)


@pytest.mark.parametrize("settings", [
    {"strategy": "greedy"},
    {"strategy": "beam", "beam": 4, "nbest": 3},
    {"strategy": "beam", "beam": 3, "utility": "chrf"},
    {"strategy": "beam", "beam": 3, "ban": ["ab", "q"], "prefix": "th", "repetition_penalty": 1.3},
    {"strategy": "diverse", "beam": 4, "groups": 2},
])  # fmt: skip
def test_lines_that_enter_one_after_another_have_the_results_that_they_have_alone(translator, settings):
    chosen = translator._choose("translate", None, settings)
    cohort, found, said = Cohort(translator, chosen), {}, {number: [] for number in range(0, len(TEXTS), 2)}
    for number, text in enumerate(TEXTS):
        watched = {number: said[number].append} if number in said else {}
        cohort.enter({number: Line(number=number, text=text)}, watched)
        assert bool(cohort._apart) == (bool(text.strip()) and chosen.strategy == "diverse")
        found |= cohort.run()
    while cohort:
        found |= cohort.run()
    assert [found[number] for number in range(len(TEXTS))] == [
        translator.translate(text, settings=chosen) for text in TEXTS
    ]
    for number, prefixes in said.items():
        assert prefixes == sorted(set(prefixes), key=len)
        assert all(found[number].text.startswith(prefix) for prefix in prefixes)
        assert not found[number].text.strip() or prefixes[-1] == found[number].text.rstrip()


def test_the_certain_beginning_is_reported_before_the_line_is_done(translator):
    cohort, said = Cohort(translator, translator.config.decoding.model_copy(update={"strategy": "greedy"})), []
    cohort.enter({"a": Line(number=1, text=TEXTS[2])}, {"a": said.append})
    assert not cohort.run()
    assert said


def test_a_removed_line_gives_nothing_and_the_others_go_on(translator):
    cohort = Cohort(translator, translator.config.decoding)
    cohort.enter({name: Line(number=1, text=name * 9) for name in "abc"}, {})
    found = cohort.run(lambda: ["b"])
    while cohort:
        found |= cohort.run()
    assert sorted(found) == ["a", "c"]
    assert found["c"] == translator.translate("c" * 9)


def test_a_line_that_cannot_be_translated_fails_alone(translator):
    cohort = Cohort(translator, translator.config.decoding)
    lines = {"long": Line(number=1, text="a" * 60), "held": Line(number=2, text="ab", constraints=("xyz",)),
             "good": Line(number=3, text="ab")}  # fmt: skip
    cohort.enter(lines, {})
    found = {}
    while cohort:
        found |= cohort.run()
    assert isinstance(found["long"], LineError)
    assert str(found["long"]).startswith("line 1: a sentence has 60 tokens, expected at most 46; decoding.max_length")
    assert "xyz" in found["held"].text
    assert found["good"] == translator.translate("ab")


def test_each_line_is_given_back_when_it_is_done_and_one_that_is_given_up_is_not(translator):
    settings = translator.config.decoding.model_copy(update={"strategy": "greedy"})
    texts, unneeded = ["a", TEXTS[2], "b" * 60, "x" * 40], set[int]()
    lines = [Line(number=number, text=text) for number, text in enumerate(texts, start=1)]
    found = {}
    cohort = Cohort(translator, settings)
    cohort.enter(dict(enumerate(lines)), {})
    while cohort:
        for number, result in cohort.run(lambda: unneeded).items():
            found[number] = str(result)
            unneeded.add(3)
    assert found.keys() == {0, 1, 2}
    assert found[1] == translator.translate(TEXTS[2], settings=settings).text
    assert found[2].startswith("line 3: a sentence has 60 tokens, expected at most 46; ")


def test_a_search_of_20_000_forced_steps_ends_at_once_when_it_is_not_needed() -> None:
    """A deadline or a client that left is seen after a few steps of the kernels, not after a target."""
    translator = built(20_001)
    lengths = {"min_length": 20_000, "max_length": 20_000, "max_length_ratio": 20_000.0}
    settings = translator.config.decoding.model_copy(update={"beam": 2, **lengths})
    cohort = Cohort[str](translator, settings)
    cohort.enter({"late": Line(number=0, text="ab"), "other": Line(number=1, text="c d")}, {})
    search = cohort._search
    assert search is not None  # the kernels search
    assert cohort.run() == {}
    assert len(cohort) == 2
    assert cohort.run(lambda: ["late"]) == {}
    assert len(cohort) == 1
    assert cohort.run(lambda: ["other"]) == {}
    assert (len(cohort), search.live) == (0, 0)
    cohort.close()
    asked = []

    def check_cancelled() -> None:
        asked.append(None)
        if len(asked) == 5:
            raise KeyError("deadline")

    with pytest.raises(KeyError, match="deadline"):
        list(translator.translate_lines([Line(number=0, text="ab")], settings, None, check_cancelled))
    assert len(asked) == 5
