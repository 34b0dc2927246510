"""Texts of Android apps keep their resources, markup, escapes and placeholders."""

import pytest
from tests.documents.marked import translated, variants
from tests.errors import raises

from translume.documents import FORMATS
from translume.errors import DocumentError

CASES = {
    "a text": ('<string name="a">b</string>', '<string name="a">B</string>'),
    "markup": (
        '<string>a <b>c</b> <a href="d">e</a> &lt;i>f&lt;/i></string>',
        '<string>A <b>C</b> <a href="d">E</a> &lt;i>F&lt;/i></string>',
    ),
    "placeholders": (
        '<string>a %1$s <xliff:g id="b" example="c">%d</xliff:g> {d}</string>',
        '<string>A %1$s <xliff:g id="b" example="c">%d</xliff:g> {d}</string>',
    ),
    "escapes": (
        "<string>a\\'b \\\"c\\\" \\u00e9 \\\\ &amp; \\@\nd\\n E\\tf</string>",
        "<string>A\\'B \\\"C\\\" É \\\\ &amp; @ D\\n E\\tF</string>",
    ),
    "quotes": ('<string>"  a  "</string>', '<string>"  A  "</string>'),
    "white space": ("<string>\n  a\n  b\n</string>", "<string>\n  A B\n</string>"),
    "CDATA": ("<string><![CDATA[<b>a</b> & it\\'s]]></string>", "<string><![CDATA[<b>A</b> & IT\\'S]]></string>"),
    "arrays and plurals": (
        '<string-array name="a"><item>b</item></string-array><plurals><item quantity="one">%d c</item></plurals>',
        '<string-array name="a"><item>B</item></string-array><plurals><item quantity="one">%d C</item></plurals>',
    ),
    "what is not translated": (
        *['<!-- a --><string translatable="false">b</string><string>@string/c</string><string>?attr/d</string>'
          '<plurals translatable="false"><item>e</item></plurals><color name="f">g</color><string/>'] * 2,
    ),
}  # fmt: skip


def resources(inside: str) -> str:
    return f"<?xml version='1.0' encoding=\"utf-8\"?>\n<resources xmlns:xliff='urn:x' >{inside}\n</resources>\n"


@pytest.mark.parametrize("name", CASES)
def test_texts_are_translated_and_all_else_stays(name: str) -> None:
    text, expected = CASES[name]
    assert translated(".xml", resources(text)) == resources(expected)


def test_translations_are_escaped() -> None:
    found = translated(".xml", resources("<string>a</string>"), lambda _: '@it\'s "b" \\ <&')
    assert found == resources('<string>\\@it\\\'s \\"b\\" \\\\ &lt;&amp;</string>')


def test_each_placeholder_is_in_every_translation_once() -> None:
    for found in variants(".xml", resources("<string>a %1$s, <xliff:g>%2$d</xliff:g> <b>c</b> {d}</string>")):
        FORMATS[".xml"].read(found.encode())
        assert found.count("<xliff:g>%2$d</xliff:g>") == found.count("<b>") == found.count("</b>") == 1


def test_other_xml_is_refused() -> None:
    for text in ("<feed/>", "<!-- b --><x:feed xmlns:x='y'/>"):
        root = "x:feed" if "x:" in text else "feed"
        with raises(
            DocumentError, f"found the root <{root}>, expected <resources>: of XML, only Android's texts are read"
        ):
            FORMATS[".xml"].read(text.encode())
