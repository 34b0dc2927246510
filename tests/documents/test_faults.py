"""Documents that users of other tools lost text in: fields, moved text, notes, charts, books by their manifest."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.documents.test_markup_placement import changed, done, monotone
from tests.documents.test_other_formats import TEXT, A, open_document
from tests.documents.test_word_files import archive, body, contents
from tests.errors import raises

from translume.documents import FORMATS
from translume.documents.files import HtmlFile, read_document, translated_file
from translume.documents.segments import language_tag
from translume.documents.sentences import SplitSegments
from translume.errors import DocumentError

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import documents as generated


def written(
    suffix: str, data: bytes, target: str, links: Sequence[tuple[int, int]], language: str = ""
) -> tuple[Any, bytes]:
    """Return the sentences that the model reads, and the file with `target` for each."""
    file = FORMATS[suffix].read(data)
    split = SplitSegments.from_segments(file.segments, "en")
    results = [done(line, target, list(links)) for line in split.lines]
    return split.lines, translated_file(suffix, file, [*split.join(results)], language)


def runs(*texts: str) -> str:
    return "".join(f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>' if text[:1] != "<" else text for text in texts)


def field(name: str, result: str) -> str:
    """Return a complex field of Word."""
    return (
        f'<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> {name} x </w:instrText></w:r>'
        f'<w:r><w:fldChar w:fldCharType="separate"/></w:r>{runs(result)}<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    )


def shown(data: bytes, part: str = "word/document.xml") -> str:
    """Return the text of a part with its fields in braces and objects as #."""
    text = contents(data)[part].decode()
    text = re.sub(r"<w:r><w:instrText> (\w+).*?separate\"/></w:r>|<w:fldSimple w:instr=\"(\w+)[^>]*>", r"{\1\2=", text)
    text = re.sub(r'<w:r><w:fldChar w:fldCharType="end"/></w:r>|</w:fldSimple>', "}", text)
    text = re.sub(r"<w:drawing><x/></w:drawing>|<w:footnoteReference/>|<m:oMath/>", "#", text)
    return re.sub(r"<\?.*?\?>\s*|<[^>]*>", "", text)


WORD: dict[str, tuple[str, str, str, list[tuple[int, int]], str]] = {
    # what is between paragraphs; what the model reads; its target and alignment; what is written
    "a formula": (
        runs("text ") + "<m:oMath/>" + runs(" is large."),
        *("text is large.", "Text ist gross.", [(0, 0), (1, 1), (2, 2)], "Text # ist gross."),
    ),
    "an inline picture": (
        runs("a", "<w:r><w:drawing><x/></w:drawing></w:r>", " b"),
        *("a b", "c d", [(0, 0), (1, 1)], "c# d"),
    ),
    "a footnote": (
        runs("village", "<w:r><w:footnoteReference/></w:r>", " has inhabitants"),
        *("village has inhabitants", "Einwohner hat das Dorf", [(0, 3), (1, 1), (2, 0)], "Einwohner hat das Dorf#"),
    ),
    "moved text": (
        f"<w:moveFrom>{runs('moved ')}</w:moveFrom>{runs('it was ')}<w:moveTo>{runs('moved')}</w:moveTo>",
        *("it was moved", "es wurde bewegt", [(0, 0), (1, 1), (2, 2)], "moved es wurde bewegt"),
    ),
    "a merge field within a sentence": (
        runs("Dear ") + f'<w:fldSimple w:instr="MERGEFIELD n">{runs("Ms Smith")}</w:fldSimple>' + runs(", it is late."),
        "Dear Ms Smith, it is late.",
        *("Liebe Frau Smith, es ist spät.", [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]),
        "Liebe {MERGEFIELD=Ms Smith}, es ist spät.",
    ),
    "fields whose results the model copies": (
        runs("in ") + field("REF", "1973") + runs(" and is ") + field("PAGEREF", "679") + runs(" meters long"),
        "in 1973 and is 679 meters long",
        *("1973年，长679米", [(1, 0)]),
        "{REF=1973}年，长{PAGEREF=679}米",
    ),
    "fields in another order": (
        runs("in ") + field("REF", "1973") + runs(" and is ") + field("PAGEREF", "679") + runs(" meters long"),
        "in 1973 and is 679 meters long",
        *("679 Meter lang im Jahr 1973", [(1, 5), (4, 0)]),
        "{PAGEREF=679} Meter lang im Jahr {REF=1973}",
    ),
    "a field that the model leaves out": (
        runs("see ") + field("REF", "chapter two") + runs(" now"),
        *("see chapter two now", "siehe jetzt", [(0, 0), (3, 1)], "siehe {REF=chapter two} jetzt"),
    ),
    "a link, whose text is translated": (
        runs("see ") + field("HYPERLINK", "chapter two") + runs(" now"),
        *("see chapter two now", "siehe Kapitel zwei jetzt", monotone(4), "siehe {HYPERLINK=Kapitel zwei} jetzt"),
    ),
}


@pytest.mark.parametrize("name", WORD)
def test_word_documents_keep_objects_fields_and_moved_text(name: str) -> None:
    inside, source, target, links, wanted = WORD[name]
    lines, data = written(".docx", body(f'<w:p xmlns:m="m">{inside}</w:p>'), target, links)
    assert lines == (source,)
    assert shown(data) == wanted


def test_a_table_of_contents_is_translated_and_its_page_numbers_stay() -> None:
    begin = '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>TOC</w:instrText></w:r>'
    inside = f"<w:p>{begin}{runs('Chapter one ')}{field('PAGEREF', '3')}</w:p><w:p>{runs('Chapter two')}</w:p>"
    lines, data = written(".docx", body(inside), "Kapitel 3", monotone(2))
    assert lines == ("Chapter one 3", "Chapter two")
    assert shown(data).endswith("Kapitel {PAGEREF=3}Kapitel 3")


def test_parts_are_found_by_their_content_types() -> None:
    kinds = "application/vnd.openxmlformats-officedocument."
    w = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    c = "http://schemas.openxmlformats.org/drawingml/2006/chart"
    overrides = {
        "word/doc.xml": f"{kinds}wordprocessingml.document.main+xml",
        "word/top.xml": f"{kinds}wordprocessingml.header+xml",
        "word/charts/c.xml": f"{kinds}drawingml.chart+xml",
        "word/diagrams/d.xml": f"{kinds}drawingml.diagramData+xml",
        "word/other.xml": f"{kinds}wordprocessingml.settings+xml",
    }
    types = "".join(f'<Override PartName="/{name}" ContentType="{kind}"/>' for name, kind in overrides.items())
    paragraph = f'<w:p xmlns:w="{w}"><w:r><w:t>one</w:t></w:r></w:p>'
    chart = (
        f'<c:c xmlns:c="{c}" xmlns:a="{A}"><a:p><a:r><a:t>title</a:t></a:r></a:p><c:cat><c:strRef><c:strCache><c:pt>'
        "<c:v>name</c:v></c:pt></c:strCache></c:strRef></c:cat><c:numCache><c:pt><c:v>1e5</c:v></c:pt></c:numCache></c:c>"
    )
    data = archive(
        {
            "[Content_Types].xml": f"<Types>{types}</Types>",
            "word/doc.xml": f'<w:document xmlns:w="{w}">{paragraph}</w:document>',
            "word/top.xml": f'<w:hdr xmlns:w="{w}">{paragraph}</w:hdr>',
            "word/charts/c.xml": chart,
            "word/diagrams/d.xml": f'<d xmlns:a="{A}"><a:p><a:r><a:t>shape</a:t></a:r></a:p></d>',
            "word/other.xml": paragraph,
        }
    )
    file = FORMATS[".docx"].read(data)
    assert [segment.text for segment in file.segments] == ["one", "one", "title", "name", "shape"]
    parts = contents(changed(file, str.upper))
    assert b"<c:v>NAME</c:v>" in parts["word/charts/c.xml"]
    assert b"<c:v>1e5</c:v>" in parts["word/charts/c.xml"]
    assert parts["word/other.xml"].decode() == paragraph


def test_the_file_names_the_language_of_its_translation_and_its_direction() -> None:
    word = body('<w:p><w:pPr><w:jc/></w:pPr><w:r><w:rPr><w:lang w:val="en-US"/></w:rPr><w:t>a</w:t></w:r></w:p>')
    _, data = written(".docx", word, "b", [(0, 0)], "de")
    assert '<w:rPr><w:lang w:val="de"/></w:rPr>' in contents(data)["word/document.xml"].decode()
    _, data = written(".docx", word, "ب", [(0, 0)], "ar")
    text = contents(data)["word/document.xml"].decode()
    assert '<w:pPr><w:bidi/><w:jc/></w:pPr><w:r><w:rPr><w:rtl/><w:lang w:val="en-US" w:bidi="ar"/></w:rPr>' in text
    for language, wanted in (
        ("de", '<html lang="de">'),
        ("he", '<html dir="rtl" lang="he">'),
        ("", '<html lang="en">'),
    ):
        _, page = written(".html", b'<html lang="en"><p>a</p></html>', "b", [(0, 0)], language)
        assert page.decode() == f"{wanted}<p>b</p></html>"
    _, data = written(".epub", book({"a.xhtml": '<html xml:lang="en"><p>a</p></html>'}), "b", [(0, 0)], "fa")
    assert contents(data)["O/a.xhtml"] == b'<html dir="rtl" xml:lang="fa"><p>b</p></html>'
    package = contents(data)["O/p.opf"].decode()
    assert "<dc:language>fa</dc:language>" in package
    assert '<spine page-progression-direction="rtl">' in package


def book(pages: dict[str, str | bytes], kind: str = "application/xhtml+xml") -> bytes:
    container = '<container><rootfiles><rootfile full-path="O/p.opf"/></rootfiles></container>'
    items = "".join(f'<item href="{name.replace(" ", "%20")}" media-type="{kind}"/>' for name in pages)
    package = f"<package><dc:language>en</dc:language><manifest>{items}</manifest><spine></spine></package>"
    parts = {f"O/{name}": page for name, page in pages.items()}
    return archive({"META-INF/container.xml": container, "O/p.opf": package, **parts})


def test_pages_of_a_book_are_found_by_its_manifest() -> None:
    data = book({"a.xml": "<p>one</p>", "b c.XHTML": "<p>two</p>"})
    assert [segment.text for segment in FORMATS[".epub"].read(data).segments] == ["one", "two"]
    other = FORMATS[".epub"].read(book({"a.xhtml": "<p>one</p>"}, "image/png"))
    assert other.segments == []
    file = FORMATS[".epub"].read(archive({**contents(data), "O/p.opf": '<item href="z" media-type="text/html"/>'}))
    assert list(file.warnings) == ["the book lists O/z, which it does not have"]


def test_pages_of_a_book_are_decoded_as_they_declare() -> None:
    page = '<?xml version="1.0" encoding="ISO-8859-1"?><html><p>caf\u00e9</p></html>'
    data = book({"a.xhtml": page.encode("latin-1")})
    lines, after = written(".epub", data, "th\u00e9 \u6f22", [(0, 0)])
    assert lines == ("caf\u00e9",)
    assert contents(after)["O/a.xhtml"] == page.replace("caf\u00e9", "th\u00e9 &#28450;").encode("latin-1")


XHTML: dict[str, tuple[str, str]] = {
    "a CDATA section": ("<p><![CDATA[if a > b then stop]]> end</p>", "<p>IF A &gt; B THEN STOP END</p>"),
    "a section without letters": ("<p><![CDATA[1 > 0]]></p>", "<p><![CDATA[1 > 0]]></p>"),
    "an instruction with >": ("<p>a <?x y > z?>b</p>", "<p>A <?x y > z?>B</p>"),
    "a document type with declarations": (
        '<!DOCTYPE html [<!ENTITY x "<b>y</b>">]><p>a</p>',
        '<!DOCTYPE html [<!ENTITY x "<b>y</b>">]><p>A</p>',
    ),
}


@pytest.mark.parametrize("name", XHTML)
def test_xhtml_stays_well_formed(name: str) -> None:
    page, wanted = XHTML[name]
    data = changed(FORMATS[".epub"].read(book({"a.xhtml": page})), str.upper)
    assert contents(data)["O/a.xhtml"].decode() == wanted


def test_a_page_that_would_not_be_well_formed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("translume.documents.html.entities.escape", lambda text, quote: text)
    file = FORMATS[".epub"].read(book({"a.xhtml": "<p>a</p>"}))
    reason = "O/a.xhtml: its translation is not well-formed: StartTag: invalid element name, line 1, column 5"
    with raises(DocumentError, reason):
        changed(file, lambda _: "<")


def test_references_and_fields_of_open_documents_are_read_by_the_model() -> None:
    inside = (
        f'<text:p xmlns:text="{TEXT}">see <text:bookmark-ref>chapter two</text:bookmark-ref> and page '
        "<text:page-number>12</text:page-number> n<office:annotation/>ow<text:note><text:note-body/></text:note>"
        "</text:p>"
    )
    lines, data = written(
        ".odt", open_document(inside), "siehe Kapitel zwei und Seite 12 jetzt", [(n, n) for n in range(7)]
    )
    assert lines == ("see chapter two and page 12 now",)
    assert (
        contents(data)["content.xml"]
        .decode()
        .endswith(
            f'<text:p xmlns:text="{TEXT}">siehe <text:bookmark-ref>Kapitel zwei</text:bookmark-ref> und Seite '
            "<text:page-number>12</text:page-number> jetzt<office:annotation/><text:note><text:note-body/></text:note>"
            "</text:p>"
            "</office:document-content>"
        )
    )


@pytest.mark.parametrize(
    ("head", "encoding"),
    [('<?xml version="1.0" encoding="iso-8859-2"?>', "iso8859-2"), ("<?xml encoding='koi8-r' ?>", "koi8-r")],
)
def test_html_with_an_xml_declaration_is_read_as_browsers_do(head: str, encoding: str) -> None:
    text = {"iso8859-2": "\u0142", "koi8-r": "\u044f"}[encoding]
    assert FORMATS[".html"].read(f"{head}<p>{text}</p>".encode(encoding)).segments[0].text == text


ENCODED: list[tuple[str, str, str, str]] = [
    ("Der Fluß überflutete die Straße.", "", "cp1252", "cp1252"),
    ("Le garçon a mangé une crêpe.", "fr", "cp1252", "cp1252"),
    ("Ciò è più", "it", "cp1252", "cp1252"),
    ("村庄有四千九百零九名居民。", "zh", "gbk", "gb18030"),
    ("日本語の文章です。これは試験です。", "ja", "shift_jis", "cp932"),
    ("Привет, как дела сегодня?", "ru", "cp1251", "cp1251"),
    ("Dnes je krásný den a půjdeme do města.", "cs", "cp1250", "cp1250"),
    ("Καλημέρα κόσμε", "el", "cp1253", "cp1253"),
]


@pytest.mark.parametrize(("text", "language", "encoding", "named"), ENCODED)
def test_text_in_an_old_encoding_is_read_with_a_warning_and_written_in_utf_8(
    text: str, language: str, encoding: str, named: str
) -> None:
    for suffix, before in ((".txt", ""), (".srt", "1\n00:00:01,000 --> 00:00:02,000\n")):
        data = f"{before}{text}\n".encode(encoding)
        file, warnings = read_document(suffix, data, language)
        assert [segment.text for segment in file.segments] == [text]
        assert warnings == [f"it is not UTF-8; read as {named}, written in UTF-8"]
        assert changed(file, str).decode() == f"{before}{text}\n"
        assert read_document(suffix, data, "", encoding)[1] == []
    with raises(DocumentError, ".html files name their encoding; found another one, 'cp1252'"):
        read_document(".html", b"a", "", "cp1252")
    with raises(DocumentError, "unknown encoding 'x', expected one such as cp1252 or gb18030"):
        read_document(".txt", b"a", "", "x")


@pytest.mark.parametrize(
    ("code", "tag"), [("de", "de"), ("zt", "zh-hant"), ("deu_Latn", "deu-Latn"), ('de"><b>', ""), ("", ""), ("x", "")]
)
def test_a_language_is_written_only_if_it_is_a_code(code: str, tag: str) -> None:
    assert language_tag(code) == tag


def test_a_document_without_text_is_named() -> None:
    assert read_document(".html", b"<p>12</p>")[1] == ["found no text to translate"]
    assert read_document(".txt", b" \n")[1] == []


def test_entities_of_webvtt_are_decoded_and_written_again() -> None:
    text = "WEBVTT\n\n1:00:07.000\t-->\t1:00:08.000\nRock &amp; roll is &lt;great&gt;\n\n00:01.000-->00:02.000\nb\n"
    file = FORMATS[".vtt"].read(text.encode())
    assert [segment.text for segment in file.segments] == ["Rock & roll is <great>", "b"]
    wanted = text.replace("Rock &amp; roll is &lt;great", "ROCK &amp; ROLL IS &lt;GREAT").replace("\nb", "\nB")
    assert changed(file, str.upper).decode() == wanted


@pytest.mark.parametrize("times", ["00:00:07 -> 00:00:08", "00:00:7,x --> 00:00:08,000", "0:07 \u2192 0:08"])
def test_times_that_cannot_be_read_are_named(times: str) -> None:
    text = f"1\n00:00:01,000 --> 00:00:02,000\na\n\n2\n{times}\nb\n"
    file = FORMATS[".srt"].read(text.encode())
    assert list(file.warnings) == ["line 6: the times cannot be read, so its subtitle is not translated"]
    assert changed(file, str.upper).decode() == text.replace("\na", "\nA")


CUES: dict[str, tuple[str, str, str]] = {
    "fewer words": ("The village has\n<i>4,909 inhabitants.</i>", "Das ist kurz.", "Das ist <i>kurz.</i>"),
    "a sign": ("The village has\n<i>4,909 inhabitants.</i>", "\u3002", "<i>\u3002</i>"),
    "Chinese": (
        "The village has\nit <i>all.</i>",
        "\u8fd9\u4e2a\u6751\u5e84\u6709\u56db\u5343\u4e5d\u767e\u96f6\u4e5d\u540d\u5c45\u6c11\u3002",
        "\u8fd9\u4e2a\u6751\u5e84\u6709\u56db\u5343\n\u4e5d\u767e\u96f6\u4e5d\u540d\u5c45<i>\u6c11\u3002</i>",
    ),
    "three lines": ("a b\nc d\ne f", "aa bb cc dd ee ff", "aa bb\ncc dd\nee ff"),
    "a long word": ("a b\nc d", "a Donaudampfschifffahrt", "a Donaudampfschifffahrt"),
    "degrees": ("The temperature fell to\n-5 degrees", "Es fiel auf -5 Grad.", "Es fiel auf -5 Grad."),
    "a number": ("It is\nroom 101", "Zimmer 101", "Zimmer 101"),
    "an arrow": ("Go to\nit", "Geh --> da", "Geh\n-> da"),
}


@pytest.mark.parametrize("name", CUES)
def test_lines_of_a_subtitle_are_divided_again(name: str) -> None:
    source, target, wanted = CUES[name]
    text = "1\n00:00:01,000 --> 00:00:02,000\n{}\n\n2\n00:00:03,000 --> 00:00:04,000\n12\n"
    lines, data = written(".srt", text.format(source).encode(), target, monotone(2))
    assert lines == (re.sub(r"<.*?>", "", source).replace("\n", " "),)
    assert data.decode() == text.format(wanted)


@pytest.mark.parametrize(
    ("suffix", "written", "reason"),
    [
        (".html", "<p>EINS<p>ZW", "the translated file would not have the whole translation of 'two'"),
        (".html", "<p>EINS<script>ZWEI", "the translated file would not have the whole translation of 'two'"),
        (".odt", "PK", "the translated file could not be read: it is not an OpenDocument text (odt), or it is damaged"),
        (".xliff", "<a>", "the translated file could not be read: it is not XML at line 1, or it is damaged"),
    ],
)
def test_a_file_is_read_again_before_it_is_given_out(
    monkeypatch: pytest.MonkeyPatch, suffix: str, written: str, reason: str
) -> None:
    document = HtmlFile.from_bytes(b"<p>one<p>two")
    monkeypatch.setattr(HtmlFile, "with_runs", lambda *_: written.encode())
    with raises(DocumentError, reason):
        translated_file(suffix, document, [["EINS"], ["ZWEI"]])


@pytest.mark.parametrize("suffix", generated.MAKERS)
def test_generated_documents_lose_no_letter_and_no_element(suffix: str) -> None:
    # A sample of benchmarks/documents.py.
    if suffix == ".docx":
        pytest.importorskip("docx", reason="python-docx is not installed")
    assert [fault for seed in range(6) for fault in generated.faults(suffix, seed)] == []
