"""Markdown keeps its blocks, links, emphasis and code, however long its translations are."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.documents.marked import CHANGES, translated

from translume.documents import FORMATS

CASES = {
    "headings": ("# A title #\n\nTwo\n---\n### c# ###\n", "# A TITLE #\n\nTWO\n---\n### C# ###\n"),
    "a paragraph becomes one line": ("one\ntwo\r\n\nthree\n", "ONE TWO\r\n\nTHREE\n"),
    "hard breaks": ("one  \ntwo\\\nthree", "ONE  \nTWO\\\nTHREE"),
    "emphasis": ("a **b *c* d** _e_ ~~f~~ ***g** h* 2 * 3 s_n", "A **B *C* D** _E_ ~~F~~ ***G** H* 2 \\* 3 S_N"),
    "code": ("a `b c` ``d ` e`` f `", "A `b c` ``d ` e`` F \\`"),
    "links": (
        '[a b](http://x.y/a_b "t (u)") <http://c.d> http://e.f/g_h ![i](j.png) [k [l](m)',
        '[A B](http://x.y/a_b "t (u)") <http://c.d> http://e.f/g_h ![I](j.png) \\[K [L](m)',
    ),
    "images": (
        "![a](b.png)\n\nc [![d \\] e](f.svg)](http://g) ![h][k] ![{x}](i)\n\n[k]: http://l\n",
        "![A](b.png)\n\nC [![D \\] E](f.svg)](http://g) ![H][k] ![{x}](i)\n\n[k]: http://l\n",
    ),
    "references": (
        'See [the Docs], [a][the docs], [b][] and [c][d].[^1]\n\n[The docs]: http://x "y"\n[^1]: A note\n',
        "SEE [THE DOCS][the Docs], [A][the docs], \\[B\\]\\[\\] AND \\[C\\]\\[D\\].[^1]\n\n"
        '[The docs]: http://x "y"\n[^1]: A NOTE\n',
    ),
    "lists": (
        "- a\n  b\n* [x] c\n  1) d\n\n     e\n\n         code\n10. f\n-\n",
        "- A B\n* [x] C\n  1) D\n\n     E\n\n         code\n10. F\n-\n",
    ),
    "many lists in a line": ("- " * 30 + "a\n", "- " * 30 + "a\n"),
    "quotes": ("> a\n> b\n> - c\n>\n> > d\n>\n>     code\n", "> A B\n> - C\n>\n> > D\n>\n>     code\n"),
    "code blocks": (
        "a\n```py\nb\n\n> c\n```\n- ~~~~\n  d\n  ~~~\n  ~~~~\n  e\n\n    f\n\tg\n$$\nh\n$$\n> ```\n> i\nj",
        "A\n```py\nb\n\n> c\n```\n- ~~~~\n  d\n  ~~~\n  ~~~~\n  E\n\n    F G\n$$\nh\n$$\n> ```\n> i\nJ",
    ),
    "indented code": ("a\n\n    b\n\n\tc\nd\n    e\n", "A\n\n    b\n\n\tc\nD E\n"),
    "tables": (
        "a\n| b | `c` \\| d |\n|:--|---|\n| e | **f** |\n| g\n\nh | i\n",
        "A\n| B | `c` \\| D |\n|:--|---|\n| E | **F** |\n| G\n\nH | I\n",
    ),
    "HTML": (
        "<div>\na\n</div>\n\n<!-- b\n\nc -->\nd <b title='e_f'>g</b> <!-- h -->\n<pre>\n\ni\n</pre>\nj\n",
        "<div>\na\n</div>\n\n<!-- b\n\nc -->\nD <b title='e_f'>G</b> <!-- h -->\n<pre>\n\ni\n</pre>\nJ\n",
    ),
    "front matter": ("---\ntitle: a\n---\nb\n\n---\nc\n---\n", "---\ntitle: a\n---\nB\n\n---\nC\n---\n"),
    "placeholders": (
        "a {b} {{ c_d }} %s {% e %} $f_1$ costs $5 and $6",
        "A {b} {{ c_d }} %s {% e %} $f_1$ COSTS $5 AND $6",
    ),
    "entities and escapes": ("a &amp; &lt;b&gt; \\*c\\* &nbsp;d", "A & &lt;B&gt; \\*C\\* D"),
    "dialects": (':::note\na\n:::\n\n!!! tip "b"\n    c\n', ':::note\nA\n:::\n\n!!! tip "b"\n    C\n'),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_are_translated_and_all_else_stays(name: str) -> None:
    text, expected = CASES[name]
    assert translated(".md", text) == expected


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("a", "# b", "\\# b"),
        ("a", "- b", "\\- b"),
        ("a", "1. b", "1\\. b"),
        ("a", "> b", "\\> b"),
        ("a", "*b* [c] d_e_ f_g `h` <i> &j; &", "\\*b\\* \\[c\\] d_e\\_ f_g \\`h\\` \\<i> \\&j; &"),
        ("> a\n> *b*", "- c", "> \\- *c*"),
        ("one **two**", "x", "**x**"),
        ("**one** *two*", "x", "**x**"),
        ("_one_ two", "一二", "*一*二"),
        ("**one:** two", "一：二", "**一**：二"),
    ],
)
def test_no_translation_becomes_markup_or_breaks_it(text: str, translation: str, expected: str) -> None:
    assert translated(".md", text, lambda _: translation) == expected


blocks = st.sampled_from(
    ["- ", "1. ", "> ", "# ", "", "", "    ", "```\na\n```\n", "<div>b</div>\n\n", "---\n", "| A | b |\n|--|--|\n"]
)
inlines = st.sampled_from(
    (
        *("**bold**", "*it*", "__st__", "***x***", "~~i~~", "`code`", "[link_a](http://b.c/d_e)", "![f](g)"),
        *("word", "&amp;", "\\*", "5*3", "(h)", "<b>hi</b>", "%s", "{j}"),
    )
)
texts = st.lists(
    st.tuples(blocks, st.lists(inlines, max_size=4).map(" ".join), st.sampled_from(["\n", "\n\n"])), max_size=5
)


@settings(max_examples=30, deadline=None)
@example("- \n\n    **bold**\n", "hostile")
@example("> **bold** `code`\n**bold**\n> \n", "merged")
@given(texts.map(lambda parts: "".join(map("".join, parts))), st.sampled_from(sorted(CHANGES)))
def test_the_structure_stays_in_any_translation(text: str, change: str) -> None:
    before, after = structure(text), structure(translated(".md", text, CHANGES[change]))
    # Emphasis is left out when too few words are left for it.
    assert [each for each in after if each not in EMPHASIS] == [each for each in before if each not in EMPHASIS]


EMPHASIS = tuple((f"{kind}_{side}", "", "") for kind in ("strong", "em", "s") for side in ("open", "close"))


def structure(text: str) -> list[Any]:
    """Return the blocks and inlines of Markdown without its texts."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable(["table", "strikethrough"])
    found: list[Any] = []
    for token in markdown.parse(text):
        found += [(token.type, token.tag, "" if token.children else token.content)]
        for each in token.children or []:
            if each.type not in ("text", "softbreak", "text_special"):
                found.append(
                    (each.type, "", str(each.attrs) if each.attrs else each.content if each.type != "text" else "")
                )
    return found


@given(st.text(st.sampled_from("*_`[]()!<>|-#\\&;$~{}%=:\n\r\t ab漢."), max_size=60))
def test_any_text_is_the_same_without_translation(text: str) -> None:
    translated(".md", text)


def test_reading_takes_time_linear_in_the_length() -> None:
    for part in (
        "*",
        "**a",
        "`",
        "[",
        "[a](",
        "[^",
        "<!--",
        "<a",
        "{",
        "$a",
        "> ",
        "- ",
        "\\",
        "a\n",
        "|",
        "`` `",
        "](",
    ):
        data = (part * (20_000 // len(part))).encode()
        document = FORMATS[".md"].read(data)
        assert document.with_runs([segment.runs for segment in document.segments]) == data
