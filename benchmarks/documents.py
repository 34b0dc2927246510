"""Translate generated documents of every format with stand-in translators, and look for texts that are lost.

Each file has headings, tables, styled words, links, fields, notes, pictures, subscripts and moved text where its format
can. The stand-ins lengthen, shorten, reorder, merge and split sentences. Checked are: every letter of the translations
is in the file once, every field and object is there once, the elements of markup are the same, the file can be read
again, and python-docx opens Word documents. Prints the seed of each file that fails.

Run: python benchmarks/documents.py [--files 200] [--seed 1]
"""

import argparse
import io
import json
import random
import re
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from translume.documents import FORMATS
from translume.documents.files import read_document, translated_file
from translume.documents.sentences import SplitSegments
from translume.translator import TextHypothesis, Translation
from translume.translator.results import Alignment

WORDS = ("village", "river", "the", "a", "old", "inhabitants", "has", "flows", "north", "bridge", "naïve", "größer")
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
ODF = "urn:oasis:names:tc:opendocument:xmlns:"
Part = tuple[str, str]
"""The kind of a piece of a paragraph, and its text."""
Standin = Callable[[list[str], random.Random], tuple[list[str], list[tuple[int, int]]]]


def paragraph(draw: random.Random) -> list[Part]:
    """Return the pieces of a paragraph of one to three sentences."""
    parts: list[Part] = []
    for _ in range(draw.randint(1, 3)):
        words = [draw.choice(WORDS) for _ in range(draw.randint(3, 9))]
        words[0] = words[0].capitalize()
        for place, word in enumerate(words):
            kind = draw.choice(("text",) * 6 + ("bold", "link", "field", "note", "object", "script"))
            space = " " if place or parts else ""
            if kind == "field":
                parts += [("text", space), (kind, str(draw.randint(10, 9999)))]
            elif kind == "script":
                parts += [("text", f"{space}H"), (kind, "2"), ("text", "O")]
            elif kind in ("note", "object"):
                parts += [("text", space + word), *([] if kind == "note" else [("text", " ")]), (kind, "")]
            elif kind in ("bold", "link"):
                parts += [("text", space), (kind, word)]
            else:
                parts.append((kind, space + word))
        parts.append(("text", "."))
    return parts


def word_runs(parts: Sequence[Part], draw: random.Random) -> str:
    """Return a paragraph of WordprocessingML."""

    def run(text: str, properties: str = "") -> str:
        return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{escape(text)}</w:t></w:r>'

    def character(kind: str) -> str:
        return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'

    written = ""
    for kind, text in parts:
        if kind == "field" and draw.random() < 0.5:
            written += f'<w:fldSimple w:instr=" REF x ">{run(text)}</w:fldSimple>'
        elif kind == "field":
            code = "<w:r><w:instrText> PAGEREF y </w:instrText></w:r>"
            written += f"{character('begin')}{code}{character('separate')}{run(text)}{character('end')}"
        elif kind == "note":
            written += '<w:r><w:footnoteReference w:id="1"/></w:r>'
        elif kind == "object":
            written += "<w:r><w:sym w:font='x' w:char='F0'/></w:r>"
        elif kind == "link":
            written += f'<w:hyperlink w:anchor="z">{run(text)}</w:hyperlink>'
        else:
            written += run(text, {"bold": "<w:b/>", "script": '<w:vertAlign w:val="subscript"/>'}.get(kind, ""))
    moved = f"<w:moveFrom>{run('gone ')}</w:moveFrom>" if draw.random() < 0.2 else ""
    return f"<w:p>{moved}{written}</w:p>"


def docx(paragraphs: Sequence[Sequence[Part]], draw: random.Random) -> bytes:
    """Return a Word document, made by python-docx with these paragraphs in its body, a table and a header."""
    import docx as library
    from docx.oxml import parse_xml

    document = library.Document()
    cell = document.add_table(1, 1).cell(0, 0)._tc
    places = (document.element.body, cell, document.sections[0].header._element)
    for number, parts in enumerate(paragraphs):
        element = parse_xml(word_runs(parts, draw).replace("<w:p>", f'<w:p xmlns:w="{W}">', 1))
        place = places[number % 7 % 3]
        place.insert(len(place) - (place is document.element.body), element)
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def archive(parts: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in parts.items():
            zipped.writestr(name, text)
    return file.getvalue()


def pptx(paragraphs: Sequence[Sequence[Part]], draw: random.Random) -> bytes:
    """Return a presentation with one slide."""
    written = ""
    for parts in paragraphs:
        written += "<a:p>"
        for kind, text in parts:
            properties = {"bold": '<a:rPr b="1"/>', "script": '<a:rPr baseline="-25000"/>'}.get(kind, "<a:rPr/>")
            if kind == "field":
                written += f'<a:fld id="{{1}}" type="slidenum"><a:rPr/><a:t>{text}</a:t></a:fld>'
            elif kind not in ("note", "object"):
                written += f"<a:r>{properties}<a:t>{escape(text)}</a:t></a:r>"
        written += "</a:p>"
    kind = "application/vnd.openxmlformats-officedocument.presentationml"
    types = (
        f'<Types><Override PartName="/ppt/presentation.xml" ContentType="{kind}.presentation.main+xml"/>'
        f'<Override PartName="/ppt/s/first.xml" ContentType="{kind}.slide+xml"/></Types>'
    )
    slide = f'<p:sld xmlns:p="p" xmlns:a="{A}">{written}</p:sld>'
    return archive({"[Content_Types].xml": types, "ppt/presentation.xml": "<presentation/>", "ppt/s/first.xml": slide})


def odt(paragraphs: Sequence[Sequence[Part]], draw: random.Random) -> bytes:
    """Return an OpenDocument text."""
    forms = {
        "bold": '<text:span text:style-name="b">{}</text:span>',
        "link": '<text:a href="x">{}</text:a>',
        "field": "<text:page-number>{}</text:page-number>",
        "note": "<text:note><text:note-citation>1</text:note-citation></text:note>",
        "object": "<draw:frame/>",
        "script": '<text:span text:style-name="s">{}</text:span>',
        "text": "{}",
    }
    written = "".join(
        f"<text:p>{''.join(forms[kind].format(escape(text)) for kind, text in parts)}</text:p>" for parts in paragraphs
    )
    spaces = f'xmlns:office="{ODF}office:1.0" xmlns:text="{ODF}text:1.0" xmlns:draw="{ODF}drawing:1.0"'
    return archive({"content.xml": f"<office:document-content {spaces}>{written}</office:document-content>"})


def xhtml(paragraphs: Sequence[Sequence[Part]], draw: random.Random) -> str:
    """Return a page of XHTML."""
    forms = {
        "bold": "<b>{}</b>",
        "link": '<a href="x">{}</a>',
        "field": "{}",
        "note": '<sup><a href="#n">7</a></sup>',
        "object": '<img src="x"/>',
        "script": "<sub>{}</sub>",
        "text": "{}",
    }
    block = draw.choice(("p", "li", "td", "h2"))
    body = "".join(
        f"<{block}>{''.join(forms[kind].format(escape(text)) for kind, text in parts)}</{block}>"
        for parts in paragraphs
    )
    return f'<?xml version="1.0"?>\n<html lang="en"><head><title>12</title></head><body>{body}</body></html>'


def epub(paragraphs: Sequence[Sequence[Part]], draw: random.Random) -> bytes:
    """Return a book with one chapter."""
    container = '<container><rootfile full-path="b/c.opf"/></container>'
    package = '<package><manifest><item href="one.xml" media-type="application/xhtml+xml"/></manifest></package>'
    return archive({"META-INF/container.xml": container, "b/c.opf": package, "b/one.xml": xhtml(paragraphs, draw)})


def subtitles(paragraphs: Sequence[Sequence[Part]], draw: random.Random) -> str:
    """Return cues of one to three lines."""
    cues = []
    for number, parts in enumerate(paragraphs):
        text = "".join(f"<i>{each}</i>" if kind == "bold" else each for kind, each in parts)
        lines = [line for line in re.split(r" (?=\w)", text) if line.strip()]
        size = max(1, len(lines) // draw.randint(1, 3))
        shown = "\n".join(" ".join(lines[begin : begin + size]) for begin in range(0, len(lines), size))
        cues.append(f"{number + 1}\n00:{number:02}:01,000 --> 00:{number:02}:02,000\n{shown}\n")
    return "\n".join(cues)


MAKERS: dict[str, Callable[[Sequence[Sequence[Part]], random.Random], bytes]] = {
    ".docx": docx,
    ".pptx": pptx,
    ".odt": odt,
    ".epub": epub,
    ".html": lambda paragraphs, draw: xhtml(paragraphs, draw).encode(),
    ".srt": lambda paragraphs, draw: subtitles(paragraphs, draw).encode(),
    ".vtt": lambda paragraphs, draw: ("WEBVTT\n\n" + subtitles(paragraphs, draw).replace(",000", ".000")).encode(),
}


def other(word: str) -> str:
    """Return another word with the same signs; numbers and formulas are copied."""
    return word if re.search(r"\d", word) else re.sub(r"[^\W\d_]+", lambda found: f"{found[0][::-1]}x", word)


def in_order(words: list[str], order: Sequence[int]) -> tuple[list[str], list[tuple[int, int]]]:
    """Return other words in this order, with their alignment."""
    return [other(words[n]) for n in order], [(n, place) for place, n in enumerate(order)]


STANDINS: dict[str, Standin] = {
    "the same order": lambda words, draw: ([*map(other, words)], [(n, n) for n in range(len(words))]),
    "reversed": lambda words, draw: (
        [*map(other, reversed(words))],
        [(n, len(words) - 1 - n) for n in range(len(words))],
    ),
    "longer": lambda words, draw: (
        [each for word in words for each in (other(word), "ja")],
        [(n, 2 * n) for n in range(len(words))],
    ),
    "shorter": lambda words, draw: (
        [other(word) for word in words if re.search(r"\d", word) or len(word) > 4] or ["nur"],
        [(0, 0)],
    ),
    "shuffled": lambda words, draw: in_order(words, draw.sample(range(len(words)), len(words))),
    "without alignment": lambda words, draw: ([*map(other, words)], []),
    "without spaces": lambda words, draw: (["、".join(map(other, words)) + "。"], []),
}


def letters(data: bytes, suffix: str) -> Counter[str]:
    """Return the letters of all texts of a file, read by an independent path: tags and other lines are cut."""
    if suffix in (".srt", ".vtt"):
        text = "\n".join(line for line in data.decode().split("\n") if "-->" not in line and not line.isdigit())
        return Counter(re.sub(r"<[^>]*>|WEBVTT|\s", "", text))
    if suffix == ".html":
        pages = [data.decode()]
    else:
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            names = [
                name for name in zipped.namelist() if re.search(r"document\.xml|header\d|first|one|content\.xml", name)
            ]
            pages = [zipped.read(name).decode() for name in names]
    text = "".join(re.sub(r"<w:moveFrom>.*?</w:moveFrom>|<w:instrText>.*?</w:instrText>", "", page) for page in pages)
    text = re.sub(r"<\?.*?\?>|<title>.*?</title>|<sup>.*?</sup>|<text:note>.*?</text:note>|<[^>]*>", "", text)
    return Counter("".join(text.replace("&amp;", "&").split()))


def shape(data: bytes, suffix: str) -> Counter[str]:
    """Return the tags of a file with their attributes, without those that name a language or keep spaces."""
    if suffix in (".srt", ".vtt", ".html"):
        pages = [data.decode()]
    else:
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            pages = [zipped.read(name).decode("utf-8", "replace") for name in zipped.namelist() if name.endswith("xml")]
    tags = Counter(tag for page in pages for tag in re.findall(r"<[^>?/][^>?]*>", page))
    shapes: Counter[str] = Counter()
    for tag, count in tags.items():
        shapes[re.sub(r"\s+(?:xml:space|lang|xml:lang|w:val|xmlns:\w+)=\"[^\"]*\"|\s|/", "", tag)] += count
    return shapes


def faults(suffix: str, seed: int) -> list[str]:
    """Return what is wrong with one generated file after its translation."""
    draw = random.Random(seed)
    paragraphs = [paragraph(draw) for _ in range(draw.randint(1, 12))]
    if suffix in (".srt", ".vtt"):
        paragraphs = [[part for part in each if part[0] in ("text", "bold")] for each in paragraphs]
    data = MAKERS[suffix](paragraphs, draw)
    name, standin = draw.choice([*STANDINS.items()])
    document, _ = read_document(suffix, data, "en")
    split = SplitSegments.from_segments(document.segments, "en")
    done, expected = [], letters(data, suffix)
    for line in split.lines:
        words, links = standin(line.split(), draw)
        target = " ".join(words)
        expected.subtract("".join(line.split()))
        expected.update("".join(target.split()))
        alignment = Alignment(source_tokens=(), weights=(), links=tuple(sorted(links, key=lambda link: link[1])))
        best = TextHypothesis(
            text=target, tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos", alignment=alignment
        )
        done.append(Translation(source=line, text=target, hypotheses=(best,)))
    written = translated_file(suffix, document, [*split.join(done)], "de")
    found = []
    lost, more = +(expected - letters(written, suffix)), letters(written, suffix) - expected
    found += [f"{kind}: {dict(each)}" for kind, each in (("lost", lost), ("more", more)) if each]
    if shape(data, suffix) != shape(written, suffix):
        found.append(
            f"tags: {shape(data, suffix) - shape(written, suffix)}, {shape(written, suffix) - shape(data, suffix)}"
        )
    if suffix in (".srt", ".vtt") and re.search(r"-->[^\n]*\n\s*\n|\n(?:<[^>]*>)+\n", written.decode()):
        found.append("an empty line within a cue")
    try:
        again, warnings = read_document(suffix, written, "de")
        if warnings or len(again.segments) != len(document.segments):
            found.append(f"read again: {len(again.segments)} of {len(document.segments)} segments, {warnings}")
        if suffix == ".docx":
            import docx as library

            library.Document(io.BytesIO(written))
    except Exception as error:  # whatever it is, it is a fault to report
        found.append(f"cannot be read: {error!r}")
    return [f"{suffix} seed {seed}, {name}: {each}" for each in found]


def main() -> None:
    """Print how many files were translated, and each fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    assert set(MAKERS) <= set(FORMATS)
    began, found, suffixes = time.perf_counter(), list[str](), [*MAKERS]
    for number in range(options.files):
        found += faults(suffixes[number % len(suffixes)], options.seed + number)
    figures = {"files": options.files, "faults": len(found), "seconds": round(time.perf_counter() - began, 1)}
    for each in found:
        print(each, file=sys.stderr)
    print(
        json.dumps(figures)
        if options.json
        else f"{figures['files']} files, {figures['faults']} faults, {figures['seconds']} s"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
