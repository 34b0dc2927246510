"""Documents with too many parts are refused before they are parsed, in a time and memory that do not grow with them."""

import io
import random
import resource
import time
import zipfile

import pytest
from tests.errors import raises

from translume.documents import FORMATS, segments
from translume.errors import DocumentError

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
TAGS = "found {:,} tags and attributes, expected at most 1,000,000"
LINES = "found {:,} lines or paragraphs, expected at most 200,000"

ATTRIBUTES = " ".join(f'a{number}=""' for number in range(1_200_000))


def word(inside: str, encoding: str = "utf-8", declared: str = "UTF-8") -> bytes:
    """Return a Word document; a picture of 80 KB hides that its text is compressed a thousand times."""
    text = f'<?xml version="1.0" encoding="{declared}"?><w:document {W}><w:body>{inside}</w:body></w:document>'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("word/document.xml", text.encode(encoding))
        zipped.writestr("word/media/image1.png", random.Random(1).randbytes(80_000))
    return file.getvalue()


HOSTILE = {
    "empty paragraphs": (".docx", lambda: word("<w:p/>" * 2_500_000), TAGS.format(2_500_008)),
    "empty paragraphs in UTF-16": (
        *(".docx", lambda: word("<w:p/>" * 1_300_000, "utf-16", "UTF-16")),
        TAGS.format(1_300_008),
    ),
    "attributes": (".docx", lambda: word(f"<w:p {ATTRIBUTES}/>"), TAGS.format(1_200_009)),
    "tags of HTML": (".html", lambda: b"<b>" * 1_600_000, TAGS.format(1_600_000)),
    "lines of text": (".txt", lambda: b"a\n" * 2_500_000, LINES.format(2_500_000)),
    "subtitles": (".srt", lambda: b"0:00 --> 0:00\na\n\n" * 290_000, LINES.format(870_000)),
    "tags of subtitles": (".vtt", lambda: b"0:00 --> 0:00\n" + b"<b>a" * 1_200_000, TAGS.format(1_200_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_document_with_too_many_parts_is_refused_quickly(name: str) -> None:
    suffix, make, reason = HOSTILE[name]
    data = make()
    memory, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with raises(DocumentError, reason):
        FORMATS[suffix].read(data)
    assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 400_000


def test_an_encoding_that_would_hide_tags_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"^word/document\.xml is damaged: it is not XML$"):
        FORMATS[".docx"].read(word("<w:p/>", "cp037", "IBM037"))


def test_a_document_in_utf_16_is_read() -> None:
    data = word("<w:p><w:r><w:t>größer</w:t></w:r></w:p>", "utf-16", "UTF-16")
    document = FORMATS[".docx"].read(data)
    assert [segment.text for segment in document.segments] == ["größer"]
    again = FORMATS[".docx"].read(document.with_runs([("kleiner",)]))
    assert [segment.text for segment in again.segments] == ["kleiner"]


@pytest.mark.parametrize(
    ("suffix", "line"),
    [
        (".txt", "a\n"),
        (".html", "<p>a"),
        (".srt", "0:00 --> 0:00\na\n"),
        (".docx", "<w:p><w:r><w:t>a</w:t></w:r></w:p>"),
    ],
)
def test_a_document_at_the_limits_is_read(suffix: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_SEGMENTS", 100)
    most = 50 if suffix == ".srt" else 100

    def read(count: int) -> int:
        text = line * count
        return len(FORMATS[suffix].read(word(text) if suffix == ".docx" else text.encode()).segments)

    assert read(most) == most
    with pytest.raises(DocumentError, match=r"^found 10[12] lines or paragraphs, expected at most 100$"):
        read(most + 1)


def test_a_document_with_the_most_tags_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_MARKUP", 1013)
    assert len(FORMATS[".docx"].read(word("<w:p/>" * 1005)).segments) == 0
    with raises(DocumentError, "found 1,014 tags and attributes, expected at most 1,013"):
        FORMATS[".docx"].read(word("<w:p/>" * 1006))
