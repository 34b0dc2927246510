"""Stable prefixes reported during a search begin the final target."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import DecodingSettings
from translume.translator import Translator
from translume.translator.planning import Line

Make = Callable[..., Translator]

texts = st.lists(st.text("abcz .!\u200b", max_size=12), min_size=1, max_size=3)
longer = st.lists(
    st.lists(st.sampled_from(["Abc.", "A b c!", "Z?", "我。", "\u200b."]), min_size=9, max_size=12), max_size=1
)
knobs = st.sampled_from(
    [
        {"strategy": "greedy"},
        {"strategy": "greedy", "prefix": "ab"},
        {"strategy": "beam", "beam": 4, "nbest": 3},
        {"strategy": "beam", "beam": 3, "utility": "chrf"},
        {"strategy": "beam", "beam": 3, "repetition_penalty": 1.5, "length_penalty": -0.5},
        {"strategy": "beam", "beam": 3, "coverage_penalty": 0.4, "stop": "first"},
        {"strategy": "beam", "beam": 3, "placeholders": ["number"]},
        {"strategy": "sampling", "samples": 3, "nbest": 2},
        {"strategy": "stochastic", "samples": 3},
        {"strategy": "diverse", "beam": 4, "groups": 2, "nbest": 4},
    ]
)


def targets_and_prefixes(
    translator: Translator, lines: list[str], settings: DecodingSettings
) -> tuple[list[str], list[list[str]]]:
    """Return the targets of lines, and the prefixes reported for each before."""
    said: list[list[str]] = [[] for _ in lines]
    numbered = [Line(number=number, text=text) for number, text in enumerate(lines, start=1)]
    tell = {number: said[number - 1].append for number in range(1, len(lines) + 1)}
    found = list(translator.translate_lines(numbered, settings, tell))
    assert found == list(translator.translate_lines(numbered, settings))
    return [each.text for each in found], said


@pytest.fixture(scope="module")
def both(make: Make) -> list[Translator]:
    """Return a translator that writes characters, and one that writes bytes, several of which may form a character."""
    return [make(), make(shared=False)]


@settings(max_examples=20)
@given(short=texts, long=longer, options=knobs, bytewise=st.booleans())
def test_reported_prefixes_begin_the_target_and_grow(
    both: list[Translator], short: list[str], long: list[list[str]], options: dict[str, object], bytewise: bool
) -> None:
    translator = both[bytewise]
    chosen = DecodingSettings.model_validate({"max_length": 9, **options})
    targets, said = targets_and_prefixes(translator, [*short, *map(" ".join, long)], chosen)
    for target, parts in zip(targets, said, strict=True):
        assert all(target.startswith(part) for part in parts)
        assert [len(part) for part in parts] == sorted({len(part) for part in parts})
        assert (parts[-1] if parts else "") == target.rstrip()


def test_greedy_search_reports_every_character_immediately(both: list[Translator]) -> None:
    targets, said = targets_and_prefixes(both[0], ["abc de"], DecodingSettings(strategy="greedy"))
    assert len(targets[0]) > 5
    assert said[0] == [text for n in range(1, len(targets[0]) + 1) if not (text := targets[0][:n])[-1].isspace()]


def test_a_part_is_reported_only_after_all_parts_before_it(both: list[Translator]) -> None:
    """The second sentence is longer, so it is searched first."""
    line = "Ab. " + "C" * 30 + ". " + "D " * 5
    targets, said = targets_and_prefixes(both[0], [line], DecodingSettings(strategy="greedy", max_length=9))
    first = both[0].translate("Ab.", settings=DecodingSettings(strategy="greedy", max_length=9)).text
    assert said[0][0] != targets[0][: len(said[0][0]) + 1]
    assert len(said[0][0]) <= len(first)
    assert said[0][-1] == targets[0].rstrip()


def test_only_lines_with_a_callback_are_observed(both: list[Translator]) -> None:
    said: list[str] = []
    lines = [Line(number=number, text=text) for number, text in enumerate(["abc", "de", "fgh"], start=1)]
    found = list(both[0].translate_lines(lines, DecodingSettings(strategy="greedy"), {2: said.append}))
    assert said[-1] == found[1].text.rstrip()
    assert all(found[1].text.startswith(each) for each in said)


def test_the_cancel_check_is_called_after_every_step(both: list[Translator]) -> None:
    translator, settings = both[0], DecodingSettings(beam=2, max_length=7, min_length=7)
    lines = [Line(number=1, text="a"), Line(number=2, text="b c")]
    asked: list[int] = []

    def three_times() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise KeyError("enough")

    found = list(translator.translate_lines(lines, settings, None, lambda: asked.append(0)))
    assert found == list(translator.translate_lines(lines, settings))
    assert len(asked) == 1 + 7
    asked.clear()
    with pytest.raises(KeyError):
        list(translator.translate_lines(lines, settings, None, three_times))
    assert asked == [1, 1, 1]
