"""The demo's corpus: its size, unambiguous pairs, unseen test sentences, and values formatted by CLDR."""

from itertools import pairwise
from pathlib import Path

import pytest

from translume.errors import SettingsError

pytest.importorskip("babel", reason="the demo's extra is not installed")

from translume.experiments.demo import (
    CITIES,
    COUNTRIES,
    DRAWS,
    LANGUAGES,
    MEN,
    SLOT,
    WOMEN,
    DemoCorpus,
    fill,
    format_value,
    make_corpus,
    phrase_languages,
    read_phrases,
)

LANGUAGE_PAIRS = list(pairwise([*phrase_languages(), phrase_languages()[0]]))


@pytest.fixture(scope="module")
def english_chinese() -> DemoCorpus:
    return make_corpus("en", "zh", pairs=40_000)


def sentences(corpus: DemoCorpus, part: str, side: int) -> list[str]:
    return [pair[side] for pair in getattr(corpus, part)]


def test_forty_thousand_pairs_are_made_and_the_parts_share_no_sentence(english_chinese: DemoCorpus) -> None:
    sizes = [len(english_chinese.train), len(english_chinese.valid), len(english_chinese.test)]
    assert sizes == [40_000, 1000, 1000]
    for side in (0, 1):
        parts = [set(sentences(english_chinese, part, side)) for part in ("train", "valid", "test")]
        assert not parts[2] & parts[0]
        assert not parts[2] & parts[1]
        assert not parts[1] & parts[0]


def test_the_test_pairs_are_drawn_from_the_same_phrases_as_the_training_pairs(english_chinese: DemoCorpus) -> None:
    def share(part: str) -> float:
        texts = sentences(english_chinese, part, 0)
        return sum(text.startswith("When does the next bus to ") for text in texts) / len(texts)

    assert share("train") > 0
    assert share("test") < 0.005


@pytest.mark.parametrize(("source", "target"), LANGUAGE_PAIRS)
def test_every_source_has_one_target_and_every_target_one_source(source: str, target: str) -> None:
    corpus = make_corpus(source, target, pairs=1500, held_out=250)
    pairs = [*corpus.train, *corpus.valid, *corpus.test]
    assert len(pairs) == 2000
    for side in (0, 1):
        assert len({pair[side] for pair in pairs}) == len(pairs)
    for pair in pairs:
        for text in pair:
            assert text == " ".join(text.split())
            assert not set(text) & set("{}\u00a0\u202f\n\t")


def test_a_seed_determines_the_corpus() -> None:
    first, again, other = (make_corpus("de", "fr", pairs=300, held_out=50, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.train != other.train


def test_phrases_are_distinct_and_have_the_same_slots_in_every_language() -> None:
    for phrase in read_phrases(()):
        assert set(phrase) == set(phrase_languages())
        slots = {language: sorted(match[1] for match in SLOT.finditer(text)) for language, text in phrase.items()}
        assert len({tuple(names) for names in slots.values()}) == 1, phrase["en"]
        for name in slots["en"]:
            assert name.removesuffix("2") in DRAWS, name
    for language in phrase_languages():
        texts = [phrase[language] for phrase in read_phrases(())]
        assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("language", phrase_languages())
def test_names_are_in_cldr_and_distinct(language: str) -> None:
    for kind, names in (
        ("city", CITIES),
        ("country", COUNTRIES),
        ("language", LANGUAGES),
        ("name", (*WOMEN, *MEN)),
    ):
        said = [format_value((kind, name), language) for name in names]
        assert len(set(said)) == len(said), kind
        if language == "zh":
            assert not [text for text in said if text.isascii()], kind


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (("date", 2024, 3, 5), ["March 5, 2024", "2024年3月5日", "5. März 2024", "5 mars 2024", "5 de marzo de 2024"]),
        (
            ("fulldate", 2024, 3, 5),
            [
                "Tuesday, March 5, 2024",
                "2024年3月5日星期二",
                "Dienstag, der 5. März 2024",
                "mardi 5 mars 2024",
                "martes, 5 de marzo de 2024",
            ],
        ),
        (("time", 15, 5), ["3:05 PM", "15:05", "15:05", "15:05", "15:05"]),
        (("weekday", 0), ["Monday", "星期一", "Montag", "lundi", "lunes"]),
        (("month", 3), ["March", "三月", "März", "mars", "marzo"]),
        (("number", 51234), ["51,234", "51,234", "51.234", "51 234", "51.234"]),
        (("percent", 45), ["45%", "45%", "45 %", "45 %", "45 %"]),
        (("price", "USD", 1234.5), ["$1,234.50", "US$1,234.50", "1.234,50 $", "1 234,50 $US", "1.234,50 US$"]),
        (("amount", "EUR", 750), ["750 euros", "750欧元", "750 Euro", "750 euros", "750 euros"]),
        (("unit", "duration-hour", 3), ["3 hours", "3小时", "3 Stunden", "3 heures", "3 horas"]),
        (
            ("unit", "length-kilometer", 12.5),
            ["12.5 kilometers", "12.5公里", "12,5 Kilometer", "12,5 kilomètres", "12,5 kilómetros"],
        ),
    ],
)
def test_values_are_formatted_as_in_cldr(value: tuple[str | int | float, ...], said: list[str]) -> None:
    assert [format_value(value, language) for language in ("en", "zh", "de", "fr", "es")] == said


def test_french_elision_and_the_spanish_e_before_i() -> None:
    city = {"city": ("city", "Europe/Athens")}
    assert fill("La lettre de {city}.", city, "fr") == "La lettre d'Athènes."
    language = {"language": ("language", "de"), "language2": ("language", "en")}
    assert fill("Elle apprend {language:le}.", language, "fr") == "Elle apprend l'allemand."
    assert fill("Habla {language} y {language2}.", language, "es") == "Habla alemán e inglés."
    assert fill("Elle apprend {language:le}.", {"language": ("language", "fr")}, "fr") == "Elle apprend le français."


def test_writing_twice_leaves_the_files_unchanged(tmp_path: Path) -> None:
    corpus = make_corpus("en", "es", pairs=120, held_out=20)
    corpus.write(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    corpus.write(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert sorted(before) == ["test.en", "test.es", "train.en", "train.es", "valid.en", "valid.es"]
    assert (tmp_path / "test.en").read_text(encoding="utf-8").splitlines() == [source for source, _ in corpus.test]


def test_a_language_without_phrases_is_refused_and_known_ones_are_listed() -> None:
    with pytest.raises(SettingsError) as caught:
        make_corpus("en", "xx", pairs=100)
    assert str(caught.value) == "--languages: the demo has no phrases in 'xx'; known: en, zh, de, fr, es"
