"""Text files are decoded from their own encoding and written in the same one."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.errors import raises

from translume.documents import FORMATS
from translume.documents.encoding import EncodedText
from translume.errors import DocumentError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff"), max_size=30)


@given(TEXT, st.sampled_from([(b"", "utf-8"), (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be")]))
def test_an_unchanged_text_is_encoded_to_the_original_bytes(text: str, how: tuple[bytes, str]) -> None:
    mark, encoding = how
    data = mark + text.encode(encoding)
    found = EncodedText.from_bytes(data)
    assert (found.text, found.encode(found.text)) == (text, data)
    file = FORMATS[".txt"].read(data)
    assert file.with_runs([segment.runs for segment in file.segments]) == data


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('<meta charset="utf-8">', "utf-8"),
        ("<meta charset=ISO-8859-1>", "cp1252"),
        ("<META HTTP-EQUIV=content-type CONTENT='text/html; charset=koi8-r'>", "koi8-r"),
        ("<meta charset=shift_jis>", "shift_jis"),
        ("<meta charset=utf-16>", "utf-8"),
        ("<meta charset=utf-7>", "utf-8"),
        ("<meta charset=rot13>", "utf-8"),
        ("<meta charset=hex>", "utf-8"),
        ("<meta charset=idna>", "utf-8"),
        ("<meta charset=no-such-thing>", "utf-8"),
        ("", "utf-8"),
    ],
)
def test_the_encoding_of_html_is_detected_as_in_browsers(head: str, encoding: str) -> None:
    letter = {"koi8-r": "я", "shift_jis": "漢"}.get(encoding, "é")
    data = f"{head}<p>a{letter}</p>".encode(encoding)
    found = EncodedText.from_html(data)
    assert (found.text, found.encode(found.text)) == (f"{head}<p>a{letter}</p>", data)


@pytest.mark.parametrize(
    ("named", "text"), [("gb2312", "镕"), ("shift_jis", "①"), ("euc-kr", "똠"), ("iso-8859-9", "€")]
)
def test_old_names_stand_for_the_larger_encodings_that_browsers_read(named: str, text: str) -> None:
    larger = {"gb2312": "gbk", "shift_jis": "cp932", "euc-kr": "cp949", "iso-8859-9": "cp1254"}[named]
    data = f'<meta charset="{named}"><p>{text}'.encode(larger)
    assert EncodedText.from_html(data).text.endswith(text)


def test_html_that_is_not_utf_8_is_read_as_windows_1252() -> None:
    assert EncodedText.from_html(b"caf\xe9 \x80").text == "café €"
    page = FORMATS[".html"].read(b"<p>caf\xe9</p>")
    assert page.with_runs([("漢 é",)]) == b"<p>&#28450; \xe9</p>"


def test_undecodable_text_is_refused_with_the_position() -> None:
    for data, reason in (
        (b"ab\xff", "it is not utf-8 text at byte 2"),
        (codecs.BOM_UTF16_LE + b"a", "it is not utf-16-le text at byte 2"),
        (codecs.BOM_UTF8 + b"\xff", "it is not utf-8 text at byte 3"),
    ):
        with raises(DocumentError, reason):
            EncodedText.from_bytes(data)
    with pytest.raises(DocumentError, match=r"^it is not cp1252 text at byte 1$"):
        EncodedText.from_html(b"\xff\x81")
