"""A line that enters a search that is running is translated as it is alone, whenever it comes and whoever is there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from translume.config import DecodingSettings
from translume.errors import SettingsError, TranslumeError
from translume.model.state import DecoderState
from translume.translator import Entry, Joining, Translation, Translator, translate_entering
from translume.translator.batching import SHORTEST
from translume.translator.plan import Line, LineError

Make = Callable[..., Translator]

KNOBS: tuple[dict[str, object], ...] = (
    {"strategy": "greedy"},
    {"strategy": "greedy", "prefix": "ab"},
    {"strategy": "greedy", "speculation": "copy"},
    {"strategy": "beam", "beam": 4, "nbest": 3},
    {"strategy": "beam", "beam": 3, "utility": "chrf"},
    {"strategy": "beam", "beam": 2, "repetition_penalty": 1.5, "ban": ["a"]},
    {"strategy": "beam", "beam": 3, "coverage_penalty": 0.4, "stop": "first"},
    {"strategy": "beam", "beam": 3, "unsmooth": 0.1},
    {"strategy": "sampling", "samples": 3, "nbest": 2, "seed": 5},
    {"strategy": "stochastic", "samples": 3},
    {"strategy": "diverse", "beam": 4, "groups": 2, "nbest": 4},
    {"strategy": "beam", "beam": 3, "alignment": True},
)
ALL = [DecodingSettings.model_validate({"max_length": 9, **knobs}) for knobs in KNOBS]
AT_ONCE = Joining(steps=0)
"""Whoever comes enters at once."""
texts = st.one_of(st.text("abcz .", max_size=12), st.sampled_from(["Ab. C d. " * 7, "我们。", "12 ab 7"]))
comers = st.lists(
    st.tuples(texts, st.integers(0, len(ALL) - 1), st.integers(0, 7), st.booleans()), min_size=1, max_size=9
)


def coming(entries: Sequence[Entry], after: Sequence[int]) -> Callable[[int], list[Entry]]:
    """What gives each entry once it has been asked so many times; all that is left where nothing else would come."""
    waiting = sorted(range(len(entries)), key=lambda number: after[number])
    asked = 0

    def more(room: int) -> list[Entry]:
        nonlocal asked
        assert room > 0
        asked += 1
        came = [number for number in waiting if after[number] < asked]
        if not came and waiting:
            came = waiting[:1]  # nobody may be searched just now, and then it would end
        for number in came:
            waiting.remove(number)
        return [entries[number] for number in came]

    return more


def found(translator: Translator, entries: Sequence[Entry], after: Sequence[int], tokens: int) -> list[Translation]:
    """What becomes of each entry."""
    done: dict[Entry, Translation | TranslumeError] = {}
    come = coming(entries, after)
    for entry, result in translate_entering(translator, come, max_tokens=tokens, joining=AT_ONCE):
        assert entry not in done
        done[entry] = result
    results = [done[entry] for entry in entries]
    assert all(isinstance(result, Translation) for result in results)
    return [result for result in results if isinstance(result, Translation)]


def the_same(one: Translation, other: Translation) -> None:
    """Texts, warnings and tokens; numbers to what torch rounds by the number of rows."""
    assert (one.source, one.text, one.warnings, one.remarks) == (
        other.source,
        other.text,
        other.warnings,
        other.remarks,
    )
    for place, (mine, alone) in enumerate(zip(one.hypotheses, other.hypotheses, strict=True)):
        assert (mine.log_prob, mine.score) == pytest.approx((alone.log_prob, alone.score), abs=1e-4)
        # Of a line in parts the second best has one part's second best; of two equal parts, by rounding, either's.
        tied = place > 0 and mine.ids != alone.ids
        order = sorted if tied else list
        assert order(mine.token_log_probs) == pytest.approx(order(alone.token_log_probs), abs=1e-4)
        assert tied or replace(mine, **OF_NUMBERS) == replace(alone, **OF_NUMBERS)


OF_NUMBERS: dict[str, object] = {
    "log_prob": 0.0, "score": 0.0, "token_log_probs": (), "terms": None, "alignment": None, "model_calls": None,
}  # fmt: skip


@settings(max_examples=15)
@given(comers=comers, tokens=st.sampled_from([1, 40, 160, 4096]), fast=st.booleans())
def test_whenever_a_line_comes_it_is_translated_as_it_is_alone(
    both: list[Translator], comers: list[tuple[str, int, int, bool]], tokens: int, fast: bool
) -> None:
    told: list[list[str]] = [[] for _ in comers]
    entries = [
        Entry(
            line=Line(number=number % 3, text=text),
            settings=ALL[knobs],
            tell=told[number].append if listened else None,
        )
        for number, (text, knobs, _, listened) in enumerate(comers)
    ]
    results = found(both[fast], entries, [after for _, _, after, _ in comers], tokens)
    for entry, result, parts in zip(entries, results, told, strict=True):
        the_same(result, both[fast].translate(entry.line.text, settings=entry.settings))
        assert [len(part) for part in parts] == sorted({len(part) for part in parts})
        assert all(result.text.startswith(part) for part in parts)
        if entry.tell is not None:
            assert (parts[-1] if parts else "") == result.text.rstrip()


@pytest.fixture(scope="module")
def both(make: Make) -> list[Translator]:
    plain = make()
    return [plain, plain.compile()]


@settings(max_examples=10)
@given(
    comers=st.lists(
        st.tuples(st.sampled_from(["a b", "abc", "z"]), st.lists(st.sampled_from(["a", "b c", "zz"]), max_size=2)),
        min_size=1,
        max_size=5,
    ),
    after=st.lists(st.integers(0, 6), min_size=5, max_size=5),
)
def test_phrases_that_must_be_held_are_held_in_company_too(
    both: list[Translator], comers: list[tuple[str, list[str]]], after: list[int]
) -> None:
    how = DecodingSettings(strategy="beam", beam=3, max_length=9, ban=("zz",))
    entries = [Entry(line=Line(number=0, text=text, constraints=tuple(held)), settings=how) for text, held in comers]
    for (text, held), result in zip(comers, found(both[0], entries, after, 4096), strict=True):
        the_same(result, both[0].translate(text, settings=how, constraints=held))


def test_what_is_done_is_given_back_while_others_are_searched(make: Make) -> None:
    translator = make()
    long, short = (Line(number=number, text=text) for number, text in ((1, "abc " * 9), (2, "z")))
    unending = DecodingSettings(strategy="greedy", min_length=39)
    done = translate_entering(
        translator,
        coming(
            [Entry(line=long, settings=unending), Entry(line=short, settings=ALL[0])],
            [0, 3],
        ),
        joining=AT_ONCE,
    )
    assert [entry.line.number for entry, _ in done] == [2, 1]


def test_an_error_is_its_own_line_s_alone(make: Make) -> None:
    translator = make()
    usual, prefixed = ALL[0], DecodingSettings(strategy="greedy", prefix="我", max_length=9)
    unread = DecodingSettings(strategy="greedy", speculation="ngram")
    long = "a" * 60
    wanted = {1: None, 2: "a sentence has 60 tokens", 3: None, 4: "speculation", 5: "prefix"}
    entries = [
        Entry(line=Line(number=number, text=long if number == 2 else "abc"), settings=how)
        for number, how in ((1, usual), (2, usual), (3, usual), (4, unread), (5, prefixed))
    ]
    results = {entry.line.number: result for entry, result in translate_entering(translator, once(entries))}
    assert results.keys() == wanted.keys()
    for number, reason in wanted.items():
        result = results[number]
        if reason is None:
            assert isinstance(result, Translation)
            the_same(result, translator.translate("abc", settings=usual))
        else:
            assert isinstance(result, LineError if number == 2 else SettingsError)
            assert reason in str(result)


def once(entries: Sequence[Entry]) -> Callable[[int], Sequence[Entry]]:
    batches: Iterator[Sequence[Entry]] = iter([entries])
    return lambda room: next(batches, ())


def test_a_sentence_that_cannot_go_on_leaves_the_others_as_they_are(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = make("decoding.strategy='greedy'")
    model, usual = translator.checkpoint.model, translator.config.decoding
    broken = translator.checkpoint.source_tokenizer.encode("zzz")
    lines = [Line(number=number, text=text) for number, text in enumerate(["abc", "zzz", "de"], start=1)]
    wanted = [translator.translate(line.text) for line in lines]
    start = model.start

    def poisoned(source: Tensor, mask: Tensor) -> DecoderState:
        """Of the line "zzz" nothing is remembered that is a number."""
        state = start(source, mask)
        for row in (source[:, : len(broken)] == torch.tensor(broken)).all(1).nonzero()[:, 0]:
            for layer in state.cross:
                layer.keys[row] = float("nan")
        return state

    monkeypatch.setattr(model, "start", poisoned)
    entries = [Entry(line=line, settings=usual) for line in lines]
    results = {entry.line.number: result for entry, result in translate_entering(translator, once(entries))}
    assert isinstance(results[2], LineError)
    assert str(results[2]).startswith("line 2: token 1: ")
    for line, alone in zip((lines[0], lines[2]), (wanted[0], wanted[2]), strict=True):
        result = results[line.number]
        assert isinstance(result, Translation)
        the_same(result, alone)


def test_nobody_is_asked_while_there_is_no_room(make: Make) -> None:
    translator, rooms = make("decoding.strategy='greedy'", "decoding.min_length=20"), []
    usual = translator.config.decoding
    waiting = [Entry(line=Line(number=number, text="abc"), settings=usual) for number in range(12)]

    def more(room: int) -> list[Entry]:
        rooms.append(room)
        return [waiting.pop() for _ in range(min(len(waiting), 1 + room // SHORTEST))]

    budget = 4 * SHORTEST
    done = [entry for entry, _ in translate_entering(translator, more, max_tokens=budget, joining=AT_ONCE)]
    assert len(done) == 12
    assert rooms[0] == budget
    assert all(0 < room <= budget for room in rooms)


def test_others_enter_when_few_of_a_cohort_are_left_or_when_it_takes_long(make: Make) -> None:
    translator = make("decoding.strategy='greedy'")
    usual = translator.config.decoding
    unending, short = (usual.model_copy(update={"min_length": n, "max_length": n + 1}) for n in (39, 5))
    asked: list[int] = []

    def run(first: list[Entry], joining: Joining) -> tuple[list[int], int]:
        """The order in which lines are done where one more waits, and how often somebody was asked."""
        rest = iter([first, [Entry(line=Line(number=9, text="z"), settings=short)]])
        asked.clear()

        def more(room: int) -> list[Entry]:
            asked.append(room)
            return next(rest, [])

        done = [entry.line.number for entry, _ in translate_entering(translator, more, joining=joining)]
        return done, len(asked)

    alone = [Entry(line=Line(number=1, text="abc" * 9), settings=unending)]
    assert run(alone, Joining(share=0.25, steps=99)) == ([1, 9], 3)
    assert run(alone, Joining(share=0.25, steps=20))[0] == [9, 1]
    four = [Entry(line=Line(number=n, text="ab" if n < 4 else "abc" * 9), settings=OWN_LENGTH) for n in range(1, 5)]
    assert run(four, Joining(share=0.25, steps=99))[0] == [1, 2, 3, 9, 4]
    assert run(four, Joining(share=0.0, steps=99)) == ([1, 2, 3, 4, 9], 3)


OWN_LENGTH = DecodingSettings(strategy="greedy", min_length=39, max_length_ratio=1.0, max_length_extra=1)
"""As many target tokens as source tokens, and one more."""
