"""The JSON of a translation: alignment, score, warnings."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import DecodingSettings
from translume.translator import Translation, Translator
from translume.translator.alignment import cross_attention
from translume.translator.planning import padded_arrays, tensors_of

Make = Callable[..., Translator]
words = st.lists(st.text("abcde", min_size=1, max_size=5), min_size=1, max_size=4).map(" ".join)


@given(texts=st.lists(words, min_size=1, max_size=4), max_tokens=st.sampled_from([1, 4096]))
def test_alignments_of_every_hypothesis_are_complete(translator: Translator, texts: list[str], max_tokens: int) -> None:
    settings = DecodingSettings(beam=2, nbest=2, alignment=True, max_tokens=max_tokens)
    for text, found in zip(texts, translator.translate_all(texts, settings=settings), strict=True):
        for hypothesis in found.hypotheses:
            alignment = hypothesis.alignment
            assert alignment is not None
            assert len(alignment.weights) == len(hypothesis.tokens)
            assert len(alignment.source_tokens) == len(text) + 1
            for row in alignment.weights:
                assert len(row) == len(text) + 1
                assert sum(row) == pytest.approx(1, abs=1e-5)
            assert [target for _, target in alignment.links] == list(range(len(hypothesis.text.split())))
            assert all(0 <= source < len(text.split()) for source, _ in alignment.links)
            words = [(text[a:b], hypothesis.text[c:d]) for a, b, c, d in alignment.word_links]
            assert "".join(word for _, word in words) == "".join(hypothesis.text.split())
            assert {word for word, _ in words} <= {*text.split()}


@settings(max_examples=13)
@given(texts=st.lists(words, min_size=2, max_size=4))
def test_an_alignment_does_not_depend_on_the_batch(translator: Translator, texts: list[str]) -> None:
    settings = DecodingSettings(beam=2, alignment=True)
    for text, found in zip(texts, translator.translate_all(texts, settings=settings), strict=True):
        alone = translator.translate(text, settings=settings)
        together, apart = found.hypotheses[0].alignment, alone.hypotheses[0].alignment
        assert together is not None
        assert apart is not None
        torch.testing.assert_close(torch.tensor(together.weights), torch.tensor(apart.weights), atol=1e-5, rtol=0)


def test_the_alignment_pass_equals_the_attention_during_search(make: Make) -> None:
    checkpoint = make("decoding.beam=2").checkpoint  # one decoder layer, whose attention the search can return
    source, mask = tensors_of(padded_arrays([[5, 6, 7, 2], [9, 2]], 0), torch.device("cpu"))
    target = torch.tensor([[1, 11, 12], [1, 13, 5]])
    with torch.no_grad():
        found = cross_attention(checkpoint.model, source, mask, target)
        state = checkpoint.model.start_with_attention(source, mask)
        for place in range(3):
            _, state = checkpoint.model.step(target[:, : place + 1], state)
            torch.testing.assert_close(found[:, place], state.attention, atol=1e-5, rtol=0)


def test_each_word_is_linked_to_the_word_with_the_most_attention() -> None:
    from translume.translator.alignment import _links, _words

    from_words = _words("ab c", [(0, 1), (1, 2), (2, 4)])
    to_words = _words("x yz", [(0, 1), (1, 3), (3, 4), (4, 4)])
    assert from_words.tolist() == [[1, 1, 0], [0, 0, 1]]
    assert to_words.tolist() == [[1, 0, 0, 0], [0, 1, 1, 0]]
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.0, 0.1, 0.1], [0.9, 0.0, 0.0]])
    assert _links(weights, from_words, to_words) == ((1, 0), (0, 1))


def test_alignment_is_optional_and_absent_for_texts_translated_in_parts(make: Make) -> None:
    translator = make("decoding.beam=2", max_positions=12)
    assert translator.translate("Abc def.").hypotheses[0].alignment is None
    settings = translator.config.decoding.model_copy(update={"alignment": True})
    assert translator.translate("Abc def.", settings=settings).hypotheses[0].alignment is not None
    assert translator.translate("Abc def. Ghi jkl!", settings=settings).hypotheses[0].alignment is None
    assert translator.translate(" ", settings=settings) == Translation(source=" ", text="")


def test_json_contains_the_alignment_and_warnings_by_kind(make: Make) -> None:
    translator = make("decoding.max_length=3", "decoding.alignment=true", "decoding.beam=2")
    found = translator.translate("abc de")
    read = json.loads(json.dumps(found.to_dict()))
    assert (found.warnings, found.quality_warnings) == (
        (),
        ("truncated: the target reached its limit of tokens before its end",),
    )
    assert read["warnings"] == [
        {"kind": "truncated", "detail": "the target reached its limit of tokens before its end"}
    ]
    (hypothesis,) = read["hypotheses"]
    assert len(hypothesis["alignment"]["weights"]) == len(hypothesis["token_log_probs"]) == 3
    assert hypothesis["alignment"]["source_tokens"] == [*"abc", "▁", *"de", "</s>"]
    assert hypothesis["finished_by"] == "length"
    silent = translator.translate("abc", settings=DecodingSettings(beam=2))
    assert "alignment" not in silent.to_dict()["hypotheses"][0]


def test_a_lost_placeholder_is_a_warning(make: Make) -> None:
    translator = make("decoding.strategy='sampling'", "decoding.placeholders=['tag']", "decoding.samples=1")
    found = translator.translate("a <b> c")
    assert "placeholder_lost: '<b>' is not in the target" in found.warnings
    assert translator.translate("a c").warnings == ()
    assert found.to_dict()["warnings"][0] == {"kind": "placeholder_lost", "detail": "'<b>' is not in the target"}
