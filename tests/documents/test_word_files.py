"""Word documents are translated paragraph by paragraph; zip bombs and damaged files are refused."""

import io
import re
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.documents.test_markup_placement import changed, linked

from translume.documents import FORMATS
from translume.documents import office as word
from translume.documents.markup_placement import place_markup
from translume.documents.segments import Mark
from translume.errors import DocumentError

docx = pytest.importorskip("docx", reason="python-docx is not installed")

TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="xml" ContentType="application/xml"/></Types>'
)
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def translated(data: bytes, change: Callable[[str], str] = str.upper) -> bytes:
    return changed(FORMATS[".docx"].read(data), change)


def saved(document: Any) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def opened(data: bytes) -> Any:
    return docx.Document(io.BytesIO(data))


def archive(parts: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as zipped:
        for name, content in parts.items():
            zipped.writestr(name, content)
    return file.getvalue()


def body(inside: str, before: str = "") -> bytes:
    text = f'<?xml version="1.0"?>{before}<w:document xmlns:w="{W}"><w:body>{inside}</w:body></w:document>'
    return archive({"[Content_Types].xml": TYPES, "word/document.xml": text})


def contents(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


def test_a_document_keeps_everything_but_its_words() -> None:
    document = docx.Document()
    document.add_heading("A title", 0)
    paragraph = document.add_paragraph("One ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run(" and ")
    paragraph.add_run("slanted.").italic = True
    table = document.add_table(2, 2)
    table.cell(0, 0).text = "a cell"
    table.cell(1, 1).text = "Two lines.\nThe next\twith a tab"
    document.sections[0].header.paragraphs[0].text = "a header"
    document.sections[0].footer.paragraphs[0].text = "page 3"
    document.add_paragraph("12 34")
    document.add_paragraph("")
    data = saved(document)
    assert contents(translated(data, str)) == contents(data)
    found = opened(translated(data))
    assert [[(run.text, run.bold, run.italic) for run in each.runs] for each in found.paragraphs] == [
        [("A TITLE", None, None)],
        [("ONE ", None, None), ("BOLD", True, None), (" AND ", None, None), ("SLANTED.", None, True)],
        [("12 34", None, None)],
        [],
    ]
    cells = [cell.text for row in found.tables[0].rows for cell in row.cells]
    assert cells == ["A CELL", "", "", "TWO LINES.\nTHE NEXT\tWITH A TAB"]
    section = found.sections[0]
    assert (section.header.paragraphs[0].text, section.footer.paragraphs[0].text) == ("A HEADER", "PAGE 3")
    unchanged = contents(data).keys() - {"word/document.xml", "word/header1.xml", "word/footer1.xml"}
    assert {name: contents(translated(data))[name] for name in unchanged} == {
        name: contents(data)[name] for name in unchanged
    }


# Allowed in XML, and read: soft hyphens are not.
letters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff\xad")
texts = st.text(letters | st.sampled_from("abC .,\u00a0"), max_size=12)


@settings(max_examples=30)
@given(st.lists(st.lists(texts, max_size=4), max_size=4))
def test_no_paragraph_and_no_run_is_lost(paragraphs: list[list[str]]) -> None:
    document = docx.Document()
    for runs in paragraphs:
        paragraph = document.add_paragraph()
        for run in runs:
            paragraph.add_run(run)
    data = saved(document)
    assert contents(translated(data, str)) == contents(data)
    before, after = (opened(each).paragraphs for each in (data, translated(data, lambda text: f"x{text}")))
    assert [len(each.runs) for each in after] == [len(each.runs) for each in before]
    for one, other in zip(before, after, strict=True):
        assert sum(map(len, other.text.split())) >= sum(map(len, one.text.split()))


def test_a_hyphen_that_does_not_break_is_a_character_of_the_text() -> None:
    data = body("<w:p><w:r><w:t>e</w:t><w:noBreakHyphen/><w:t>mail</w:t></w:r></w:p>")
    seen: list[str] = []
    result = translated(data, lambda text: seen.append(text) or text.upper())
    assert "".join(seen) == "e\u2011mail"
    document = contents(result)["word/document.xml"].decode()
    assert "".join(re.findall(r"<w:t[^>]*>([^<]*)", document)) == "E\u2011MAIL"


def test_text_boxes_are_separate_segments_and_deleted_text_is_skipped() -> None:
    data = body(
        "<w:p><w:r><w:t>out</w:t></w:r><w:r><w:pict><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p>"
        "</w:txbxContent></w:pict></w:r><w:r><w:t>side</w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
        "<w:r><w:instrText>PAGE</w:instrText></w:r></w:p>"
    )
    assert [segment.text for segment in FORMATS[".docx"].read(data).segments] == ["outside", "box"]


VILLAGE = (("The ", ""), ("vil", '<w:b/><w:lang w:val="en-GB"/>'), ("lage", "<w:b/>"), (" has 4,909 inhabitants.", ""))
WORDS = [("has", "这个村庄有"), ("4,909", "4,909"), ("inhabitants", "个居民"), (".", "。")]


def test_plain_words_do_not_become_bold_and_numbers_are_not_cut() -> None:
    runs = "".join(f"<w:r><w:rPr>{style}</w:rPr><w:t>{text}</w:t></w:r>" for text, style in VILLAGE)
    (segment,) = FORMATS[".docx"].read(body(f"<w:p>{runs}</w:p>")).segments
    assert segment.marks == (Mark.OPENING, Mark.SAME_STYLE, Mark.CLOSING)
    # The plain run of the article stays empty, and so does the second run in bold. The bold word has a translation.
    found = place_markup(segment, [linked(segment.text, "这个村庄有4,909个居民。", WORDS)])
    assert found == ("", "这个村庄有", "", "4,909个居民。")


PLAIN = "<w:r><w:t>the plain text </w:t></w:r>"


def test_styles_and_links_divide_a_paragraph_and_tracked_insertions_do_not() -> None:
    styled = "".join(f"<w:r><w:rPr>{style}</w:rPr><w:t>text </w:t></w:r>" for style in ("<w:b/>", "<w:b/><w:i/>"))
    around = f'<w:ins w:id="1" w:author="x">{PLAIN}</w:ins><w:hyperlink w:anchor="x">{PLAIN}</w:hyperlink>'
    (segment,) = FORMATS[".docx"].read(body(f"<w:p>{PLAIN}{styled}{PLAIN}{around}{PLAIN}</w:p>")).segments
    assert segment.marks == (
        *(Mark.OPENING, Mark.STYLE_CHANGE, Mark.CLOSING),
        *(Mark.SAME_STYLE, Mark.OPENING, Mark.CLOSING),
    )


def test_spaces_at_the_ends_of_runs_are_kept_and_characters_invalid_in_xml_dropped() -> None:
    data = body("<w:p><w:r><w:t>a</w:t></w:r><w:r><w:t>b</w:t></w:r></w:p>")
    text = contents(translated(data, lambda _: "x\x01 y\x00"))["word/document.xml"].decode()
    assert '<w:t xml:space="preserve">x </w:t>' in text or '<w:t xml:space="preserve"> y</w:t>' in text
    assert "\x01" not in text


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + place)} "{f"&{chr(97 + place)};" * 10}">' for place in range(12)
)
REFUSED = {
    "no archive": (b"a text", "it is not a Word document (docx), or it is damaged"),
    "an empty file": (b"", "it is not a Word document (docx), or it is damaged"),
    "half a file": (body("<w:p/>")[:150], "it is not a Word document (docx), or it is damaged"),
    "another archive": (archive({"a": "b"}), "it has no part word/document.xml, expected a Word document (docx)"),
    "broken XML": (body("<w:p>"), "word/document.xml is damaged: it is not XML"),
    "entities": (
        body("<w:p><w:r><w:t>&m;</w:t></w:r></w:p>", f"{BOMB}]>"),
        "word/document.xml is damaged: it is not XML",
    ),
    "a document type": (
        body("<w:p/>", "<!DOCTYPE x>"),
        "word/document.xml declares a document type, which office documents never do",
    ),
    "a file from elsewhere": (
        body("<w:p><w:r><w:t>&a;</w:t></w:r></w:p>", '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'),
        "word/document.xml declares a document type, which office documents never do",
    ),
    "many parts": (
        archive({str(number): "" for number in range(word.MAX_PARTS + 1)}),
        "it has 5,001 parts and 0 bytes when unpacked, expected at most 5,000 and 85,577,600",
    ),
    "much in little": (
        archive({"word/document.xml": b"\x00" * 20_000_000}),
        "it has 1 parts and 20,000,000 bytes when unpacked, expected at most 5,000 and ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_files_and_zip_bombs_are_refused(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(DocumentError) as caught:
        translated(data)
    assert str(caught.value).startswith(f"{reason}")


def test_duplicate_parts_and_encrypted_parts_are_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("word/document.xml", "a")
        with pytest.warns(UserWarning, match="Duplicate"):
            zipped.writestr("word/document.xml", "b")
    with pytest.raises(DocumentError, match=r"^it is damaged: two of its parts have the same name$"):
        translated(file.getvalue())
    data = bytearray(body("<w:p/>"))
    place = data.rindex(b"PK\x01\x02")
    data[place + 8] |= 1
    with pytest.raises(DocumentError, match=r"^it has a password$"):
        translated(bytes(data))


def test_a_false_size_in_the_zip_directory_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(body("<w:p><w:r><w:t>a</w:t></w:r></w:p>"))
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 10)
    with pytest.raises(DocumentError):
        translated(bytes(data))
    monkeypatch.setattr(word, "LARGEST_TEXT", 100)
    with pytest.raises(DocumentError, match=r"^its text has more than 100 bytes when unpacked$"):
        translated(body("<w:p><w:r><w:t>a</w:t></w:r></w:p>"))


def test_a_damaged_part_without_text_is_refused_before_translation() -> None:
    data = bytearray(
        archive(
            {
                "word/document.xml": f'<w:document xmlns:w="{W}"><w:p><w:r><w:t>a</w:t></w:r></w:p></w:document>',
                "word/media/image.png": b"0123456789",
            },
            zipfile.ZIP_STORED,
        )
    )
    data[data.index(b"0123456789")] = 0
    with pytest.raises(DocumentError, match=r"^it is not a Word document \(docx\), or it is damaged$"):
        FORMATS[".docx"].read(bytes(data))


WHOLE = body("<w:p><w:r><w:t>ab</w:t></w:r></w:p>")


@given(st.binary(max_size=60) | st.integers(1, len(WHOLE)).map(lambda cut: WHOLE[:-cut]))
def test_arbitrary_bytes_give_a_one_line_error(data: bytes) -> None:
    with pytest.raises(DocumentError, match=r"\A[^\n]*\Z"):
        FORMATS[".docx"].read(data)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_changed_byte_gives_a_document_or_a_one_line_error(place: int, change: int) -> None:
    data = bytearray(WHOLE)
    data[place] ^= change
    with suppress(DocumentError):
        translated(bytes(data))
