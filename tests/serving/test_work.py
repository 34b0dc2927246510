"""Texts translated in one batch get the results they get alone; lines keep the white space between them."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.translator.conftest import untrained

from translume.config import DecodingSettings, TokenizerSettings
from translume.errors import TranslumeError
from translume.kernels.loading import has_kernels
from translume.serving.api.errors import RequestError
from translume.serving.scheduler import Scheduler
from translume.serving.work import LineBatch, Paragraphs, Part, Scoring, Translating
from translume.text import train_tokenizer
from translume.translator import Translation, Translator
from translume.translator.planning import FULL_BATCH_WIDTH

Make = Callable[..., Translator]
TOLERANCE = 1e-4

words = st.text("abcdefghijklmnop", min_size=1, max_size=4)
lines = st.lists(words, max_size=2).map(" ".join)


def close(one: Translation, other: Translation) -> bool:
    return (one.source, one.text, len(one.hypotheses)) == (other.source, other.text, len(other.hypotheses)) and all(
        a.ids == b.ids and abs(a.log_prob - b.log_prob) < TOLERANCE
        for a, b in zip(one.hypotheses, other.hypotheses, strict=True)
    )


@given(text=st.text("ab \t\r\n\x0b\u2003", max_size=20))
def test_lines_and_gaps_join_to_the_original_text(text: str) -> None:
    parts = Paragraphs.from_text(text)
    woven = "".join(gap + line for gap, line in zip(parts.gaps, [*parts.lines, ""], strict=True))
    assert woven == text
    if "\n" in text or "\r" in text:
        assert all(line == line.strip() != "" for line in parts.lines)


def test_mixed_concurrent_requests_get_the_results_they_get_alone(make: Make) -> None:
    translators = [make("decoding.beam=3"), make("decoding.beam=2", seed=5)]
    kinds = [
        {"strategy": "greedy"},
        {"beam": 4, "nbest": 3},
        {"strategy": "sampling", "samples": 2, "nbest": 2, "seed": 7},
        {"prefix": "ab"},
        {},
    ]
    draw = random.Random(11)

    def text() -> str:
        return " ".join("".join(draw.choices("abcdefgh", k=draw.randint(1, 4))) for _ in range(draw.randint(0, 3)))

    works = []
    for _ in range(40):
        translator, kind = draw.choice(translators), draw.choice(kinds)
        settings = translator.config.decoding.model_copy(update=kind)
        settings = settings.model_copy(update={"max_length": 9})
        works.append((Translating(translator, settings), [Part(text=text()) for _ in range(draw.randint(1, 3))]))
    scheduler = Scheduler(queue=2000, batch_tokens=512, lanes=2)
    try:
        futures = [
            scheduler.submit(work.shared(items), [work.size(item) for item in items], 60) for work, items in works
        ]
        for (work, items), found in zip(works, futures, strict=True):
            for each, future in zip(items, found, strict=True):
                assert close(future.result(60), work.translator.translate(each.text, settings=work.settings))
    finally:
        scheduler.close(60)


def results(work: Translating, items: list[Part]) -> list[Translation | TranslumeError]:
    """Return the results of items in one batch of each work."""
    batches: dict[Translating, LineBatch] = {}
    found: dict[int, Translation | TranslumeError] = {}
    for number, (shared, item) in enumerate(work.shared(items)):
        batches.setdefault(shared, shared.begin()).enter({number: item})
    for batch in batches.values():
        found |= batch.run(tuple)
    return [found[number] for number in range(len(items))]


def test_a_sentence_that_is_too_long_fails_alone(translator: Translator) -> None:
    work = Translating(translator, translator.config.decoding)
    with pytest.raises(RequestError) as caught:
        work.size(Part(text="a" * 50))
    assert str(caught.value) == 'a sentence has 50 tokens, expected at most 40; "max_length_action": "truncate" cuts it'
    assert (caught.value.status, caught.value.code) == (422, "text_too_long")
    first, refused, last = results(work, [Part(text=text) for text in ("a b", "a" * 50, "c d")])
    assert isinstance(refused, RequestError)
    assert [str(first), str(last)] == [translator.translate(text).text for text in ("a b", "c d")]


def test_only_the_first_line_of_a_text_begins_with_the_prefix(translator: Translator) -> None:
    settings = translator.config.decoding.model_copy(update={"prefix": "xyz"})
    items = [Part(text="a b"), Part(text="c d", first=False), Part(text="e")]
    first, rest, other = results(Translating(translator, settings), items)
    assert str(first) == translator.translate("a b", settings=settings).text
    assert str(rest) == translator.translate("c d").text
    assert str(other) == translator.translate("e", settings=settings).text


def test_sizes_count_tokens_with_end_of_sentence_and_at_least_16(translator: Translator) -> None:
    def size(text: str, **options: int) -> int:
        return Translating(translator, DecodingSettings(beam=2).model_copy(update=options)).size(Part(text=text))

    assert size("a" * 20) == len(translator.checkpoint.source_tokenizer.encode("a" * 20)) + 1
    assert size("a") == 16
    assert size("a", beam=16) == 16 * 16 // FULL_BATCH_WIDTH


def test_scores_equal_those_of_the_translator_and_long_texts_are_refused(translator: Translator) -> None:
    work = Scoring(translator)
    pairs = [("a b", "c"), ("d", "")]
    batch = work.begin()
    batch.enter(dict(enumerate(pairs)))
    assert list(batch.run(tuple).values()) == list(translator.score_all(pairs))
    assert work.size(("a b", "c")) == len(translator.checkpoint.source_tokenizer.encode("a b")) + 1
    with pytest.raises(RequestError) as caught:
        work.size(("a", "b" * 45))
    assert str(caught.value) == "the target has 46 tokens with EOS, expected at most 41"
    assert (caught.value.status, caught.value.code, caught.value.field) == (422, "text_too_long", "target")


@pytest.mark.skipif(not has_kernels(), reason="no kernels")
def test_a_line_counts_more_where_its_keys_and_values_need_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), ["abcdefghij .!"])
    translator = untrained(tokenizer, tokenizer, "decoding.beam=2", "decoding.max_length=30").compile("fp32")
    work, item, engine = Translating(translator, translator.config.decoding), Part(text="abc"), translator.engine
    assert engine is not None
    usual, source, shape = work.size(item), len(tokenizer.encode("abc")) + 1, engine.decoder.shape
    held = engine.cache_bytes(source, 30, 2)
    assert held == 2 * shape.count * shape.heads * shape.head_size * 4 * (source + 2 * 30)
    monkeypatch.setattr("translume.serving.work.TOKEN_CACHE_BYTES", held / (usual + 5))
    assert work.size(item) == usual + 5
