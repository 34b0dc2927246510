"""XLIFF: missing targets are translated, with the inline elements of their sources."""

import re

import pytest
from tests.documents.marked import translated, variants
from tests.errors import raises

from translume.documents import FORMATS
from translume.errors import DocumentError

LONG = {"u": "trans-unit", "s": "source", "t": "target", "seg": "segment", "m": 'mrk mtype="seg"'}


def full(text: str) -> str:
    """Return XML with the long names of its elements."""
    return re.sub(r"(</?)(u|s|t|seg|m)(?=[ />])", lambda found: found[1] + LONG[found[2]], text).replace(
        '</mrk mtype="seg">', "</mrk>"
    )


def first(units: str) -> str:
    return f"<?xml version='1.0'?>\n<xliff version=\"1.2\"><file><body>{full(units)}</body></file></xliff>\n"


def second(unit: str) -> str:
    space = 'xmlns="urn:oasis:names:tc:xliff:document:2.0"'
    return f'<xliff {space} version="2.1"><file id="f"><unit id="1">{full(unit)}</unit></file></xliff>'


INLINE = 'a <g id="1">b <x id="2"/></g>c <bpt id="3">&lt;i></bpt>d<ept id="3">&lt;/i></ept> <ph id="4">{0}</ph>'
UPPER = 'A <g id="1">B <x id="2"/></g>C <bpt id="3">&lt;i></bpt>D<ept id="3">&lt;/i></ept> <ph id="4">{0}</ph>'
MARKED = '<m mid="0">a.</m> <m mid="1">b <mrk mtype="protected">c</mrk></m>'
UPPER_MARKED = '<m mid="0">A.</m> <m mid="1">B <mrk mtype="protected">c</mrk></m>'
SECOND = 'a <pc id="1">b</pc> <ph id="2"/> <sc id="3"/>c<ec startRef="3"/>'
UPPER_SECOND = 'A <pc id="1">B</pc> <ph id="2"/> <sc id="3"/>C<ec startRef="3"/>'
CASES = {
    "a missing target": (
        first("<u>\n  <s>a &amp; b</s>\n  <note>c</note></u>"),
        first("<u>\n  <s>a &amp; b</s>\n  <t>A &amp; B</t>\n  <note>c</note></u>"),
    ),
    "empty targets": (
        first("<u><s>a</s><t  state='x' /></u><u><s>b</s><t> </t></u>"),
        first("<u><s>a</s><t  state='x'>A</t></u><u><s>b</s><t>B</t></u>"),
    ),
    "inline elements": (first(f"<u><s>{INLINE}</s></u>"), first(f"<u><s>{INLINE}</s><t>{UPPER}</t></u>")),
    "copies of the source": (first("<u><s>a</s><t>a</t></u>"), first("<u><s>a</s><t>A</t></u>")),
    "targets that need a translation": (
        first('<u><s>a</s><t state="needs-translation">b</t></u>'),
        first('<u><s>a</s><t state="needs-translation">A</t></u>'),
    ),
    "segments of a source": (
        first(f"<u><s>a. b</s><seg-source>{MARKED}</seg-source></u>"),
        first(f"<u><s>a. b</s><seg-source>{MARKED}</seg-source><t>{UPPER_MARKED}</t></u>"),
    ),
    "version 2": (
        second(f"<seg><s>{SECOND}</s></seg><ignorable><s>d</s></ignorable>"),
        second(f"<seg><s>{SECOND}</s><t>{UPPER_SECOND}</t></seg><ignorable><s>d</s></ignorable>"),
    ),
    "a prefix, comments and CDATA": (
        '<x:xliff xmlns:x="u" version="1.1"><x:trans-unit><x:source><!-- > --><![CDATA[a & b]]></x:source>'
        "</x:trans-unit></x:xliff>",
        '<x:xliff xmlns:x="u" version="1.1"><x:trans-unit><x:source><!-- > --><![CDATA[a & b]]></x:source>'
        "<x:target><!-- > --><![CDATA[A & B]]></x:target></x:trans-unit></x:xliff>",
    ),
}
KEPT = [
    first("<u><s>a</s><t>b</t><alt-trans><s>c</s></alt-trans></u>"),
    first('<u approved="yes"><s>a</s><t>a</t></u>'),
    first('<group translate="no"><u><s>a</s></u></group><u translate="no"><s>b</s></u>'),
    first("<u><s>1 <x/> %s</s></u>"),
    second('<seg state="final"><s>e</s><t>e</t></seg>'),
]


@pytest.mark.parametrize("text", KEPT)
def test_translations_and_what_is_not_translated_stay(text: str) -> None:
    assert translated(".xliff", text) == text


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("suffix", [".xliff", ".xlf"])
def test_missing_targets_are_translated_and_all_else_stays(name: str, suffix: str) -> None:
    text, expected = CASES[name]
    assert translated(suffix, text) == expected


def test_each_placeholder_is_in_every_translation_once() -> None:
    for found in variants(".xliff", first(f"<u><s>{INLINE} %s {{e}}</s></u>")):
        FORMATS[".xliff"].read(found.encode())
        assert all(
            found.count(tag) == 2 for tag in ('<g id="1">', "</g>", '<x id="2"/>', '<bpt id="3">', "</ept>", "%s")
        )


def test_characters_that_the_encoding_lacks_become_references() -> None:
    text = full("<?xml version='1.0' encoding='ISO-8859-1'?><xliff version='1.2'><u><s>é</s>{}</u></xliff>")
    document = FORMATS[".xliff"].read(text.format("").encode("iso8859-1"))
    assert document.with_runs([("è字",)]) == text.format("<target>è&#23383;</target>").encode("iso8859-1")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("<xliff version='2.0' srcLang='en'>", "<xliff version='2.0' trgLang=\"de\" srcLang='en'>"),
        ("<xliff version='2.0' srcLang='en' trgLang='fr-CA'>", "<xliff version='2.0' srcLang='en' trgLang='de'>"),
        ("<xliff version='1.2'><file source-language='en'>",
         "<xliff version='1.2'><file target-language=\"de\" source-language='en'>"),
        ("<xliff version='1.2'><file target-language='de-CH' source-language='en'>",) * 2,
    ],
)  # fmt: skip
def test_the_file_names_the_language_of_its_targets(file: str, expected: str) -> None:
    closing = "</file></xliff>" if "<file" in file else "</xliff>"
    document = FORMATS[".xliff"].read(f"{file}{closing}".encode())
    assert document.with_runs([], "de").decode() == expected + closing


BOMB = '<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><xliff version="1.2"><source>&c;</source></xliff>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<a/>", "found the root <a>, expected <xliff> of version 1 or 2"),
        ('<xliff version="3.0"/>', "found the root <xliff>, expected <xliff> of version 1 or 2"),
        ("", "it is not XML at line 1, or it is damaged"),
        ('<xliff version="1.2">\n<a></xliff>', "it is not XML at line 2, or it is damaged"),
        ('<xliff version="1.2">&a;</xliff>', "it is not XML at line 1, or it is damaged"),
        ("<a>" * 100_000, "it is not XML at line 1, or it is damaged"),
        (BOMB, "it declares a document type with entities or elements of its own, which is refused"),
        ("<a b=''>" * 600_000, "found 1,200,000 tags and attributes, expected at most 1,000,000"),
    ],
    ids=["root", "version", "empty", "tags", "entity", "depth", "bomb", "size"],
)
def test_other_files_are_refused(text: str, reason: str) -> None:
    with raises(DocumentError, reason):
        FORMATS[".xliff"].read(text.encode())
