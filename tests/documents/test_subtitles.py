"""Subtitles (SRT and WebVTT) are translated with their times unchanged."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documents.test_markup_placement import changed
from tests.errors import raises

from translume.documents import FORMATS
from translume.documents.sentences import SplitSegments
from translume.errors import DocumentError


def translated(text: str, change: Callable[[str], str] = str.upper) -> str:
    return changed(FORMATS[".srt"].read(text.encode()), change).decode()


SUBTITLES = """1
00:00:01,000 --> 00:00:02,500 X1:2
I went to
the <i>store</i>.

2
0:0:3.5 --> 00:00:04,000
- Hello.
{\\an8}- Hi there.

12

3
00:00:05,000 --> 00:00:06,000

4
00:00:07,000 --> 00:00:08,000
{curly} 50 %
"""


def test_only_text_is_translated() -> None:
    wanted = SUBTITLES
    for each in ("I went to", "the <i>store</i>", "Hello", "Hi there", "{curly}"):
        wanted = wanted.replace(each, each.upper().replace("<I>", "<i>").replace("</I>", "</i>"))
    assert translated(SUBTITLES) == wanted
    for text in (SUBTITLES, SUBTITLES.replace("\n", "\r\n"), f"\ufeff{SUBTITLES}", "", " \n"):
        assert translated(text, str) == text


def test_a_sentence_continues_across_lines_but_not_across_speakers() -> None:
    lines = SplitSegments.from_segments(FORMATS[".srt"].read(SUBTITLES.encode()).segments, "en").lines
    assert lines == ("I went to the store.", "Hello.", "Hi there.", "{curly} 50 %")


def test_identifiers_of_webvtt_are_no_text_of_the_subtitle_before() -> None:
    text = "WEBVTT\n\nfirst\n00:01.000 --> 00:02.000\nab\ncd\n\n4a5c-77/12-0\n00:03.000 --> 00:04.000\nef\n"
    assert translated(text) == text.replace("ab\ncd", "AB\nCD").replace("ef", "EF")


def test_webvtt_is_translated() -> None:
    text = (
        "WEBVTT kind\n\nNOTE a b\n\nSTYLE\n::cue {}\n\n00:01.000 --> 00:02.000 line:0\n<v Ann>Hi <00:01.500>you\n\n"
        "NOTE x\ny\n\nan id\n00:03.000 --> 00:04.000\nz"
    )
    assert translated(text) == text.replace("Hi ", "HI ").replace("you", "YOU").replace("\nz", "\nZ")


def test_readings_stay_behind_their_words() -> None:
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\n<ruby>Tokyo<rt>toukyou</rt>, a<rt.b>c</ruby> d\n"
    assert translated(text) == text.replace("Tokyo", "TOKYO").replace(" a<", " A<").replace(" d\n", " D\n")


def test_webvtt_names_the_language_of_its_texts() -> None:
    text = "WEBVTT - a\nKind: captions\nLanguage: en\n\n00:01.000 --> 00:02.000\nLanguage: b\n"
    document = FORMATS[".vtt"].read(text.encode())
    found = document.with_runs([["Sprache: c"]], "de").decode()
    assert found == text.replace("Language: en", "Language: de").replace("Language: b", "Sprache: c")


words = st.lists(
    st.sampled_from(["a", "Bc.", "<i>d</i>", "- e", "12", "{\\an8}f", "\u2028", "é"]), min_size=1, max_size=5
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**7),
            st.integers(0, 10**5),
            # pysubs2 takes a line with a number, and white space such as U+2028, for the number of the next subtitle.
            st.lists(words.map(" ".join).filter(lambda line: line.strip() != "12"), min_size=1, max_size=3).map(
                "\n".join
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_subtitle_parser_finds_the_same_times_and_words(cues: list[tuple[int, int, str]]) -> None:
    pysubs2 = pytest.importorskip("pysubs2", reason="pysubs2 is not installed")
    text = "".join(
        f"{number}\n{stamp(begin)} --> {stamp(begin + length)}\n{words}\n\n"
        for number, (begin, length, words) in enumerate(cues, start=1)
    )
    assert translated(text, str) == text
    before, after = (pysubs2.SSAFile.from_string(each, "srt") for each in (text, translated(text, str.swapcase)))
    assert [(each.start, each.end) for each in after] == [(each.start, each.end) for each in before]
    assert len(before) == len(cues)
    assert [len(each.plaintext.split()) for each in after] == [len(each.plaintext.split()) for each in before]


def stamp(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02},{rest:03}"


@given(st.text(st.sampled_from("12:,.->\n <>/iab-{}\\N"), max_size=80))
def test_arbitrary_text_is_refused_or_kept_unchanged(text: str) -> None:
    with suppress(DocumentError):
        assert translated(text, str) == text


def test_a_text_without_times_is_refused() -> None:
    with raises(DocumentError, "found no line with times, such as 00:00:01,000 --> 00:00:02,500"):
        translated("a b\nc")
