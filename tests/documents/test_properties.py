"""Java properties keep everything but the values, in an encoding that Java reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documents.marked import translated, variants
from tests.documents.test_markup_placement import changed

from translume.documents import FORMATS

CASES = {
    "separators": ("a=b\nc : d\ne f\ng\th\n i  =  j", "a=B\nc : D\ne F\ng\tH\n i  =  J"),
    "comments and blank lines": ("# a\n! b=c\n\n  # d\ne=\nf", "# a\n! b=c\n\n  # d\ne=\nf"),
    "keys with escapes": ("a\\ b\\:c=d\n\\#e=f", "a\\ b\\:c=D\n\\#e=F"),
    "lines that go on": ("a=b \\\n   c\nd=\\\n  e\r\nf=g\\\\\nh=i", "a=B C\nd=\\\n  E\r\nf=G\\\\\nh=I"),
    "escapes": ("a=\\u00fc \\t\\\\b\nc=\\ d\\nE", "a=\\u00dc \\t\\\\B\nc=\\ D\\nE"),
    "a pattern": ("a=it''s {0}, '{0}' {1,number,#.#}\nb=it's", "a=IT''S {0}, '{0}' {1,number,#.#}\nb=IT'S"),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_translated_and_all_else_stays(name: str) -> None:
    text, expected = CASES[name]
    assert translated(".properties", text) == expected


@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        ("a=u", "ascii", "a=\\u5b57\\u00fc"),
        ("a=ü", "iso8859-1", "a=\\u5b57ü"),
        ("a=ü", "utf-8", "a=字ü"),
    ],
)
def test_characters_are_written_as_java_reads_the_file(text: str, encoding: str, expected: str) -> None:
    found = changed(FORMATS[".properties"].read(text.encode(encoding)), lambda _: "字ü")
    assert found.decode(encoding) == expected


def test_each_placeholder_is_in_every_translation_once() -> None:
    for found in variants(".properties", "a=Don''t {0} %s, ${b}\n"):
        assert found.count("\n") == 1
        assert found.count("'") % 2 == 0


@given(st.text(st.sampled_from("ab =:\\\n\r#!u0{}'\tü"), max_size=40))
def test_any_text_is_the_same_without_translation(text: str) -> None:
    translated(".properties", text)
