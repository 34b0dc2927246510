"""Change the structure of valid documents and requests, and look for tracebacks, long times and much memory.

    python benchmarks/mutations.py [--inputs 400] [--seed 1] [--only NAME …]

Each input is a small valid one whose elements, fields, headers, runs, numbers or bytes were changed from a seed, of at
most 100 kB. Documents are read, split, translated by stand-ins and written; requests go to all routes of a server with
tiny models, in this process. Printed for each format and route: how many were read or answered and how many refused,
the longest processor time and the largest growth of memory with their seeds, and every fault: an exception that is not
for users, an answer 500, more than 1 s or more than 300 MB. `--seed S --inputs 1 --only NAME` repeats one input.
"""
# ruff: noqa: E501 - documents are long lines

import argparse
import asyncio
import io
import json
import logging
import multiprocessing
import random
import re
import resource
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import documents as generated

LARGEST = 100_000
"""Bytes of an input."""
SECONDS, MEGABYTES = 1.0, 300.0
"""Limits of an input: above them it is a fault."""
ENDLESS = 12
"""Seconds of processor time after which the process of an input is ended."""
BATCH = 50
"""Inputs of one process."""
ODF = generated.ODF
W, A = generated.W, generated.A
S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"

TRAPS = (
    *("<", ">", "&", "{", "}", "[", "]", "(", ")", '"', "'", "\\", "%", "$", "0", "9", " ", "\n", "\r", "\r\n", "\t"),
    *("\u0301", "\u200b", "\u00a0", "\u202e", "\u2028", "\x00", "\x0b", "\ufeff", "a", "ä", "中", "ا", "क्", "😀"),
    *("?! ", ". ", "。", "… ", "Mr. ", "A. ", "1. ", "z. B. ", "« ", "「", "」", "-", "- ", "* ", "> ", "#", "|", "*"),
    *("_", "`", "~", "=", ":", "/", ";", ",", "<b>", "</b>", "<b/>", "<!--", "-->", "<![CDATA[", "]]>", "<?", "&#"),
    *("&amp;", "&#x110000;", "&#0;", "&nbsp;", "<p>", "<br>", "<script>", "<a ", "a=", 'a="', "[a](", "![", "[^1]"),
    *("](", "---\n", "```\n", "| a ", "|-", "    ", "\n\n", "\n- ", "a\n", "a@", "www.", "https://a.b/", "{0}", "{{"),
    *("%s", "%(a)s", "${", "{{a}}", "@string/", "\\u0041", "\\n", "\\x", "0:00 --> 0:00\n", "00:00:00.000 ", " --> "),
    *('msgid "a"\n', 'msgstr ""\n', "a=b\n", "a = \\\n", "<i>", "{\\an8}", "<c.a>", "NOTE ", "STYLE\n", "1\n", "x_"),
)
"""Texts whose repetition parsers may find hard."""
NESTED = (
    *(("<b>", "</b>"), ("<div>", "</div>"), ("<ul><li>", "</li></ul>"), ("[", "]"), ("(", ")"), ("{", "}"), ("*", "*")),
    *(("**", "**"), ("_", "_"), ("`", "`"), ("> ", ""), ("- ", ""), ("[", "](a)"), ("![", "]"), ("<!--", "-->")),
    *(('{"a":', "}"), ("「", "」"), ('"', '"'), ("<w:p>", "</w:p>"), ("<text:span>", "</text:span>"), ("<g>", "</g>")),
    *(("<a:p><a:r>", "</a:r></a:p>"), ("<table><tr><td>", "</td></tr></table>"), ("<svg>", "</svg>")),
)
NUMBERS = ("-1", "0", "1", "65536", "4294967296", "9" * 400, "1e999", "NaN", "-0", "٣", "0x10", "1_0", "")
NAMES = (
    "p",
    "r",
    "t",
    "tab",
    "br",
    "span",
    "a",
    "w:p",
    "w:t",
    "w:fldChar",
    "w:hyperlink",
    "text:p",
    "text:note",
    "svg",
)


def trap(draw: random.Random, most: int) -> str:
    """Return up to `most` characters: one text repeated, a few mixed, or one nested in itself."""
    most = min(most, draw.choice((10, 300, 5_000, LARGEST)))
    kind = draw.randrange(4)
    if kind == 0:
        first, last = draw.choice(NESTED)
        count = max(1, most // len(first + last))
        return first * count + draw.choice(("", "a")) + last * draw.choice((count, count, count - 1))
    units = draw.sample(TRAPS, 1 if kind == 1 else draw.randint(2, 3))
    if kind == 2:
        return units[0] * (most // len(units[0])) + units[1]
    if kind == 1:
        return units[0] * max(1, most // len(units[0]))
    return "".join(units) * max(1, most // len("".join(units)))


PIECES = re.compile(r"<[^<>]*>|\w+|\s+|[^\w\s<]|<")


def changed_text(text: str, draw: random.Random, most: int = LARGEST) -> str:
    """Return a text with one to three changes of its tags, words, numbers and lines."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        pieces = text.splitlines(keepends=True) if draw.random() < 0.3 else PIECES.findall(text)
        tags = [place for place, piece in enumerate(pieces) if piece[:1] == "<"]
        place = draw.choice(tags) if tags and draw.random() < 0.6 else draw.randrange(max(1, len(pieces)))
        last = min(len(pieces), place + draw.choice((1, 1, 2, 5, 12)))
        part, left = pieces[place:last], max(10, most - len(text))
        kind = draw.randrange(12)
        if kind == 0:
            part = []
        elif kind == 1:
            part = part * max(1, min(left // max(1, len("".join(part))), draw.choice((2, 50, 2_000, 50_000))))
        elif kind == 2:
            draw.shuffle(part)
        elif kind == 3:
            part = [trap(draw, left)]
        elif kind == 4:
            part += [trap(draw, left)]
        elif kind == 5:
            part = pieces[draw.randrange(len(pieces) + 1) :][:12]
        elif kind == 6:
            part = [re.sub(r"\d+", lambda _: draw.choice(NUMBERS), "".join(part) or "1")]
        elif kind == 7:
            part = [re.sub(r'"[^"]*"', lambda _: f'"{trap(draw, 300)}"', "".join(part) or '""', count=1)]
        elif kind == 8:
            part = [re.sub(r"(?<=<)[\w:]+|(?<=</)[\w:]+", lambda _: draw.choice(NAMES), "".join(part), count=50)]
        elif kind == 9:
            count = min(left // 9, draw.choice((1, 100, 8_000)))
            more = "".join(f' a{number}=""' for number in range(count)) if draw.random() < 0.7 else ' a=""' * count
            part = [re.sub(r"(?=/?>)", more.replace("\\", ""), "".join(part), count=1)]
        elif kind == 10:
            head = '<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d "&b;&b;">]>&d;'
            part += [draw.choice(("<![CDATA[a <b> c]]>", "<!-- a -- b -->", "<?a b?>", "&b;", head, "<!DOCTYPE html>"))]
        else:
            pieces = pieces[:place]
        text = "".join([*pieces[:place], *part, *pieces[last:]])[:most]  # or the next change would take long
    return text


def changed_tree(text: str, draw: random.Random, most: int = LARGEST) -> str:
    """Return XML with one to four changes of its elements, which stays well-formed."""
    from copy import deepcopy

    from lxml import etree

    root = etree.fromstring(text.encode())
    for _ in range(draw.choice((1, 1, 2, 4))):
        each = draw.choice([*root.iter(etree.Element)])
        parent, kind, length = each.getparent(), draw.randrange(9), len(etree.tostring(each))
        left = max(0, most - len(etree.tostring(root)))
        if kind == 0 and parent is not None:
            parent.remove(each)
        elif kind == 1 and parent is not None:
            for _ in range(min(left // length, draw.choice((1, 30, 1_000, 20_000)))):
                each.addnext(deepcopy(each))
        elif kind == 2 and parent is not None:  # the element nested in itself
            for _ in range(min(left // length, draw.choice((1, 5, 100, 200)))):
                outer = etree.SubElement(parent, each.tag, dict(each.attrib))
                parent.replace(each, outer)
                outer.append(each)
        elif kind == 3:
            hard = re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", trap(draw, left))
            setattr(each, draw.choice(("text", "tail") if parent is not None else ("text",)), hard)
        elif kind == 4:
            each.tag = draw.choice([other.tag for other in root.iter(etree.Element)])
        elif kind == 5 and parent is not None:
            target = draw.choice([*root.iter(etree.Element)])
            if each not in (target, *target.iterancestors()):
                target.append(each)
        elif kind == 6 and each.attrib:
            name = draw.choice([*each.attrib])
            each.set(name, draw.choice((*NUMBERS, "en", "none", "yes", "no", "begin", "end", "a" * 3000, "{", "../a")))
        elif kind == 7 and each.attrib:
            del each.attrib[draw.choice([*each.attrib])]
        elif kind == 8 and len(each):
            each[:] = draw.sample([*each], len(each))
    return str(etree.tostring(root, encoding="unicode"))


def changed_markup(text: str, draw: random.Random, most: int = LARGEST) -> str:
    """Return XML that was changed, mostly as a tree."""
    with suppress(ValueError, SyntaxError):
        return changed_tree(text, draw, most) if draw.random() < 0.7 else changed_text(text, draw, most)
    return changed_text(text, draw, most)


def in_bytes(text: str, draw: random.Random) -> bytes:
    """Return a text in UTF-8, and sometimes in another encoding or with other bytes."""
    kind = draw.randrange(20)
    names = {0: "utf-16", 1: "utf-32", 2: "latin-1", 3: "utf-8-sig", 4: "utf-16-be", 5: "gb18030", 6: "cp037"}
    data = text.encode(names.get(kind, "utf-8"), "replace" if kind in names else "surrogatepass")
    if kind == 7:
        data = data[: draw.randrange(len(data) + 1)] + draw.randbytes(draw.choice((1, 40, 4000)))
    return data[:LARGEST]


def changed_value(value: Any, draw: random.Random, most: int = LARGEST) -> Any:
    """Return JSON of another kind, size or depth; `Raw` texts stand for what Python's values cannot say."""
    kind = draw.randrange(13)
    if isinstance(value, dict) and value and draw.random() < 0.7:
        name = draw.choice([*value])
        if kind == 0:
            return {key: each for key, each in value.items() if key != name}
        if kind == 1:
            return {**value, trap(draw, 1000): value[name]}
        return {**value, name: changed_value(value[name], draw, most)}
    if isinstance(value, list) and value and draw.random() < 0.6:
        if kind < 3:
            return value * draw.choice((0, 2, 100, 10_000))
        place = draw.randrange(len(value))
        return [*value[:place], changed_value(value[place], draw, most), *value[place + 1 :]]
    if isinstance(value, str) and draw.random() < 0.4:
        return changed_text(value, draw, most)
    count = draw.choice((1, 30, 10_000))
    other: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: draw.choice((True, False)),
        lambda: draw.choice((-1, 0, 1, 2**31, 2**63, 2**64, 10**30, 10**400, -(10**30), 0.5, 1e308, 1e-320, -0.0)),
        lambda: trap(draw, most),
        lambda: [value] * count,
        lambda: [[]] * count,
        lambda: {str(number): value for number in range(count)},
        lambda: Raw("[" * count + "]" * count),
        lambda: Raw('{"a":' * count + "1" + "}" * count),
        lambda: Raw(draw.choice(("NaN", "Infinity", "-Infinity", "1" * 5000, "1e99999", "-", "01", '"\\ud800"', "''"))),
        lambda: draw.choice(("", " ", "\x00", "\u2028", "\ud7ff", "en", "de", "auto", "EN", "en-US", "🇩🇪", "*")),
        lambda: {},
        lambda: [],
    )
    return other[kind]()


class Raw(str):
    """JSON that is written as it is."""

    __slots__ = ()


def as_json(value: Any) -> str:
    """Return a value as JSON; an object has a field twice if it has the name `Raw` in it."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {as_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        if len(value) > 100 and all(each is value[0] for each in value):
            return "[" + ", ".join([as_json(value[0])] * len(value)) + "]"
        return "[" + ", ".join(map(as_json, value)) + "]"
    return json.dumps(value)


# Valid documents.


def paragraphs(draw: random.Random) -> list[list[generated.Part]]:
    return [generated.paragraph(draw) for _ in range(draw.randint(1, 4))]


def parts_of(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


def word(draw: random.Random) -> dict[str, bytes]:
    """Return the parts of a Word document with headings, a table, links, fields, notes and a chart."""
    body = "".join(generated.word_runs(each, draw) for each in paragraphs(draw))
    table = f"<w:tbl><w:tr><w:tc>{body}</w:tc></w:tr></w:tbl>"
    form = (
        '<w:sdt><w:sdtPr><w:alias w:val="a"/></w:sdtPr><w:sdtContent><w:p><w:pPr><w:jc w:val="left"/></w:pPr><w:r>'
        '<w:rPr><w:lang w:val="en-US"/><w:i/></w:rPr><w:t>one</w:t><w:tab/><w:br/><w:t> two</w:t></w:r><w:m/></w:p>'
        "</w:sdtContent></w:sdt><w:p><w:ins><w:r><w:t>new</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText>"
        "</w:r></w:del><w:ruby><w:rt><w:r><w:t>x</w:t></w:r></w:rt></w:ruby></w:p>"
    )
    kind = "application/vnd.openxmlformats-officedocument."
    types = (
        f'<Types><Override PartName="/word/document.xml" ContentType="{kind}wordprocessingml.document.main+xml"/>'
        f'<Override PartName="/word/header1.xml" ContentType="{kind}wordprocessingml.header+xml"/>'
        f'<Override PartName="/word/chart1.xml" ContentType="{kind}drawingml.chart+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/></Types>'
    )
    chart = (
        f'<c:c xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" xmlns:a="{A}"><a:p><a:r><a:t>title'
        "</a:t></a:r></a:p><c:cat><c:strRef><c:strCache><c:pt><c:v>name</c:v></c:pt></c:strCache></c:strRef></c:cat></c:c>"
    )
    notes = "".join(generated.word_runs(each, draw) for each in paragraphs(draw)[:1])
    return {
        "[Content_Types].xml": types.encode(),
        "word/document.xml": f'<w:document xmlns:w="{W}"><w:body>{body}{table}{form}</w:body></w:document>'.encode(),
        "word/header1.xml": f'<w:hdr xmlns:w="{W}">{notes}</w:hdr>'.encode(),
        "word/footnotes.xml": f'<w:footnotes xmlns:w="{W}">{notes}</w:footnotes>'.encode(),
        "word/chart1.xml": chart.encode(),
    }


def workbook(draw: random.Random) -> dict[str, bytes]:
    head = f'xmlns="{S}"'
    items = "".join(
        f"<si>{''.join(f'<r><rPr><b/></rPr><t>{text or kind}</t></r>' for kind, text in each)}</si>"
        for each in paragraphs(draw)
    )
    sheet = (
        f'<worksheet {head}><sheetData><row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1" t="str"><f>IF(A1="Yes, ""sir""'
        ',"on","off")</f></c><c t="inlineStr"><is><t>inline text</t></is></c></row></sheetData><dataValidations>'
        '<dataValidation><formula1>"Low, High"</formula1></dataValidation></dataValidations></worksheet>'
    )
    parts = {
        "[Content_Types].xml": "<Types/>",
        "xl/workbook.xml": f'<workbook {head}><sheets><sheet name="Sheet one" sheetId="1"/></sheets></workbook>',
        "xl/sharedStrings.xml": f"<sst {head}>{items}<si><t>Yes</t></si><si><t>a {{d}} %s</t></si></sst>",
        "xl/worksheets/sheet1.xml": sheet,
        "xl/comments1.xml": f"<comments {head}><comment><text><t>a comment</t></text></comment></comments>",
        "xl/tables/table1.xml": f'<table {head}><tableColumns><tableColumn id="1" name="Price"/></tableColumns></table>',
        "xl/drawings/drawing1.xml": f'<d xmlns:a="{A}"><a:p><a:r><a:t>shape</a:t></a:r></a:p></d>',
    }
    return {name: text.encode() for name, text in parts.items()}


def slides(draw: random.Random) -> dict[str, bytes]:
    spaces = f'xmlns:office="{ODF}office:1.0" xmlns:text="{ODF}text:1.0" xmlns:draw="{ODF}drawing:1.0"'
    text = parts_of(generated.odt(paragraphs(draw), draw))["content.xml"].decode()
    inside = re.findall(r"<text:p>.*</text:p>", text, re.DOTALL)[0]
    page = f"<draw:page><draw:frame><draw:text-box>{inside}</draw:text-box></draw:frame></draw:page>"
    styles = f"<office:document-styles {spaces}><text:p>top</text:p></office:document-styles>"
    return {
        "mimetype": b"application/vnd.oasis.opendocument.presentation",
        "content.xml": f"<office:document-content {spaces}>{page}</office:document-content>".encode(),
        "styles.xml": styles.encode(),
    }


def plain(draw: random.Random) -> list[str]:
    """Return sentences with styles as words."""
    return ["".join(text or "x" for _, text in each) for each in paragraphs(draw)]


def markdown(draw: random.Random) -> str:
    one, *rest = plain(draw)
    return (
        f"---\ntitle: {one}\n---\n\n# {one}\n\nA *styled* `code` [link](http://a.b 'title') ![image](a.png) <b>x</b>\n\n"
        f"- {one}\n  1. two [ ] \n\n> quoted [^1]\n\n| a | b |\n|---|:-:|\n| c \\| d | e |\n\n```py\ncode\n```\n\n"
        f"Setext {{#id}}\n======\n\n    indented\n\n[ref]: http://a.b 'title'\n[^1]: a note\n\n$$x$$ and $y$\n\n"
        + "\n\n".join(rest)
    )


def catalogue(draw: random.Random) -> str:
    fields = [f'#: a.c:1\n#, fuzzy\nmsgctxt "c"\nmsgid "{text}\\n"\nmsgstr ""\n' for text in plain(draw)]
    plural = 'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n\n#~ msgid "old"\n'
    return 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n' + "\n".join([*fields, plural]) + "\n"


def xliff(draw: random.Random) -> str:
    texts = plain(draw)
    if draw.random() < 0.5:
        units = "".join(
            f'<unit id="{n}"><segment state="initial"><source>{text} <ph id="1"/><pc id="2">b</pc></source></segment></unit>'
            for n, text in enumerate(texts)
        )
        return (
            f'<?xml version="1.0"?>\n<xliff version="2.0" srcLang="en" trgLang="de"><file id="f">{units}</file></xliff>'
        )
    units = "".join(
        f'<trans-unit id="{n}" approved="no">\n  <source>{text} <g id="1">b</g><x id="2"/><bpt id="3">a</bpt></source>\n'
        f'  <target state="new"></target><note>n</note></trans-unit>'
        for n, text in enumerate(texts)
    )
    return f'<xliff version="1.2"><file source-language="en" target-language="de"><body>{units}</body></file></xliff>'


def memory(draw: random.Random) -> str:
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{text} <ph>x</ph> <hi>b</hi></seg></tuv><tuv xml:lang="de"><seg></seg></tuv></tu>'
        for text in plain(draw)
    )
    return f'<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>'


def strings(draw: random.Random) -> str:
    each = "".join(f'<string name="n{n}">{text} \\n <b>b</b> %1$s</string>' for n, text in enumerate(plain(draw)))
    return (
        f'<resources xmlns:x="urn"><!-- a -->{each}<string name="c"><![CDATA[<i>one</i>]]></string><string name="r">'
        '@string/a</string><plurals name="p"><item quantity="one">%d dog</item></plurals><string-array name="a">'
        "<item>it\\'s</item></string-array></resources>"
    )


def properties(draw: random.Random) -> str:
    return "# comment\n! other\n" + "".join(
        f"key.{n} = {text} \\\n  {{0}} \\u00e4\n" for n, text in enumerate(plain(draw))
    )


def json_file(draw: random.Random) -> str:
    return json.dumps(
        {"title": plain(draw), "a": {"b": [1, 2.5, None, True, "text {name} <b>x</b>"]}, "é": "ü"}, indent=1
    )


def cues(draw: random.Random, suffix: str) -> str:
    found = [[part for part in each if part[0] in ("text", "bold")] for each in paragraphs(draw)]
    text = generated.MAKERS[suffix](found, draw).decode()
    if suffix == ".vtt":
        text = text.replace("WEBVTT", "WEBVTT\n\nNOTE a comment\n\nSTYLE\n::cue {}\n\nREGION\nid:a", 1)
        text = text.replace("02.000\n", "02.000 align:start\n<v Ann>", 1)
    return text


def page(draw: random.Random) -> str:
    inside = re.sub("(?s).*<body>|</body>.*", "", generated.xhtml(paragraphs(draw), draw))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>a title</title><style>b {}</style><script>'
        f'x < y</script></head><body>{inside}<img alt="a text" src=x><input placeholder="name"><pre>a\n b</pre><p>one<br>'
        'two &amp; <code>c</code> <span translate="no">d</span><table><tr><td>x<td>y</table><select><option>o</select>'
        "<textarea>t</textarea><svg><text>s</text></svg><!-- c --><a href=# title='more'>e</a></body></html>"
    )


def pdf(draw: random.Random) -> str:
    shown = " T* ".join(f"({text}) Tj" for text in plain(draw)).encode("latin-1", "replace").decode("latin-1")
    stream = f"BT /F 12 Tf 14 TL 72 720 Td {shown} ET"
    objects = (
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Count 1/Kids[4 0 R]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 5 0 R/Resources<</Font<</F 3 0 R>>>>>>",
        f"<</Length {len(stream)}>>\nstream\n{stream}\nendstream",
    )
    written = "%PDF-1.4\n" + "".join(f"{n} 0 obj\n{each}\nendobj\n" for n, each in enumerate(objects, start=1))
    return written + f"trailer<</Size {len(objects) + 1}/Root 1 0 R>>\nstartxref\n0\n%%EOF"


ARCHIVES: dict[str, Callable[[random.Random], dict[str, bytes]]] = {
    ".docx": word,
    ".pptx": lambda draw: parts_of(generated.pptx(paragraphs(draw), draw)),
    ".odt": lambda draw: parts_of(generated.odt(paragraphs(draw), draw)),
    ".odp": slides,
    ".xlsx": workbook,
    ".epub": lambda draw: parts_of(generated.epub(paragraphs(draw), draw)),
}
TEXTS: dict[str, Callable[[random.Random], str]] = {
    ".txt": lambda draw: "\n".join(plain(draw)),
    ".html": page,
    ".htm": lambda draw: generated.xhtml(paragraphs(draw), draw),
    ".srt": lambda draw: cues(draw, ".srt"),
    ".vtt": lambda draw: cues(draw, ".vtt"),
    ".md": markdown,
    ".po": catalogue,
    ".json": json_file,
    ".xliff": xliff,
    ".xlf": xliff,
    ".properties": properties,
    ".xml": strings,
    ".tmx": memory,
    ".pdf": pdf,
}


def zipped(parts: dict[str, bytes], draw: random.Random) -> bytes:
    """Return an archive, sometimes with other headers, names, methods, sizes, checksums and counts than valid ones."""
    held, kind = io.BytesIO(), draw.randrange(40)
    names = [*parts]
    method = draw.choice((zipfile.ZIP_DEFLATED,) * 6 + (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(held, "w", method) as archive:
        for name in names:
            content = parts[name]
            if kind == 0 and draw.random() < 0.3:
                continue
            if kind == 1 and draw.random() < 0.3:
                name = draw.choice(("../a", "/etc/a", "a\\b", "x" * 60_000, "ä/中", name.upper(), f"{name}/", "."))
            archive.writestr(name, content)
            if kind == 2:
                import warnings

                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    archive.writestr(name, b"<other/>")
        if kind == 3:
            for number in range(draw.choice((100, 900, 6000))):
                archive.writestr(f"{number}", b"")
        if kind == 4:  # an incompressible part hides how much the others unpack to
            archive.writestr("media/a.png", draw.randbytes(85_000))
        if kind == 5:
            archive.writestr(
                draw.choice(("a.zip", "b.bin")), bytes(draw.choice((10**6, 10**7, 9 * 10**7))), zipfile.ZIP_DEFLATED
            )
        if kind == 6:
            archive.writestr("inner.zip", held.getvalue())
    data = bytearray(held.getvalue())
    if kind in (7, 8, 9, 10):  # numbers in the central directory or in the headers of parts
        marks = [found.start() for found in re.finditer(b"PK\x01\x02|PK\x05\x06|PK\x03\x04", data)]
        for _ in range(draw.randint(1, 3)):
            place = draw.choice(marks) + draw.randrange(4, 46)
            size = draw.choice((1, 2, 4))
            value = draw.choice((0, 1, 9, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF, draw.getrandbits(32)))
            data[place : place + size] = (value % 256**size).to_bytes(size, "little")
    if kind == 11:
        del data[draw.randrange(len(data)) :]
    if kind == 12:
        data[:0] = draw.randbytes(draw.choice((1, 1000)))
    if kind == 13:  # entries that overlap: all have the place of the first
        for found in re.finditer(b"PK\x01\x02", bytes(data)):
            data[found.start() + 42 : found.start() + 46] = bytes(4)
    return bytes(data)


def size(draw: random.Random) -> int:
    """Return the most bytes of an input: most are small, since most faults do not need more."""
    return draw.choices((2_000, 20_000, LARGEST), (6, 2, 2))[0]


def changed_archive(suffix: str, draw: random.Random) -> bytes:
    """Return an archive of at most 100 kB with a part that was changed and may be 20 MB when unpacked."""
    parts = ARCHIVES[suffix](draw)
    if draw.random() < 0.8:
        name = draw.choice([*parts])
        text = parts[name].decode("utf-8", "replace")
        most = draw.choices((LARGEST, 1_000_000, 15_000_000), (18, 1, 1))[0]
        new = changed_markup(text, draw, max(len(text), size(draw)))
        if most > LARGEST:  # many times the same, within the root
            found = re.search(r"(<[^>]*>)(<.*>|[^<]*)(</[^>]*>)\s*$", new, re.DOTALL)
            if found and found[2]:
                new = new[: found.start(2)] + found[2] * (most // len(found[2])) + found[3]
        parts[name] = new.encode("utf-8", "replace") if draw.random() < 0.9 else in_bytes(new[:LARGEST], draw)
    data = zipped(parts, draw)
    return data if len(data) <= LARGEST + 10_000 else data[: LARGEST // 2]


def document(suffix: str, seed: int) -> bytes:
    """Return the document of a seed."""
    draw = random.Random(f"{suffix} {seed}")
    if suffix in ARCHIVES:
        return changed_archive(suffix, draw)
    text, most = TEXTS[suffix](draw), size(draw)
    if suffix == ".json" and draw.random() < 0.5:
        return in_bytes(as_json(changed_value(json.loads(text), draw, most)), draw)
    if suffix == ".pdf":
        return changed_text(text, draw, most).encode("latin-1", "replace")
    if draw.random() < 0.06:  # nothing but a hard text
        text = trap(draw, most)
        return in_bytes(text * (most // max(1, len(text.encode("utf-8", "replace")))) or text, draw)
    change = changed_markup if suffix in (".xliff", ".xlf", ".tmx", ".xml", ".htm") else changed_text
    return in_bytes(change(text, draw, max(most, len(text))), draw)


def read_and_write(suffix: str, data: bytes, seed: int) -> str:
    """Translate a document by a stand-in; return what came of it."""
    from translume.documents.files import read_document
    from translume.documents.sentences import SplitSegments
    from translume.errors import DocumentError
    from translume.translator import TextHypothesis, Translation
    from translume.translator.results import Alignment

    draw = random.Random(seed)
    try:
        found, _ = read_document(suffix, data, "en")
        split = SplitSegments.from_segments(found.segments, draw.choice(("en", "de", "zh", None)))
        standin = draw.choice([*generated.STANDINS.values()])
        done = []
        for line in split.lines:
            words, links = standin(line.split(), draw)
            best = TextHypothesis(
                text=" ".join(words), tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos",
                alignment=Alignment(source_tokens=(), weights=(), links=tuple(sorted(links, key=lambda link: link[1]))),
            )  # fmt: skip
            done.append(Translation(source=line, text=best.text, hypotheses=(best,)))
        runs = [*split.join(done)]
        found.with_runs(runs, draw.choice(("de", "ar", "")))
    except DocumentError as error:
        message = str(error)
        return (
            "refused" if "\n" not in message and len(message) < 400 else f"fault: message of {len(message)} characters"
        )
    return "read"


# Running inputs in processes with limits.

Row = dict[str, Any]
"""An input: kind, seed, bytes, what came of it, processor seconds, MB of growth, and a traceback."""


def peak_mb(reset: bool = False) -> float:
    """Return the most memory of this process in MB since the last reset."""
    if reset:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith("VmHWM"))


def measured(kind: str, seed: int, client: "Client | None") -> Row:
    """Return what came of one input, with its processor time and memory."""
    request = None if client is None else Request(kind, ROUTES[kind], seed)
    data = document(kind, seed) if request is None else request.as_bytes()
    row: Row = {"kind": kind, "seed": seed, "bytes": len(data), "trace": ""}
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + ENDLESS, resource.RLIM_INFINITY))
    before, started = peak_mb(reset=True), time.process_time()
    try:
        row["result"] = client.ask(request) if client and request else read_and_write(kind, data, seed)
    except BaseException as error:  # whatever it is, it is a fault to report
        row["result"] = f"fault: {type(error).__name__}"
        row["trace"] = "".join(traceback.format_exception(error)[-3:])
    return {**row, "seconds": time.process_time() - started, "mb": peak_mb() - before}


def limited() -> None:
    """Limit the address space and the processor time of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def one_after_the_other(kind: str, seeds: list[int], results: Connection) -> None:
    """Send the row of each input of a kind."""
    limited()
    client = Client() if kind in ROUTES else None
    for seed in seeds:
        results.send(measured(kind, seed, client))
    results.close()
    if client is not None:
        client.close()


def in_processes(kind: str, seeds: list[int]) -> Iterator[Row]:
    """Yield the row of each input. One that ends its process is a fault, and the others go on in a new one."""
    left, batch = [*seeds], 8 * BATCH if kind in ROUTES else BATCH
    while left:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=one_after_the_other, args=(kind, left[:batch], sender)
        )
        process.start()
        sender.close()
        count = len(left[:batch])
        with suppress(EOFError):
            while count:
                yield receiver.recv()
                del left[0]
                count -= 1
        process.join()
        if count:
            reason = f"fault: the process ended ({process.exitcode})"
            yield {
                "kind": kind,
                "seed": left[0],
                "bytes": 0,
                "result": reason,
                "seconds": ENDLESS,
                "mb": 0,
                "trace": "",
            }
            del left[0]


# Requests.


class Request:
    """A request as a server receives it, drawn from the description of a route."""

    def __init__(self, route: str, operation: dict[str, Any], seed: int) -> None:
        draw = self._draw = random.Random(f"{route} {seed}")
        self.method, path = route.split(" ")
        self.most = size(draw)
        word = draw.choice((trap(draw, 300), "a", "../../etc/passwd", "%2e%2e", "é", "0" * 32, "a.b", "x" * 5000))
        self.path = path.replace("{name}", word)
        self.query = (
            b"" if draw.random() < 0.8 else in_bytes(draw.choice(("a=", "q=", "", "&")) + trap(draw, 5000), draw)
        )
        self.headers: list[tuple[bytes, bytes]] = [(b"host", b"localhost")]
        kinds = operation.get("requestBody", {}).get("content", {})
        self.body = b""
        if kinds:
            kind = draw.choice([*kinds])
            self.body, kind = self._made(kind, kinds[kind])
            self.headers.append((b"content-type", kind.encode("latin-1", "replace")))
        elif draw.random() < 0.3:
            self.body = in_bytes(trap(draw, self.most), draw)
        for _ in range(draw.choice((0, 0, 1, 3))):
            self._change_headers()

    def as_bytes(self) -> bytes:
        return self.path.encode("utf-8", "replace") + self.query + repr(self.headers).encode() + self.body

    def _fields(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return fields that are valid: those of the example, and some more."""
        draw, schema = self._draw, content["schema"]
        schema = SCHEMAS.get(schema.get("$ref", "").rpartition("/")[2], schema)
        known: dict[str, Any] = schema.get("properties", {})
        found = {
            **content.get("example", {"q": "a dog", "source": "en", "target": "de", "text": "a", "target_lang": "DE"})
        }
        for name in draw.sample([*known], min(len(known), draw.choice((0, 0, 1, 3)))):
            each = known[name]
            kinds = [each, *each.get("anyOf", []), *each.get("oneOf", [])]
            kind = draw.choice([one.get("type") for one in kinds if one.get("type")] or ["string"])
            valid = {"integer": 2, "number": 0.5, "boolean": True, "string": "a", "array": ["a"], "object": {}}
            found[name] = draw.choice(each["enum"]) if "enum" in each else valid.get(kind)
        return {name: found[name] for name in found if name in known or not known}

    def _made(self, kind: str, content: dict[str, Any]) -> tuple[bytes, str]:
        """Return a body and its type."""
        draw, fields = self._draw, self._fields(content)
        file = fields.pop("file", "") if kind.startswith("multipart") else ""
        for _ in range(draw.choice((0, 1, 1, 2))):
            fields = changed_value(fields, draw, self.most)
        if kind == "application/json":
            text = as_json(fields)
            if draw.random() < 0.1:
                text = text.replace("{", '{"text": 1, ' * 1 + '"text": "a", ' * draw.choice((1, 5_000)), 1)
            return in_bytes(changed_text(text, draw, self.most) if draw.random() < 0.3 else text, draw), kind
        given = fields if isinstance(fields, dict) else {"q": fields}
        pairs = [
            (name, text if isinstance(text, str) else json.dumps(text, default=str)[: self.most])
            for name, value in given.items()
            for text in (value[:2000] if isinstance(value, list) and draw.random() < 0.7 else [value])
        ]
        if kind.startswith("multipart"):
            return self._multipart(pairs, file)
        from urllib.parse import quote_plus

        text = "&".join(f"{name}={quote_plus(each, errors='replace')}" for name, each in pairs)
        return in_bytes(changed_text(text, draw, self.most) if draw.random() < 0.3 else text, draw), kind

    def _multipart(self, pairs: list[tuple[str, str]], file: Any) -> tuple[bytes, str]:
        """Return a form with a file, whose lines may be changed."""
        draw = self._draw
        name, content = draw.choice(FILES)
        if draw.random() < 0.1:
            name = draw.choice(
                (trap(draw, 500), "a" * 3000 + ".txt", "../a.txt", ".txt", "a", "a.txt\x00.html", "", "ä.txt")
            )
        if draw.random() < 0.2:
            content = draw.randbytes(draw.choice((0, 1, 1000)))
        parts = [(f'form-data; name="{key}"', value.encode("utf-8", "replace")) for key, value in pairs]
        parts.insert(draw.randrange(len(parts) + 1), (f'form-data; name="file"; filename="{name}"', content))
        if draw.random() < 0.1:
            parts *= draw.choice((2, 70, 600))
        heads = "\r\n" * 2
        if draw.random() < 0.15:
            other = (
                "Content-Type: text/plain; charset=x",
                "Content-Transfer-Encoding: base64",
                "a: " + trap(draw, 20_000),
            )
            heads = "\r\n" + draw.choice(other) + "\r\n" * 2
        edge = draw.choice(("xx",) * 9 + ("", "x" * 300, "a b", "é"))
        body = (
            b"".join(
                f"--{edge}\r\nContent-Disposition: {head}{heads}".encode("utf-8", "replace") + value + b"\r\n"
                for head, value in parts
            )
            + draw.choice((f"--{edge}--\r\n",) * 9 + ("", f"--{edge}", "\r\n")).encode()
        )
        if draw.random() < 0.15:
            body = changed_text(body.decode("latin-1"), draw, self.most).encode("latin-1", "replace")
        return body[:LARGEST], draw.choice((f"multipart/form-data; boundary={edge}",) * 15 + (
            "multipart/form-data", "multipart/form-data; boundary=", f'multipart/form-data; boundary="{edge}', "text/plain"
        ))  # fmt: skip

    def _change_headers(self) -> None:
        import gzip

        draw = self._draw
        hard = (
            trap(draw, 20_000).encode("utf-8", "replace").replace(b"\n", b" ").replace(b"\r", b" ").replace(b"\0", b" ")
        )
        ranges = b"bytes=" + b",".join(b"%d-" % number for number in range(draw.choice((1, 3, 3000))))
        plain = (b"authorization", b"accept", b"accept-language", b"cookie", b"x-request-id", b"x-forwarded-for", b"host",
                 b"origin", b"referer", b"content-length", b"content-encoding", b"transfer-encoding", b"if-modified-since",
                 b"sec-fetch-site", b"content-type", b"range", b"expect", b"x-a")  # fmt: skip
        values = (hard, b"", b"-1", b"9" * 500, b"NaN", b"gzip, br", b"chunked", b"Bearer " + hard, b"bytes=0-,-1", ranges,
                  b"application/json; charset=utf-16", b"text/html;q=" + b"9" * 400, b"[::1", b"a:b:c", b"xn--" + hard[:90],
                  b"application/x-www-form-urlencoded", b"DeepL-Auth-Key a", b"null", b"cross-site", b"\xff\xfe")  # fmt: skip
        kind = draw.randrange(8)
        if kind == 0:
            self.headers.append((b"content-encoding", b"gzip"))
            content = draw.choice((self.body, bytes(draw.choice((10**6, 2 * 10**7)))))
            self.body = gzip.compress(content)[: draw.choice((LARGEST, LARGEST, 30))]
        elif kind == 1:
            self.headers += [(b"x-%d" % number, b"a") for number in range(draw.choice((10, 1000)))]
        else:
            self.headers.append((draw.choice(plain), draw.choice(values)))

    def scope(self) -> dict[str, Any]:
        return {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": self.method, "scheme": "http",
            "path": self.path, "raw_path": self.path.encode("utf-8", "replace"), "query_string": self.query,
            "root_path": "", "headers": self.headers, "client": ("127.0.0.1", 9), "server": ("127.0.0.1", 80),
        }  # fmt: skip


SCHEMAS: dict[str, Any] = {}
ROUTES: dict[str, dict[str, Any]] = {}
"""The description of each route, by method and path."""
FILES: list[tuple[str, bytes]] = []
"""Files of forms."""
SERVED: list[Any] = []


def prepare_routes() -> None:
    """Make tiny models and files, and read the description of the routes."""
    import soundfile
    from PIL import Image

    from translume.checkpoint import (
        Checkpoint,
        ClassifierCheckpoint,
        LanguageModelCheckpoint,
        build_language_model,
        build_model,
    )
    from translume.checkpoint.building import build_classifier
    from translume.config import Config
    from translume.serving.models import ServedModel
    from translume.text import Labels, train_tokenizer
    from translume.translator import Classifier, Generator, Translator

    shape = {"encoder_layers": 1, "decoder_layers": 1, "width": 16, "feed_forward": 16, "attention_heads": 2,
             "max_positions": 41}  # fmt: skip
    letters = {"kind": "character", "size": 61, "unknown": "token"}
    tokenizer = train_tokenizer(Config.build({"tokenizer": letters}).tokenizer, ["abcdefghijklm nopqrstuvwxyz.!?"])
    count = len(tokenizer)

    def config(data: dict[str, Any], **model: Any) -> Any:
        parts = {"data": data, "tokenizer": letters, "model": {**shape, **model}}
        if data.get("task") == "classification":
            parts["training"] = {"metric": "accuracy", "label_smoothing": 0.0}
            del parts["model"]["decoder_layers"]
        return Config.build({**parts, "decoding": {"max_length": 9}} if "training" not in parts else parts)

    both: dict[str, Any] = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    used = config({"source_language": "en", "target_language": "de"})
    network = build_model(used.model, count, count).eval()
    SERVED.append(ServedModel.from_model("m", Translator(Checkpoint(config=used, model=network, **both))))
    used = config({"source": {"kind": "audio", "channels": 7}}, max_positions=97)
    network = build_model(used.model, count, count, used.data.source).eval()
    SERVED.append(ServedModel.from_model("ear", Translator(Checkpoint(config=used, model=network, **both))))
    used = config({"task": "classification"}, head={"kind": "classify"})
    classifier = build_classifier(used.model, count, 2).eval()
    checkpoint = ClassifierCheckpoint(
        config=used, model=classifier, source_tokenizer=tokenizer, labels=Labels(("a", "b"), "")
    )
    SERVED.append(ServedModel.from_model("kinds", Classifier(checkpoint)))
    used = config({"task": "language_model", "block_length": 40}, encoder_layers=0)
    network = build_language_model(used.model, count, count).eval()
    language_model = LanguageModelCheckpoint(config=used, model=network, **both)
    SERVED.append(ServedModel.from_model("writer", Generator(language_model)))
    sound, image = io.BytesIO(), io.BytesIO()
    soundfile.write(sound, [0.1, -0.1] * 800, 16_000, format="WAV")
    Image.new("L", (40, 30), 90).save(image, "PNG")
    FILES.extend(
        [("a.wav", sound.getvalue()), ("a.png", image.getvalue()), ("a.txt", b"a dog runs .\n"), ("a.srt", b"x")]
    )
    FILES.append(("a.html", b"<p>a <b>dog</b></p>"))
    description = application()[0]._app.openapi()
    SCHEMAS.update(description["components"]["schemas"])
    for path, operations in description["paths"].items():
        ROUTES.update({f"{method.upper()} {path}": each for method, each in operations.items()})
    ROUTES["GET /openapi.json"] = {}


def application() -> tuple[Any, Any]:
    """Return the application and the server. A search ends after half a second."""
    from translume.serving.api.app import build_app
    from translume.serving.models import ServedModels
    from translume.serving.server import Server
    from translume.serving.settings import Limits, ServeSettings

    class English:
        def languages(self, text: str, among: Any) -> list[tuple[str, float]]:
            return [("en", 1.0)]

    server = Server(models=ServedModels(SERVED), settings=ServeSettings(limits=Limits(timeout_seconds=0.5)))
    return build_app(server, detector=English()), server


class Client:
    """Sends requests to an application in this process; it counts errors in the log as faults."""

    def __init__(self) -> None:
        from translume.serving.files import documents

        self._loop = asyncio.new_event_loop()
        self._app, self._server = application()
        mock.patch.object(documents, "REUSED_SECONDS", 60.0).start()  # the machine may be busy
        self._errors: list[str] = []
        handler = logging.Handler(logging.ERROR)
        handler.emit = lambda record: self._errors.append(logging.Formatter().format(record))  # type: ignore[method-assign]  # of this one
        logging.getLogger().addHandler(handler)
        self._end = asyncio.Event()
        self._life = self._loop.create_task(self._live())

    async def _live(self) -> None:
        messages = iter(({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))

        async def receive() -> dict[str, Any]:
            message = next(messages)
            if message["type"] == "lifespan.shutdown":
                await self._end.wait()
            return message

        async def send(message: Any) -> None:
            pass

        await self._app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)

    def close(self) -> None:
        self._end.set()
        self._loop.run_until_complete(self._life)

    def ask(self, request: Request) -> str:
        """Return the status of a request; a fault for a traceback in the log, or an answer without a needed header."""
        self._errors.clear()
        status, headers, body = self._loop.run_until_complete(asyncio.wait_for(self._answer(request), 100))
        if self._errors:
            return f"fault: {status}, {self._errors[0][-900:]}"
        if status in (429, 503) and b"retry-after" not in headers:
            return f"fault: {status} without Retry-After"
        if status >= 400 and (body.count(b"\n") > 1 or len(body) > 2000 or b"error" not in body):
            return f"fault: {status} with {body[:300]!r}"
        return str(status)

    async def _answer(self, request: Request) -> tuple[int, dict[bytes, bytes], bytes]:
        middle = len(request.body) // 2
        first, last = request.body[:middle], request.body[middle:] + b""
        chunks = iter((first, last) if middle else (last,))
        answer: list[Any] = [0, {}, b""]
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            chunk = next(chunks, None)
            if chunk is None:
                await ended.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": chunk, "more_body": chunk is not last}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer[:2] = message["status"], dict(message["headers"])
            else:
                answer[2] += message.get("body", b"")

        await self._app(request.scope(), receive, send)
        ended.set()
        return answer[0], answer[1], answer[2]


def row_of(kind: str, rows: list[Row]) -> str:
    slow, large = (max(rows, key=lambda row: row[name]) for name in ("seconds", "mb"))
    results = [str(row["result"]) for row in rows]
    refused = sum(result.startswith(("refused", "4")) for result in results)
    bad = sum(map(is_fault, rows))
    return (
        f"| {kind} | {len(rows)} | {len(rows) - refused - bad} | {refused} | {1000 * slow['seconds']:,.0f} ({slow['seed']}) | "
        f"{large['mb']:.0f} ({large['seed']}) | {bad} |"
    )


def is_fault(row: Row) -> bool:
    return str(row["result"]).startswith(("fault", "500")) or row["seconds"] > SECONDS or row["mb"] > MEGABYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=400, help="of each format and route")
    parser.add_argument("--seed", type=int, default=1, help="of the first input; the next has the next one")
    parser.add_argument("--only", nargs="*", default=[], help="formats and routes")
    parser.add_argument("--worst", type=int, default=20, help="the slowest inputs to list")
    given = parser.parse_args()
    if not given.only or any(" " in kind for kind in given.only):
        prepare_routes()
    kinds = [kind for kind in (*ARCHIVES, *TEXTS, *ROUTES) if not given.only or kind in given.only]
    import translume.documents.files
    import translume.documents.sentences  # noqa: F401 - not to measure imports

    print("| inputs | of them | read or answered | refused | longest, ms (seed) | memory, MB (seed) | faults |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    everything: list[Row] = []
    for kind in kinds:
        rows = [*in_processes(kind, [*range(given.seed, given.seed + given.inputs)])]
        everything += rows
        print(row_of(kind, rows), flush=True)
    for row in filter(is_fault, everything):
        print(f"{row['kind']} seed {row['seed']}: {row['result']}, {row['seconds']:.2f} s, {row['mb']:.0f} MB")
        print(row["trace"], end="")
    print(f"the {given.worst} slowest:")
    for row in sorted(everything, key=lambda row: -row["seconds"])[: given.worst]:
        print(f"  {row['kind']} seed {row['seed']}: {row['seconds']:.2f} s, {row['mb']:.0f} MB, {row['bytes']:,} bytes")
    sys.exit(any(map(is_fault, everything)))


if __name__ == "__main__":
    main()
