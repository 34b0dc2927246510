"""The automaton of banned phrases and the tables of prefixes: what they recognise, and what building them costs."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.decoding.text_rules import HIT, SPACES, START, PhraseAutomaton, Spellings, TextPrefix

WHITE = " \t\n"
CHARACTERS = "ab é×-字ß"
texts = st.text(CHARACTERS + WHITE, max_size=15)
phrases = st.lists(st.text(CHARACTERS, min_size=1, max_size=7).filter(str.strip), min_size=1, max_size=4)


def is_letter(character: str) -> bool:
    return character in "abéß"


def states(phrases: list[str], text: str) -> list[tuple[bool, bool]]:
    """Return, after each character of a text: whether a phrase has occurred in it, and whether it may not end there.

    Phrases are followed one by one, each from every character at which it may begin.
    """
    begun: set[tuple[str, int, int]] = set()  # phrase, characters of it that were read, white space read last
    before, pending, found = False, False, []
    for character in text:
        word = is_letter(character)
        if pending and not word:
            return [*found, (True, True)]
        starts = {(phrase, 0, 0) for phrase in phrases if not (before and is_letter(phrase[0]))}
        after = set()
        for phrase, place, white in begun | starts:
            wanted = phrase[place : place + 1]
            if character in WHITE and 0 < white < SPACES:
                after.add((phrase, place, white + 1))
            if wanted == (" " if character in WHITE else character):
                after.add((phrase, place + 1, int(character in WHITE)))
        ended = {phrase for phrase, place, _ in after if place == len(phrase)}
        if any(not is_letter(phrase[-1]) for phrase in ended):
            return [*found, (True, True)]
        begun, before, pending = after, word, bool(ended)
        found.append((False, pending))
    return found


@settings(deadline=None, max_examples=60)
@given(phrases, texts, st.lists(st.integers(0, 5), max_size=3))
def test_the_automaton_is_in_the_state_of_the_phrases_followed_one_by_one(
    banned: list[str], text: str, places: list[int]
) -> None:
    banned = [" ".join(each.split()) for each in banned]
    for place in places:  # occurrences that a random text would rarely have
        text = f"{text[: 3 * place]}{banned[place % len(banned)]}{text[3 * place :]}"
    automaton = PhraseAutomaton(banned, is_letter, "字")
    state, said = START, []
    for character in text:
        for byte in character.encode():
            state = automaton.table[state, byte]
        said.append((bool(state == HIT), bool(automaton.ends[state])))
        if state == HIT:
            break
    assert said == states(banned, text)


@pytest.mark.parametrize("phrase", ["ab " * 664, "a" * 2000, "a a b " * 333], ids=["ab ab ab", "aaa", "a a b"])
def test_a_phrase_that_repeats_itself_is_built_in_linear_time(phrase: str) -> None:
    started = time.process_time()
    automaton = PhraseAutomaton([phrase.strip()], is_letter)
    assert time.process_time() - started < 0.7  # 2.6 s when each state held all phrases begun
    assert len(automaton.table) < 3 * len(phrase)


def test_a_long_prefix_is_built_in_linear_time() -> None:
    spellings = Spellings([b"", b"", b"a", b"b", b"ab", b"ba b", b" "])
    started = time.process_time()
    TextPrefix(spellings, b"ab " * 7000, [True])
    assert spellings.reach(b"ab " * 7000 + b"c") == 21_000
    assert time.process_time() - started < 2
