"""Catalogues of gettext keep everything but empty translations, with each placeholder once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documents.marked import translated, variants
from tests.documents.test_markup_placement import changed
from tests.errors import raises

from translume.documents import FORMATS
from translume.errors import DocumentError

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
CASES = {
    "a message": (
        '#: a.c\nmsgctxt "b"\nmsgid "c %s"\nmsgstr ""\n',
        '#: a.c\nmsgctxt "b"\nmsgid "c %s"\nmsgstr "C %s"\n',
    ),
    "several lines": (
        'msgid ""\n"a \\"b\\"\\n"\n"C\\td\\\\ "\n"e\\n"\nmsgstr ""\n',
        'msgid ""\n"a \\"b\\"\\n"\n"C\\td\\\\ "\n"e\\n"\nmsgstr "A \\"B\\"\\n"\n"C\\tD\\\\ E\\n"\n',
    ),
    "plural forms": (
        'msgid "a"\nmsgid_plural "%d as"\nmsgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n',
        'msgid "a"\nmsgid_plural "%d as"\nmsgstr[0] "A"\nmsgstr[1] "%d AS"\nmsgstr[2] "%d AS"\n',
    ),
    "no plural forms": (
        'msgid "a"\nmsgid_plural "%d as"\nmsgstr[0] ""\n',
        'msgid "a"\nmsgid_plural "%d as"\nmsgstr[0] "%d AS"\n',
    ),
    "what is translated, fuzzy or obsolete": (
        'msgid "a"\nmsgstr "b"\n\n#, fuzzy\n#| msgid "c"\nmsgid "d"\nmsgstr "e"\n\n#~ msgid "f"\n#~ msgstr ""\n',
        'msgid "a"\nmsgstr "b"\n\n#, fuzzy\n#| msgid "c"\nmsgid "d"\nmsgstr "e"\n\n#~ msgid "f"\n#~ msgstr ""\n',
    ),
    "placeholders only": ('msgid "%s: %d"\nmsgstr ""\n', 'msgid "%s: %d"\nmsgstr ""\n'),
    "line ends of Windows": ('msgid "a"\r\nmsgstr ""\r\n', 'msgid "a"\r\nmsgstr "A"\r\n'),
}


@pytest.mark.parametrize("name", CASES)
def test_empty_translations_are_filled_and_all_else_stays(name: str) -> None:
    text, expected = CASES[name]
    assert translated(".po", HEADER + text) == HEADER + expected


@pytest.mark.parametrize(
    "text",
    [
        "%s has %1$s, %(name)s, %-5d and %% of {0}",
        "50%discount for %s%d, {n, number} {0} {a_b}",
        "a <b>c %d</b> http://d.e/f, ${g} {{h}} <0>i</0> j@k.lm $NAME$",
    ],
)
def test_each_placeholder_is_in_every_translation_once(text: str) -> None:
    for found in variants(".po", f'msgid "{text}"\nmsgstr ""\n'):
        assert found.startswith(f'msgid "{text}"\nmsgstr "')


def test_what_looks_like_a_placeholder_within_a_word_is_text() -> None:
    text = 'msgid "a 50%discount, 100% sure"\nmsgstr ""\n'
    assert translated(".po", text) == text.replace('""', '"A 50%DISCOUNT, 100% SURE"')


def test_a_catalogue_becomes_utf_8_if_its_encoding_lacks_a_character() -> None:
    data = HEADER.replace("UTF-8", "ISO-8859-1").encode() + 'msgid "é"\nmsgstr ""\n'.encode("iso8859-1")
    for translation, encoding, name in (("è", "iso8859-1", "ISO-8859-1"), ("字", "utf-8", "UTF-8")):
        found = changed(FORMATS[".po"].read(data), lambda _, new=translation: new).decode(encoding)
        assert found == f'{HEADER}msgid "é"\nmsgstr "{translation}"\n'.replace("UTF-8", name)


@pytest.mark.parametrize(("named", "expected"), [("", "pt_BR"), ("fr", "pt_BR"), ("pt_PT", "pt_PT"), ("PT", "PT")])
def test_a_catalogue_names_its_language(named: str, expected: str) -> None:
    text = 'msgid ""\nmsgstr ""\n"Language: {}\\n"\n"X: y\\n"\n'
    assert FORMATS[".po"].read(text.format(named).encode()).with_runs([], "pt-BR").decode() == text.format(expected)


@pytest.mark.parametrize("line", ["hello", 'msgid "a', "msgid a", '"a"', 'msgtext "a"'])
def test_other_files_are_refused(line: str) -> None:
    with raises(DocumentError, "line 3 is not gettext (PO): expected a comment, msgid or msgstr"):
        FORMATS[".po"].read(f"# a\n\n{line}\n".encode())


lines = st.sampled_from(
    (
        'msgid "a b"',
        'msgid ""',
        'msgid_plural "%d bs"',
        'msgstr ""',
        'msgstr[0] ""',
        'msgstr[1] ""',
        '"c\\n"',
        "",
        "# d",
    )
)


@given(st.lists(lines, max_size=12))
def test_any_catalogue_stays_one(parts: list[str]) -> None:
    try:
        found = translated(".po", "\n".join(parts))
    except DocumentError:
        return
    FORMATS[".po"].read(found.encode())
