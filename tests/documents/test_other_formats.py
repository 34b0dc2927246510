"""Presentations, OpenDocument texts, books and PDF files are translated paragraph by paragraph."""

import io
import zipfile
from collections.abc import Callable
from contextlib import suppress

import pypdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.documents.test_markup_placement import changed, linked
from tests.documents.test_word_files import archive, contents
from tests.errors import raises

from translume.documents import FORMATS
from translume.documents.markup_placement import place_markup
from translume.documents.pdf import paragraphs
from translume.documents.segments import Mark
from translume.errors import DocumentError

A = "http://schemas.openxmlformats.org/drawingml/2006/main"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
CONTAINER = '<?xml version="1.0"?><container/>'


def translated(suffix: str, data: bytes, change: Callable[[str], str] = str.upper) -> bytes:
    return changed(FORMATS[suffix].read(data), change)


def texts(suffix: str, data: bytes) -> list[str]:
    return [segment.text for segment in FORMATS[suffix].read(data).segments]


def presentation(inside: str) -> bytes:
    slide = f'<?xml version="1.0"?><p:sld xmlns:p="x" xmlns:a="{A}">{inside}</p:sld>'
    return archive({"ppt/presentation.xml": "<p/>", "ppt/slides/slide1.xml": slide, "ppt/media/a.png": b"\x89"})


def open_document(inside: str) -> bytes:
    text = f'<office:document-content xmlns:office="{OFFICE}" xmlns:text="{TEXT}">{inside}</office:document-content>'
    return archive({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": text}, zipfile.ZIP_STORED)


def book(*pages: str) -> bytes:
    chapters = {f"OEBPS/{number}.xhtml": page for number, page in enumerate(pages)}
    return archive({"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER, **chapters})


def pdf(*pages: list[str]) -> bytes:
    """Return a PDF file with lines of text on its pages."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    kids = []
    for lines in pages:
        shown = " T* ".join(f"({line}) Tj" for line in lines)
        stream = f"BT /F 12 Tf 14 TL 72 720 Td {shown} ET".encode()
        objects.append(b"<</Length %d>>\nstream\n%b\nendstream" % (len(stream), stream))
        kids.append(len(objects) + 1)
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents %d 0 R/Resources<</Font<</F 3 0 R>>>>>>"
            % len(objects)
        )
    listed = b" ".join(b"%d 0 R" % kid for kid in kids)
    objects[1] = b"<</Type/Pages/Count %d/Kids[%b]>>" % (len(kids), listed)
    written, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(written))
        written += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return written + b"xref\n0 %d\n0000000000 65535 f \n%btrailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1,
        table,
        len(objects) + 1,
        len(written),
    )


def test_slides_are_translated_and_their_fields_kept() -> None:
    data = presentation(
        "<a:p><a:r><a:rPr b='1'/><a:t>One </a:t></a:r><a:r><a:t>two</a:t></a:r><a:br/><a:r><a:t>three</a:t></a:r></a:p>"
        "<a:p><a:fld type='slidenum'><a:t>no</a:t></a:fld></a:p>"
    )
    assert texts(".pptx", data) == ["One two", "three"]
    assert contents(translated(".pptx", data, str)) == contents(data)
    found = contents(translated(".pptx", data))["ppt/slides/slide1.xml"].decode()
    assert ">ONE </a:t>" in found
    assert ">TWO</a:t>" in found
    assert ">no</a:t>" in found


def test_mixed_content_of_an_open_document_keeps_its_styles() -> None:
    data = open_document(
        "<text:h>A title</text:h><text:p>one <text:span>bold <text:a>link</text:a></text:span> two<text:tab/>next"
        "<text:note><text:p>a note</text:p></text:note> end</text:p>"
        "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
    )
    assert texts(".odt", data) == ["A title", "one bold link two", "next end", "a note"]
    assert contents(translated(".odt", data, str)) == contents(data)
    found = contents(translated(".odt", data))["content.xml"].decode()
    assert "ONE <text:span>BOLD <text:a>LINK</text:a></text:span> TWO<text:tab/>NEXT<text:note>" in found
    assert "<text:p>A NOTE</text:p>" in found
    assert "gone" in found
    with zipfile.ZipFile(io.BytesIO(translated(".odt", data))) as zipped:
        first = zipped.infolist()[0]
        assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)


def test_slides_of_an_open_document_are_translated() -> None:
    slide = (
        '<draw:page xmlns:draw="d" draw:name="one"><draw:frame><draw:text-box><text:p>two<text:span> three</text:span>'
        "<text:page-number>1</text:page-number></text:p></draw:text-box></draw:frame>"
        '<p:notes xmlns:p="p"><text:p>four</text:p></p:notes></draw:page>'
    )
    data = open_document(slide)
    assert texts(".odp", data) == ["two three1", "four"]
    assert contents(translated(".odp", data, str)) == contents(data)
    found = contents(translated(".odp", data))["content.xml"].decode()
    expected = slide.replace("two", "TWO").replace("three", "THREE").replace("four", "FOUR")
    assert expected in found
    with raises(DocumentError, "it is not an OpenDocument presentation (odp), or it is damaged"):
        FORMATS[".odp"].read(b"x")


letters = st.text(st.sampled_from("abC .,\u00a0<é"), max_size=6).map(lambda text: text.replace("<", "&lt;"))
inner = st.recursive(letters, lambda inside: st.lists(inside, max_size=3).map(
    lambda parts: f"<text:span>{''.join(parts)}</text:span><text:s/>"))  # fmt: skip


@settings(max_examples=40)
@given(st.lists(inner, max_size=4))
def test_an_unchanged_open_document_is_identical(paragraphs: list[str]) -> None:
    data = open_document("".join(f"<text:p>{each}</text:p>" for each in paragraphs))
    assert contents(translated(".odt", data, str)) == contents(data)
    translated(".odt", data)


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".odt", open_document('<text:p>The <text:span text:style-name="B">village</text:span> has one.</text:p>')),
        (
            ".pptx",
            presentation(
                '<a:p><a:r><a:rPr lang="en"/><a:t>The </a:t></a:r><a:r><a:rPr lang="en" b="1"/><a:t>village</a:t></a:r>'
                '<a:r><a:rPr lang="de" dirty="0"/><a:t> has one.</a:t></a:r></a:p>'
            ),
        ),
    ],
)
def test_plain_runs_of_other_documents_may_stay_empty_too(suffix: str, data: bytes) -> None:
    (segment,) = FORMATS[suffix].read(data).segments
    assert segment.marks == (Mark.OPENING, Mark.CLOSING)
    words = [("has", "这个村庄有"), ("one", "一个"), (".", "。")]
    assert place_markup(segment, [linked(segment.text, "这个村庄有一个。", words)]) == ("", "这个村庄有", "一个。")


def test_chapters_of_a_book_are_translated_as_xhtml() -> None:
    page = (
        '<?xml version="1.0"?>\n<!DOCTYPE html>\n<html><head><script src="x"/></head><body><p>one\u00a0<b>two</b></p>'
    )
    data = book(page, "<p>three<br/>four</p>")
    assert texts(".epub", data) == ["one two", "three", "four"]
    assert contents(translated(".epub", data, str)) == contents(data)
    found = contents(translated(".epub", data))
    assert found["OEBPS/0.xhtml"].decode().endswith('<script src="x"/></head><body><p>ONE <b>TWO</b></p>')
    assert found["OEBPS/1.xhtml"] == b"<p>THREE<br/>FOUR</p>"
    nothing = translated(".epub", data, lambda text: text.replace("one", "a\u00a0b"))
    assert b"&nbsp;" not in contents(nothing)["OEBPS/0.xhtml"]


def test_the_text_of_a_pdf_file_becomes_paragraphs() -> None:
    data = pdf(["A title", "The first line of a paragraph goes on in a hyphen-", "ated second line."], ["Page two."])
    assert pypdf.PdfReader(io.BytesIO(data)).pages[0].extract_text().startswith("A title")
    assert translated(".pdf", data, str).decode() == (
        "A title\nThe first line of a paragraph goes on in a hyphenated second line.\n\nPage two.\n"
    )


def test_items_of_a_list_are_paragraphs() -> None:
    page = (
        "The following things are here:\n1. one is long, as long as it can be\n2. two is long, as long as it can\nbe."
    )
    assert list(paragraphs(page)) == [
        "The following things are here:",
        "1. one is long, as long as it can be",
        "2. two is long, as long as it can be.",
    ]


REASONS = {
    ".pptx": ("it is not a presentation (pptx), or it is damaged", "ppt/presentation.xml", "a presentation (pptx)"),
    ".odt": ("it is not an OpenDocument text (odt), or it is damaged", "content.xml", "an OpenDocument text (odt)"),
    ".epub": ("it is not a book (EPUB), or it is damaged", "META-INF/container.xml", "a book (EPUB)"),
}


@pytest.mark.parametrize("suffix", REASONS)
def test_other_archives_are_refused(suffix: str) -> None:
    broken, part, name = REASONS[suffix]
    for data, reason in ((b"x", broken), (archive({"a": "b"}), f"it has no part {part}, expected {name}")):
        with raises(DocumentError, reason):
            FORMATS[suffix].read(data)


def test_pdf_files_without_text_with_a_password_or_an_unknown_filter_are_refused() -> None:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(["text"])))
    writer.encrypt("secret", algorithm="RC4-128")
    locked = io.BytesIO()
    writer.write(locked)
    for data, reason in (
        (pdf([]), "it has no text; a scanned page must be recognised (OCR) first"),
        (locked.getvalue(), "it has a password"),
        (b"no pdf", "it is not a PDF file, or it is damaged"),
        (pdf(["a dog"]).replace(b"/Length", b"/Filter /NoFilter /Length", 1), "it is not a PDF file, or it is damaged"),
    ):
        with raises(DocumentError, reason):
            FORMATS[".pdf"].read(data)


@settings(max_examples=60)
@given(st.sampled_from((".pptx", ".odt", ".epub", ".pdf")), st.integers(0, 600), st.integers(0, 255))
def test_a_changed_byte_gives_a_document_or_a_document_error(suffix: str, place: int, change: int) -> None:
    files = {
        ".pptx": presentation("<a:p><a:r><a:t>one</a:t></a:r></a:p>"),
        ".odt": open_document("<text:p>one</text:p>"),
        ".epub": book("<p>one</p>"),
        ".pdf": pdf(["one"]),
    }
    data = bytearray(files[suffix])
    data[place % len(data)] = change
    with suppress(DocumentError):
        translated(suffix, bytes(data))
