"""Prefix, ban and vocabulary rules hold for the output text, whatever tokens spell it."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import DecodingSettings, ShortlistSettings, SoftmaxSettings
from translume.config import TokenizerSettings as Kind
from translume.errors import DataError, SettingsError, TranslationError
from translume.text import train_tokenizer
from translume.translator import Translator
from translume.translator.constraints import word_character

from .conftest import untrained

CORPUS = [
    "ein mann geht mit einem hund über die straße .",
    "zwei hunde und ein kind laufen , der mann sitzt !",
    "hundert männer mögen den hund und die katze .",
    "das mädchen hat einen roten ball .",
] * 3
KINDS = {
    "bpe": Kind(kind="bpe", size=331, lowercase=True),
    "unigram": Kind(kind="unigram", size=311, lowercase=True),
    "character": Kind(kind="character", size=61, unknown="token"),
    "byte": Kind(kind="byte"),
    "word": Kind(kind="word", size=53, unknown="token"),
}
kinds = pytest.mark.parametrize("kind", sorted(KINDS))
few = settings(deadline=None, max_examples=7)
strategies = st.sampled_from(["greedy", "beam", "sampling", "diverse", "stochastic"])
words = st.sampled_from(" ".join(CORPUS).split())
seeds = st.integers(0, 10**6)
ASCII = b"abcdefghijklmnopqrstuvwxyz .,!"
_made: dict[str, Translator] = {}


def translator_of(kind: str) -> Translator:
    """Return a model with random weights and sampled output for a kind of vocabulary; cached."""
    if kind not in _made:
        tokenizer = train_tokenizer(KINDS[kind], CORPUS)
        head = SoftmaxSettings(tie="all", bias=True)
        made = untrained(
            tokenizer, tokenizer, "decoding.max_length_extra=5", attention_heads=2, max_positions=97, head=head
        )
        # Without this, most output would be bytes that are not valid text.
        bytes_ = [id_ for id_, each in enumerate(tokenizer.spellings) if len(each) == 1 and each not in ASCII]
        made.checkpoint.model.head.bias.data[bytes_] = -30.0
        _made[kind] = made
    return _made[kind]


def chosen(strategy: str, **options: object) -> DecodingSettings:
    fields = {"strategy": strategy, "beam": 3, "samples": 3, "nbest": 1 if strategy == "greedy" else 3, **options}
    return DecodingSettings.model_validate(fields)


def texts_of(kind: str, settings: DecodingSettings, sources: tuple[str, ...] = ("ein hund", "zwei")) -> list[str]:
    found = translator_of(kind).translate_all(sources, settings=settings)
    return [hypothesis.text for each in found for hypothesis in each.hypotheses]


def contains_words(text: str, phrase: str) -> bool:
    """Return whether the phrase occurs in the text as whole words, checked position by position."""
    for match in re.finditer(f"(?={re.escape(phrase)})", text):
        begin, end = match.start(), match.start() + len(phrase)
        before = begin > 0 and word_character(text[begin - 1]) and word_character(phrase[0])
        after = end < len(text) and word_character(text[end]) and word_character(phrase[-1])
        if not before and not after:
            return True
    return False


def word_in(text: str) -> str:
    """Return a word that occurs in the text as a whole word."""
    return next(part for part in re.findall(r"[a-zäöüß]+|[.,!]", text) if contains_words(text, part))


@kinds
@few
@given(strategies, st.lists(words, min_size=1, max_size=3), words, st.data())
def test_every_target_begins_with_the_prefix_even_within_a_word(
    kind: str, strategy: str, whole: list[str], last: str, data: st.DataObject
) -> None:
    part = last[: data.draw(st.integers(0, len(last)))]
    prefix = " ".join([*whole, part])
    wanted = translator_of(kind).checkpoint.target_tokenizer.normalise(prefix)
    for text in texts_of(kind, chosen(strategy, prefix=prefix)):
        assert text.startswith(wanted)


@kinds
@few
@given(strategies, st.lists(words, min_size=1, max_size=2), seeds)
def test_no_target_contains_a_banned_phrase(kind: str, strategy: str, phrases: list[str], seed: int) -> None:
    # Words of the unrestricted output are banned, too: a random model would rarely produce the given phrases.
    options = {"seed": seed} if strategy in ("sampling", "stochastic") else {}
    free = texts_of(kind, chosen(strategy, **options))
    banned = [*phrases, *(text[:5].strip() for text in free), *(word for text in free for word in text.split()[:1])]
    phrases = [phrase for phrase in dict.fromkeys(banned) if phrase.strip() and "\ufffd" not in phrase]
    phrases = [phrase for phrase in phrases if not phrase.startswith("@")]
    normalise = translator_of(kind).checkpoint.target_tokenizer.normalise
    for text in texts_of(kind, chosen(strategy, ban=tuple(phrases), **options)):
        assert not any(contains_words(text, " ".join(normalise(phrase).split())) for phrase in phrases)


@kinds
def test_a_ban_removes_a_phrase_from_the_output(kind: str) -> None:
    free = texts_of(kind, chosen("greedy"))[0]
    phrase = word_in(free)
    assert not contains_words(texts_of(kind, chosen("greedy", ban=(phrase,)))[0], phrase)


@kinds
@few
@given(strategies, st.lists(words, min_size=1, max_size=5))
def test_a_target_consists_of_the_allowed_tokens(
    tmp_path_factory: pytest.TempPathFactory, kind: str, strategy: str, allowed: list[str]
) -> None:
    path = tmp_path_factory.mktemp("allowed") / "words"
    path.write_text("\n".join(allowed) + "\n\n", encoding="utf-8")
    tokenizer = translator_of(kind).checkpoint.target_tokenizer
    usable = {id_ for word in allowed for id_ in tokenizer.encode(word)} | {tokenizer.specials.eos}
    usable |= {id_ for id_, piece in enumerate(tokenizer.pieces()) if piece in allowed}
    for each in translator_of(kind).translate_all(["ein hund"], settings=chosen(strategy, vocabulary=str(path))):
        assert all(set(hypothesis.ids) <= usable for hypothesis in each.hypotheses)


def test_a_prefix_may_be_spelled_by_any_tokens() -> None:
    translator = translator_of("bpe")
    tokenizer = translator.checkpoint.target_tokenizer
    found = translator.translate("zwei", settings=chosen("sampling", prefix="ein mann", samples=30, nbest=30))
    begins = {tuple(tokenizer.encode(found.text))} | {hypothesis.ids[:3] for hypothesis in found.hypotheses}
    assert len(begins) > 2
    assert {hypothesis.text[:8] for hypothesis in found.hypotheses} == {"ein mann"}


@pytest.mark.parametrize(
    ("kind", "prefix", "message"),
    [
        ("character", "ein Ж", "decoding.prefix: found 'Ж' after 'ein ', expected text that tokens of the target's "),
        ("character", "Ж", "decoding.prefix: found 'Ж', expected text that tokens of the target's "),
        ("word", "ein zug", "decoding.prefix: found ' zug' after 'ein', expected text that tokens of the target's "),
    ],
)
def test_a_prefix_that_no_tokens_spell_is_refused_before_any_text_is_read(kind: str, prefix: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        translator_of(kind).translate_all(["zwei"], settings=chosen("greedy", prefix=prefix))
    assert str(error.value) == f"{message}vocabulary spell"


def test_a_prefix_must_be_spelled_by_the_allowed_tokens(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("hund\nein\n", encoding="utf-8")
    with pytest.raises(SettingsError) as error:
        texts_of("word", chosen("greedy", vocabulary=str(path), prefix="ein mann"))
    assert str(error.value) == (
        "decoding.prefix: found ' mann' after 'ein', expected text that tokens of decoding.vocabulary spell"
    )
    allowed = texts_of("word", chosen("beam", vocabulary=str(path), prefix="ein hun"))
    assert all(text.startswith("ein hund") for text in allowed)


def test_an_invalid_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "words"
    with pytest.raises(DataError) as missing:
        texts_of("word", chosen("greedy", vocabulary=str(path)))
    assert str(missing.value) == f"decoding.vocabulary: {path}: cannot be read: No such file or directory"
    with pytest.raises(DataError) as missing:
        texts_of("word", chosen("greedy", ban=(f"@{path}",)))
    assert str(missing.value) == f"decoding.ban: {path}: no such file"
    path.write_text("hund\n\nzug\n", encoding="utf-8")
    with pytest.raises(SettingsError) as unspelled:
        texts_of("word", chosen("greedy", vocabulary=str(path)))
    assert str(unspelled.value) == f"{path}:3: found 'zug', expected text of the target's tokens"
    path.write_text("\n \n", encoding="utf-8")
    with pytest.raises(SettingsError) as empty:
        texts_of("word", chosen("greedy", vocabulary=str(path)))
    assert str(empty.value) == f"decoding.vocabulary: {path} allows no token, expected a word or a token a line"


def test_bans_can_be_listed_in_the_settings_or_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "banned"
    free = word_in(texts_of("bpe", chosen("greedy"))[0])
    path.write_text(f"{free}\n\n", encoding="utf-8")
    direct = texts_of("bpe", chosen("greedy", ban=(free,)))
    assert texts_of("bpe", chosen("greedy", ban=(f"@{path}",))) == direct
    assert not any(contains_words(text, free) for text in direct)
    assert texts_of("bpe", chosen("greedy", ban=("@@nobody",))) == texts_of("bpe", chosen("greedy"))
    with pytest.raises(SettingsError) as error:
        texts_of("bpe", chosen("greedy", ban=(" ",)))
    assert str(error.value) == "decoding.ban: found a text without a word, expected a word or a phrase"
    with pytest.raises(SettingsError) as broken:
        texts_of("bpe", chosen("greedy", ban=("a\ufffd",)))
    assert str(broken.value) == "decoding.ban: found 'a\ufffd', expected text; U+FFFD is what cannot be read as text"


def test_a_prefix_outside_a_shortlist_gives_a_one_line_error() -> None:
    tokenizer = train_tokenizer(KINDS["word"], CORPUS)
    head = ShortlistSettings(frequent=3, candidates=1)
    made = untrained(tokenizer, tokenizer, attention_heads=2, max_positions=97, head=head)
    made.checkpoint.model.head.always.copy_(torch.tensor([tokenizer.specials.eos, 7, 8, 9], dtype=torch.int32))
    listed = {7, 8, 9}
    off = next(word for word in " ".join(CORPUS).split() if not listed & set(tokenizer.encode(word)))
    with pytest.raises(TranslationError) as error:
        made.translate("zwei", settings=chosen("beam", prefix=off))
    assert str(error.value) == (
        "text: token 1: every next token is impossible or forbidden, expected one that is neither "
        "(rules: ForbidTokens, TextPrefix); model.head.kind = 'shortlist' holds most tokens for impossible, "
        "those of decoding.prefix perhaps"
    )
