"""Documents that were found to be hard, by changing valid ones: 100 kB take at most a second and 300 MB.

`benchmarks/mutations.py` found them, or inputs like them. Times of parsers that went through a part again for each of
its elements were 4 to 100 times the limit.
"""

import resource
import time
from collections.abc import Callable

import pytest
from tests.documents.test_markup_placement import changed
from tests.documents.test_other_formats import open_document, presentation
from tests.documents.test_word_files import archive, body

from translume.documents.files import read_document
from translume.documents.markup_placement import Sentence, place_markup
from translume.documents.segments import Mark, Segment
from translume.errors import DocumentError

SECONDS, KILOBYTES = 1.0, 300_000
"""Limits of a document of 100 kB."""
ATTRIBUTES = " ".join(f'a{number}="1"' for number in range(4_000))
FIELD = '<w:fldChar w:fldCharType="begin"/>'
PROPERTIES = f"<w:rPr>{'<w:x/>' * 4_000}</w:rPr>"


def word(inside: str) -> bytes:
    return body(f"<w:p>{inside}</w:p>")


HARD: dict[str, tuple[str, Callable[[], bytes]]] = {
    "texts of one run": (".docx", lambda: word(f"<w:r>{'<w:t>a</w:t>' * 4_000}</w:r>")),
    "texts of one run with properties": (".docx", lambda: word(f"<w:r>{PROPERTIES}{'<w:t>a</w:t>' * 4_000}</w:r>")),
    "breaks in a run": (".docx", lambda: word(f"<w:r>{PROPERTIES}{'<w:t>a</w:t><w:br/>' * 1_500}</w:r>")),
    "fields of one run": (
        ".docx",
        lambda: word(f"<w:r>{'<w:x/>' * 4_000}{FIELD * 2_000}<w:t>a</w:t></w:r>"),
    ),
    "runs of a link with attributes": (
        ".docx",
        lambda: word(f"<w:hyperlink {ATTRIBUTES}>{'<w:r><w:t>a</w:t></w:r>' * 2_000}</w:hyperlink>"),
    ),
    "texts of one run of a slide": (
        ".pptx",
        lambda: presentation(f"<a:p><a:r>{'<a:t>a</a:t>' * 4_000}</a:r></a:p>"),
    ),
    "texts behind elements of a span": (
        ".odt",
        lambda: open_document(f"<text:p><text:span {ATTRIBUTES}>{'a<text:s/>' * 4_000}</text:span></text:p>"),
    ),
    "breaks in nested spans": (
        ".odt",
        lambda: open_document(f"<text:p>{'<text:span>' * 200}{'a<text:tab/>' * 6_000}{'</text:span>' * 200}</text:p>"),
    ),
    "signs around a letter": (".html", lambda: b"<p>" + b"<b>.</b>" + b"." * 48_000 + b"x" + b"." * 48_000 + b"y"),
    "signs in a translation memory": (
        ".tmx",
        lambda: (
            b'<tmx><header srclang="en"/><tu><tuv xml:lang="en"><seg>x<hi>y</hi>' + b"`" * 90_000 + b"z</seg></tuv>"
            b'<tuv xml:lang="de"><seg/></tuv></tu></tmx>'
        ),
    ),
    "words of one line": (".txt", lambda: b"| a " * 25_000),
    "open tags": (".html", lambda: b"<b>a " * 20_000),
    "lines": (".txt", lambda: b"a\n" * 8_000),
    "emphasis of Markdown": (".md", lambda: b"*a **b " * 5_000),
    "brackets of Markdown": (".md", lambda: b"[" * 50_000 + b"a" + b"](" * 10_000),
    "braces": (".json", lambda: b'{"a": "word ' + b"{" * 90_000 + b'"}'),
    "entities": (".xml", lambda: b'<resources><string name="a">word ' + b"&amp;" * 10_000 + b"</string></resources>"),
    "subtitle tags": (".vtt", lambda: b"WEBVTT\n\n00:00.000 --> 00:01.000\na " + b"<" * 90_000),
    "escapes of a catalogue": (".po", lambda: b'msgid "word ' + b"\\n" * 20_000 + b'"\nmsgstr ""\n'),
    "continued values": (".properties", lambda: b"a = word \\\n" * 8_000),
}


@pytest.mark.parametrize("name", HARD)
def test_a_hard_document_is_read_and_written_in_time(name: str) -> None:
    suffix, make = HARD[name]
    data = make()
    assert len(data) <= 110_000
    memory, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    document, _ = read_document(suffix, data, "en")
    assert document.segments
    changed(document, str.upper)
    assert time.process_time() - started < SECONDS * SLOWER
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < KILOBYTES


SLOWER = 3
"""How much slower than when they were measured machines may be that run tests."""


@pytest.mark.parametrize("name", ["word/header1.xml", "word/document.xml"])
@pytest.mark.parametrize("root", ["<w:p {}><w:r><w:t>a</w:t></w:r></w:p>", "<w:p {}><w:t>a</w:t></w:p>", "<w:t {}/>"])
def test_a_part_may_have_any_root(root: str, name: str) -> None:
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    parts = {"word/document.xml": f"<w:document {space}/>", name: root.format(space)}
    document, _ = read_document(".docx", archive(parts), "en")
    assert document.with_runs([("b",) for _ in document.segments], "ar")


def test_a_chart_may_have_a_value_as_its_root() -> None:
    chart = '<c:v xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart">name</c:v>'
    with pytest.raises(DocumentError):
        read_document(".pptx", archive({"ppt/slides/slide1.xml": chart}))
    document, _ = read_document(".pptx", archive({"ppt/slides/slide1.xml": chart, "ppt/presentation.xml": "<p/>"}))
    assert not document.segments


def test_signs_around_words_are_found_in_linear_time() -> None:
    word = "." * 20_000 + "x" + "." * 20_000 + "y"
    segment = Segment(runs=("a", word), marks=(Mark.OPENING,))
    started = time.process_time()
    place_markup(segment, [Sentence(begin=0, end=len(word) + 1, spacing="", target=word + "z", links=((0, 0),))])
    assert time.process_time() - started < 0.5 * SLOWER
