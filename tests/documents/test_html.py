"""HTML is translated with its markup unchanged; html5lib, a standard-conforming parser, is the reference."""

import time
from collections.abc import Callable
from html import unescape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.documents.test_markup_placement import changed

from translume.documents.html import HtmlText, Token, tokens
from translume.documents.sentences import SplitSegments


def translated(html: str, change: Callable[[str], str] = str.upper) -> str:
    return changed(HtmlText.from_string(html, attributes=True), change)


PIECES = [
    *("<", ">", "/", "<!--", "-->", "--!>", "<!-->", "<!doctype html>", "<![CDATA[", "]]>", "<?x", "</", "=", '"', "'"),
    *("<p>", "</p>", "<b>", "</b>", "<i class=x>", "</i>", "<br>", "<br/>", "<img src=a alt='b c'>", "<li>", "</ul>"),
    *("<script>", "</script>", "<style>", "</style>", "<title>", "</title>", "<textarea>", "</textarea>", "<pre>"),
    *("<code>", "</code>", "<a href='x>y'>", "</a>", '<p translate="no">', "<b translate=no>"),
    *("<span class='notranslate'>", "</span>", "&amp;", "&lt;b", "&nbsp;", "&#x41;", "&copy", "a b", "Cd. Ef", " "),
    *("\n", "\x00", "é", "漢。", "<svg>"),
    *("<plaintext>", "<a b", "</pre>", "<SCRIPT", "<b/c d=e f>", "<p\ntitle=it's>", "1", ".", "--", "!"),
]
soups = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


STATES = {"script": "scriptDataState", "style": "rawtextState", "title": "rcdataState", "textarea": "rcdataState"}
"""The state of html5lib's tokenizer that the tree builder sets inside each element."""


@given(soups | st.text(max_size=40))
@example("<a <b>c</b>")
@example("a</ b>c<1>d")
@example("<script><!--<script>a</script>b</script>c")
def test_html_with_unchanged_text_is_identical(html: str) -> None:
    assert "".join(token.text for token in tokens(html)) == html
    assert translated(html, str) == html


@given(soups)
def test_everything_but_text_is_unchanged(html: str) -> None:
    # Of tags with attributes, which may be shown, the names.
    before, after = (
        [(token.name, token.text if "=" not in token.text else "") for token in tokens(each) if token.kind != "text"]
        for each in (html, translated(html, str.swapcase))
    )
    assert after == before


@given(soups)
@example("<p>a<p translate=no>b<p>c")
@example("<title>a</titlex></title>b")
@example("a<script>b</script>c<style>d&amp;</style>e&amp;<title>f&amp;<b></title>")
def test_text_is_found_as_by_a_standard_parser(html: str) -> None:
    html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed")
    # Skip what the standard reads differently: an unfinished tag at the end, null bytes, CDATA in HTML elements.
    if "\x00" in html or "<![CDATA[" in html or "<svg>" in html or "<plaintext>" in html:
        return
    found = html5lib._tokenizer.HTMLTokenizer(html)
    wanted: list[str] = []
    for token in found:
        if token["type"] in (1, 2):
            wanted.append(token["data"])
        elif token["type"] == 3 and token["name"] in STATES:
            found.currentToken = token
            found.state = getattr(found, STATES[token["name"]])
    given_text = "".join(
        text if raw_in else unescape(text) for raw_in, text in _texts(list(tokens(html.replace("\r", "\n"))))
    )
    assert "".join(wanted).replace("\x00", "") == given_text


def _texts(found: list[Token]) -> list[tuple[bool, str]]:
    """Return the texts, each with a flag that is true if character references in it are not decoded."""
    texts: list[tuple[bool, str]] = []
    inside = ""
    for token in found:
        if token.kind == "text":
            texts.append((inside in ("script", "style"), token.text))
        inside = token.name if token.kind == "opens" else ""
    return texts


EXAMPLES = {
    "a sentence with a tag": ("<p>Hello <b>dear</b> world.</p>", "<p>HELLO <b>DEAR</b> WORLD.</p>"),
    "attributes": ('<a href="x>y" title=it\'s>a</a>', '<a href="x>y" title="IT\'S">A</a>'),
    "attributes that are shown": (
        '<img alt=\'a " b\' src=c><input type=submit value=d placeholder="e &amp; f"><p aria-label=g lang=h>12</p>'
        '<meta name="description" content="i"><meta name=author content=j><option value=k label=l>',
        '<img alt=\'A " B\' src=c><input type=submit value="D" placeholder="E &amp; F"><p aria-label="G" lang=h>12</p>'
        '<meta name="description" content="I"><meta name=author content=j><option value=k label="L">',
    ),
    "readings": (
        "<p>I live in <ruby>Tokyo<rp>(</rp><rt>toukyou</rt><rp>)</rp></ruby> now.</p><ruby>a<rt>b<rp>)</ruby>c",
        "<p>I LIVE IN <ruby>TOKYO<rp>(</rp><rt>toukyou</rt><rp>)</rp></ruby> NOW.</p><ruby>A<rt>b<rp>)</ruby>C",
    ),
    "places where a word may be divided": ("<p>a<wbr>b c&shy;d</p>", "<p>A<wbr>B CD</p>"),
    "marks of notes": (
        'village<sup><a href="#c1">3</a></sup> has, 1973<sup>[1]</sup>. B<sup>*</sup> <a epub:type="noteref">4</a> c',
        'VILLAGE<sup><a href="#c1">3</a></sup> HAS, 1973<sup>[1]</sup>. B<sup>*</sup> <a epub:type="noteref">4</a> C',
    ),
    "subscripts and superscripts": (
        "H<sub>2</sub>O, 10<sup>3</sup> m<sup>2</sup>, the 1<sup>st</sup> day",
        "H<sub>2</sub>O, 10<sup>3</sup> M<sup>2</sup>, THE 1<sup>ST</sup> DAY",
    ),
    "quotes around a tag": ("\u00ab<i>The village has it.</i>\u00bb b", "\u00ab<i>THE VILLAGE HAS IT.</i>\u00bb B"),
    "scripts and styles": (
        "a<script>if (a < b) 'c</b>'</script><style>b {}</style>d",
        "A<script>if (a < b) 'c</b>'</script><style>b {}</style>D",
    ),
    "a script in a comment in a script": (
        "<script><!--<script>a</script>b</script>c",
        "<script><!--<script>a</script>b</script>C",
    ),
    "code in a sentence": ("Run <code>ls -l</code> now", "RUN <code>ls -l</code> NOW"),
    "what is not to be translated": (
        'a <span translate="no">b <b>c</b></span> d <i class="x notranslate">e</i> f',
        'A <span translate="no">b <b>c</b></span> D <i class="x notranslate">e</i> F',
    ),
    "one of a list": ("<ul><li>a<li translate=no>b<li>c</ul>d", "<ul><li>A<li translate=no>b<li>C</ul>D"),
    "the last of a list": ("<ul><li>a<li translate=no>b</ul>d", "<ul><li>A<li translate=no>b</ul>D"),
    "a list in it": (
        "<ul><li translate=no>b<ul><li>c</ul>d<li>e</ul>",
        "<ul><li translate=no>b<ul><li>c</ul>d<li>E</ul>",
    ),
    "a paragraph without end": ("<p translate=no>a<div>b</div>", "<p translate=no>a<div>B</div>"),
    "an element without content": ("<br translate=no>a", "<br translate=no>A"),
    "references": ("a &amp; b &lt; c &copy d", "A &amp; B &lt; C © D"),
    "a signs of less": ("a < b, 1<2", "A &lt; B, 1&lt;2"),
    "preformatted text, which is code": ("<pre>\na b\n  c\n</pre>d\ne", "<pre>\na b\n  c\n</pre>D E"),
    "a title": ("<title>a &lt;b></title>", "<title>A &lt;B&gt;</title>"),
    "a comment in a sentence": ("a <!-- b --> c", "A <!-- b -->C"),
    "an image in a sentence": ("See <img src=a alt='b'> here", "SEE <img src=a alt='B'> HERE"),
    "a tag that is cut off": ("a <b", "A <b"),
    "no letters": ("<td>12.5 &ndash; 3</td>", "<td>12.5 &ndash; 3</td>"),
    "a drawing": ('<p>a</p><svg class="i"/><p>b</p>', '<p>A</p><svg class="i"/><p>B</p>'),
    "a formula": ("<p>a</p><math/><p>b</p>", "<p>A</p><math/><p>B</p>"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_which_parts_are_translated(name: str) -> None:
    html, wanted = EXAMPLES[name]
    assert translated(html) == wanted


def test_special_characters_are_escaped() -> None:
    assert translated("<p>a</p>", lambda _: "<b>&\u00a0\"'</b>") == "<p>&lt;b&gt;&amp;&nbsp;\"'&lt;/b&gt;</p>"


def test_sentences_continue_across_inline_tags_but_not_across_blocks() -> None:
    page = HtmlText.from_string("<h1>One</h1><p>Two <b>three. Four</b> five.<div>Six</div> seven<br>eight")
    lines = SplitSegments.from_segments(page.segments, "en").lines
    assert lines == ("One", "Two three.", "Four five.", "Six", "seven", "eight")


@pytest.mark.parametrize(
    "part",
    [
        "<", "<a ", '<a b="', "<a b='", "<!--", "<!-", "<script><!--", "<script>", "</", "<title>", "<code>", "&amp",
        "<b>x ",
    ],
)  # fmt: skip
def test_time_is_linear_in_the_length_of_the_text(part: str) -> None:
    html = part * (300_000 // len(part))
    begun = time.process_time()
    assert translated(html, str) == html
    assert time.process_time() - begun < 10
    for rest in ("=" * 300_000, "/" * 300_000, " " * 300_000):
        assert len(list(tokens(f"<a {rest}"))) == 1
