"""Translation memories: missing translations are added in the language that the file names."""

import pytest
from tests.documents.marked import translated, variants
from tests.errors import raises

from translume.documents import FORMATS
from translume.errors import DocumentError

DONE = '<tu><tuv xml:lang="EN"><seg>a</seg></tuv><tuv xml:lang="de-DE"><seg>b</seg></tuv></tu>'


def memory(units: str, language: str = "en") -> str:
    return (
        f'<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header srclang="{language}"/>'
        f"<body>{units}</body></tmx>\n"
    )


SEG = 'a <bpt i="1">&lt;b></bpt>c<ept i="1">&lt;/b></ept> <ph x="1">%s</ph> <hi>d</hi>'
CASES = {
    "a missing language": (
        f'{DONE}<tu>\n  <tuv xml:lang="en"><seg>{SEG}</seg></tuv>\n</tu>',
        f'{DONE}<tu>\n  <tuv xml:lang="en"><seg>{SEG}</seg></tuv>\n  <tuv xml:lang="de-DE"><seg>'
        'A <bpt i="1">&lt;b></bpt>C<ept i="1">&lt;/b></ept> <ph x="1">%s</ph> <hi>D</hi></seg></tuv>\n</tu>',
    ),
    "an empty segment": (
        '<tu><tuv lang="en"><seg>a</seg></tuv><tuv lang="de"><seg/></tuv></tu>',
        '<tu><tuv lang="en"><seg>a</seg></tuv><tuv lang="de"><seg>A</seg></tuv></tu>',
    ),
    "a translated one": (DONE, DONE),
}


@pytest.mark.parametrize("name", CASES)
def test_missing_translations_are_added_and_all_else_stays(name: str) -> None:
    text, expected = CASES[name]
    assert translated(".tmx", memory(text)) == memory(expected)


def test_the_first_language_is_the_source_if_the_header_names_none() -> None:
    text = f'{DONE}<tu><tuv xml:lang="EN"><seg>c</seg></tuv></tu>'
    expected = text.replace("c</seg></tuv>", 'c</seg></tuv><tuv xml:lang="de-DE"><seg>C</seg></tuv>')
    assert translated(".tmx", memory(text, "*all*")) == memory(expected, "*all*")


def test_each_placeholder_is_in_every_translation_once() -> None:
    for found in variants(".tmx", memory(f'{DONE}<tu><tuv xml:lang="en"><seg>{SEG} {{e}}</seg></tuv></tu>')):
        FORMATS[".tmx"].read(found.encode())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<a/>", "found the root <a>, expected <tmx> with a header"),
        (
            memory('<tu><tuv lang="en"><seg>a</seg></tuv></tu>'),
            "found no language beside 'en', expected one: the language of the translations",
        ),
        (
            memory(DONE.replace("EN", "fr")),
            "found the languages 'de-DE', 'fr' beside 'en', expected one: the language of the translations",
        ),
    ],
)
def test_other_files_are_refused(text: str, reason: str) -> None:
    with raises(DocumentError, reason):
        FORMATS[".tmx"].read(text.encode())
