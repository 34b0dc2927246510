"""Markup is placed in translations: marks keep their order and enclose the translations of their words."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from translume.documents import FORMATS
from translume.documents.files import Document
from translume.documents.markup_placement import DEEPEST, LARGEST_TABLE, Sentence, _in_order, place_markup
from translume.documents.segments import Mark, Segment
from translume.documents.sentences import SplitSegments
from translume.translator import TextHypothesis, Translation
from translume.translator.results import Alignment

OPENING, CLOSING, OBJECT, STYLE_CHANGE, LINE_BREAK, ATTACHED, SCRIPT, SAME_STYLE = Mark


def translated(
    segment: Segment, change: Callable[[str], str], links: Callable[[int], list[tuple[int, int]]]
) -> tuple[str, ...]:
    """Translate sentences with `change`; `links` returns the word alignment for a number of words."""
    sheet = SplitSegments.from_segments([segment], "en")
    return next(sheet.join([done(line, change(line), links(len(line.split()))) for line in sheet.lines]))


def done(source: str, target: str, links: list[tuple[int, int]]) -> Translation:
    alignment = Alignment(source_tokens=(), weights=(), links=tuple(links))
    best = TextHypothesis(
        text=target, tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos", alignment=alignment
    )
    return Translation(source=source, text=target, hypotheses=(best,))


def monotone(words: int) -> list[tuple[int, int]]:
    return [(word, word) for word in range(words)]


def changed(file: Document, change: Callable[[str], str]) -> Any:
    """Return a document whose sentences are translated by a function, word by word."""
    sheet = SplitSegments.from_segments(file.segments, "en")
    return file.with_runs(
        list(sheet.join([done(line, change(line), monotone(len(line.split()))) for line in sheet.lines]))
    )


def reversed_links(words: int) -> list[tuple[int, int]]:
    return [(words - 1 - word, word) for word in range(words)]


def reverse_words(text: str) -> str:
    return " ".join(reversed(text.split()))


runs = st.lists(st.text(st.sampled_from("abC .,!?\n\u00a0é漢。"), max_size=12), min_size=1, max_size=6)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    found = draw(runs)
    marks = draw(st.lists(st.sampled_from(Mark), min_size=len(found) - 1, max_size=len(found) - 1))
    return Segment(runs=tuple(found), marks=tuple(marks))


@given(segments())
def test_unchanged_text_keeps_its_markup_exactly(segment: Segment) -> None:
    assert translated(segment, str, monotone) == segment.runs


@given(segments(), st.text(st.sampled_from("xyZ ,.漢字。"), max_size=30), st.booleans())
def test_no_character_is_lost_or_moved(segment: Segment, target: str, linked: bool) -> None:
    if segment.text == "":
        return
    found = place_markup(
        segment,
        [Sentence(begin=0, end=len(segment.text), spacing="", target=target, links=((0, 0), (9, 1)) if linked else ())],
    )
    assert len(found) == len(segment.runs)
    if target != segment.text:
        assert "".join("".join(found).split()) == "".join(target.split())


@given(segments())
def test_monotone_translations_keep_markup_around_the_same_words(segment: Segment) -> None:
    # The text changes, word by word.
    def doubled(text: str) -> str:
        return "".join(2 * each if each.isalnum() else each for each in text)

    found = translated(segment, doubled, monotone)
    for before, after, mark in itertools.zip_longest(segment.runs, found, segment.marks):
        assert "".join(after.split()) == "".join(doubled(before).split()) or mark is not None or len(found) > 1
    if all(run.strip() == "" or run.split() == [run.strip()] for run in segment.runs) and not _glued(segment):
        assert ["".join(run.split()) for run in found] == ["".join(doubled(run).split()) for run in segment.runs]


def _glued(segment: Segment) -> bool:
    """Return whether a word continues across a mark."""
    text = "\x00".join(segment.runs)
    return any(
        text[place] == "\x00" and not text[place - 1 : place].isspace() and not text[place + 1 : place + 2].isspace()
        for place in range(len(text))
    )


def test_tags_enclose_the_translations_of_the_words_they_enclosed() -> None:
    segment = Segment(runs=("Hello ", "bold", " world. And ", "it", "!"), marks=(OPENING, CLOSING, OPENING, CLOSING))
    assert translated(segment, str.upper, monotone) == ("HELLO ", "BOLD", " WORLD. AND ", "IT", "!")
    segment = Segment(runs=("I have seen a ", "red house", "."), marks=(OPENING, CLOSING))
    links = [(0, 0), (1, 1), (3, 2), (4, 3), (5, 4), (2, 5)]
    found = translated(segment, lambda _: "Ich habe ein rotes Haus gesehen.", lambda _: links)
    assert found == ("Ich habe ein ", "rotes Haus", " gesehen.")


def test_marks_keep_their_order_when_words_are_reversed() -> None:
    segment = Segment(runs=("", "a b", " c ", "d", ""), marks=(OPENING, CLOSING, OPENING, CLOSING))
    assert translated(segment, reverse_words, reversed_links) == ("", "d", " c b ", "a", "")


def test_spaces_are_placed_outside_tags_and_beside_objects() -> None:
    segment = Segment(runs=("Run ", " now, ", "", " ok "), marks=(OBJECT, OPENING, CLOSING))
    assert translated(segment, str.upper, monotone) == ("RUN ", " NOW, ", "", "OK ")
    segment = Segment(runs=("one,", "two three"), marks=(OPENING,))
    spaced = [(0, 0), (0, 1), (1, 2)]
    assert translated(segment, lambda _: "eins und drei", lambda _: spaced) == ("eins und ", "drei")


def test_a_target_without_spaces_is_split_proportionally() -> None:
    segment = Segment(runs=("I went ", "to the", " store"), marks=(OPENING, CLOSING))
    assert translated(segment, lambda _: "我去商店了", lambda _: []) == ("我去", "商店", "了")


def linked(source: str, target: str, words: Sequence[tuple[str, str]]) -> Sentence:
    """Return a sentence whose target words align with source words, which occur once each."""
    spans = ((source.index(a), source.index(a) + len(a), target.index(b), target.index(b) + len(b)) for a, b in words)
    return Sentence(begin=0, end=len(source), spacing="", target=target, word_links=tuple(spans))


def test_tags_do_not_cut_words_of_a_script_without_spaces() -> None:
    segment = Segment(runs=("The ", "Danish", " language is nice."), marks=(OPENING, CLOSING))
    words = [("Danish", "丹麦"), ("language", "语"), ("is", "很"), ("nice", "美丽"), (".", "。")]
    found = place_markup(segment, [linked(segment.text, "丹麦语很美丽。", words)])
    assert found == ("", "丹麦", "语很美丽。")
    words = [("Danish", "丹麦语"), ("nice", "很美丽"), (".", "。")]
    found = place_markup(segment, [linked(segment.text, "丹麦语很美丽。", words)])
    assert found == ("", "丹麦语", "很美丽。")


def test_tags_enclose_words_of_a_source_without_spaces() -> None:
    segment = Segment(runs=("我喜欢", "丹麦语", "。"), marks=(OPENING, CLOSING))
    words = [("我", "I"), ("喜欢", "like"), ("丹麦语", "Danish"), ("。", ".")]
    assert place_markup(segment, [linked(segment.text, "I like Danish.", words)]) == ("I like ", "Danish", ".")


def test_words_of_other_scripts_are_not_cut_without_an_alignment() -> None:
    segment = Segment(runs=("Buy ", "a", " phone"), marks=(OPENING, CLOSING))
    found = translated(segment, lambda _: "买iPhone15手机", lambda _: [])
    assert "".join(found) == "买iPhone15手机"
    assert [run for run in found if "iPhone15" in run]


def test_sentences_of_scripts_without_spaces_are_joined_without_a_space() -> None:
    segment = Segment(runs=("One. ", "Two."), marks=(OPENING,))
    assert translated(segment, lambda text: "一。" if "O" in text else "二。", monotone) == ("一。", "二。")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.sets(st.integers(0, 4), max_size=4))
def test_the_monotone_assignment_agrees_with_as_many_words_as_possible(owners: list[int], speaking: set[int]) -> None:
    depths = [0, 1, 0, 2, 9]
    found = _in_order(owners, speaking, depths)
    filled = speaking if len(owners) >= len(speaking) else set()
    possible = [
        path
        for path in itertools.combinations_with_replacement(sorted({*owners, *speaking}), len(owners))
        if filled <= set(path)
    ]
    assert tuple(found) in possible
    assert worth(found, owners, depths) == max(worth(path, owners, depths) for path in possible)


def worth(path: Sequence[int], owners: Sequence[int], depths: Sequence[int]) -> tuple[int, int]:
    agreed = sum(one == other for one, other in zip(path, owners, strict=True))
    return agreed, -sum(min(depths[one], DEEPEST) for one, other in zip(path, owners, strict=True) if one != other)


def test_long_inputs_avoid_the_quadratic_table() -> None:
    owners = [place * 7 % 3000 for place in range(3000)]
    assert len(owners) * len(set(owners)) > LARGEST_TABLE
    assert _in_order(owners, set(owners), [0] * 3000) == list(itertools.accumulate(owners, max))


def test_line_breaks_are_kept() -> None:
    segment = Segment(runs=("I went to", "the store."), marks=(LINE_BREAK,))
    assert translated(segment, str.upper, monotone) == ("I WENT TO", "THE STORE.")


@given(segments(), st.data())
def test_kept_runs_stay_whole_in_any_order(segment: Segment, data: st.DataObject) -> None:
    words = [run for run, text in enumerate(segment.runs) if text.strip()]
    kept = frozenset(data.draw(st.sets(st.sampled_from(words)))) if words else frozenset[int]()
    segment = Segment(runs=segment.runs, marks=segment.marks, kept=kept)
    if not segment.has_letters:
        return
    target = data.draw(st.text(st.sampled_from("abC .,é漢。"), max_size=20))
    links = data.draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=5))
    found = place_markup(
        segment, [Sentence(begin=0, end=len(segment.text), spacing="", target=target, links=tuple(links))]
    )
    assert sorted(" ".join(found[run].split()) for run in kept) == sorted(
        " ".join(segment.runs[run].split()) for run in kept
    )


def test_many_tags_take_linear_time() -> None:
    cues = ("- <i>" * 20_000, "<i>a</i> " * 5000, "a<i>.</i>" * 5000, "<i>" * 30_000 + "a", "a\n" * 10_000)
    pages = ("<p>" + "a<sup>[1]</sup>" * 3000, "a<!-- -->" * 5000, "<ruby>a<rt>b" * 8000)
    files = [(".srt", f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n") for text in cues]
    for suffix, text in [*files, *((".html", text) for text in pages)]:
        before = time.process_time()
        changed(FORMATS[suffix].read(text.encode()), str.swapcase)
        assert time.process_time() - before < 3
