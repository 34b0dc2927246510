"""The documentation site, which Sphinx builds from the Markdown files of the repository (`make docs-site`).

The pages are the same files that a reader of the repository sees, at the same places, so that one link serves both.
"""

import html
import json
import os
import posixpath
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "Translume"
author = "The Translume developers"
project_copyright = "the Translume developers, Apache-2.0"
release = version = (
    os.environ.get("TRANSLUME_DOCS_VERSION")
    or tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
)

root_doc = "docs/index"
include_patterns = [
    *("docs/*.md", "docs/notebooks/*.ipynb", "recipes/*.md", "benchmarks/README.md"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
]
exclude_patterns = [".*", "build", "src", "tests", "dist"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
suppress_warnings = ["myst.header"]  # README begins with its two commands.
copybutton_prompt_text = "$ "  # The copied command leaves the prompt and what the command prints.

html_theme = "furo"
html_title = f"Translume {release}"
html_static_path = ["_site/static"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}
templates_path = ["_site/templates"]
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = False
html_extra_path = [str(ROOT / "build" / "web")] if tags.has("demo") else []  # noqa: F821  Sphinx defines the tags.
html_additional_pages = {"index": "redirect.html"}


def read_notebook(app: Sphinx, name: str, content: list[str]) -> None:
    """Replace the content of a notebook by Markdown: its texts, and its code in fences."""
    if app.env.doc2path(name).suffix == ".ipynb":
        cells = json.loads(content[0])["cells"]
        texts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
        content[0] = "\n\n".join(f"```ipython3\n{text}\n```" if is_code else text for text, is_code in texts)


def formula(translator: Any, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers draw. The usual renderer loads a program from elsewhere."""
    block = isinstance(node, nodes.math_block)
    body = tex2mathml(node.astext(), as_block=block)
    translator.body.append(f'<div class="math">{body}</div>' if block else body)
    raise nodes.SkipNode


def link_code(app: Sphinx, doctree: nodes.document) -> None:
    """Let links to files of the repository lead to pages that show them; myst_parser makes downloads of them."""
    here = app.env.docname
    for node in list(doctree.findall(addnodes.download_reference)):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), node["reftarget"]))
        shown = posixpath.join("code", path)
        _linked(app).add(path)
        node.replace_self(
            nodes.reference(
                "",
                "",
                *node.children,
                refuri=posixpath.relpath(app.builder.get_target_uri(shown), posixpath.dirname(here)),
            )
        )


def code_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file of the repository that a page links to."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", wrapcode=True)
    for path in sorted(_linked(app)):
        text = (ROOT / path).read_text(encoding="utf-8")
        try:
            lexer = get_lexer_for_filename(path)
        except ClassNotFound:
            lexer = TextLexer()
        title = html.escape(path)
        body = f"<section><h1>{title}</h1>{highlight(text, lexer, formatter)}</section>"
        yield posixpath.join("code", path), {"title": title, "body": body}, "page.html"


def share_navigation(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let the pages of code in a folder share their navigation, which has the same links for all of them."""
    if name.startswith("code/"):
        context["toctree"] = partial(_navigation, app, posixpath.dirname(name), context["toctree"])


def _navigation(app: Sphinx, folder: str, make: Callable[..., str], **options: Any) -> str:
    shared = app.__dict__.setdefault("translume_navigation", {})
    key = (folder, *options.items())
    if key not in shared:
        shared[key] = make(**options)
    return shared[key]


def _linked(app: Sphinx) -> set[str]:
    """Return the paths of the files that pages link to; they are kept with the pages, for later builds."""
    if not hasattr(app.env, "translume_linked"):
        app.env.translume_linked = set()
    return app.env.translume_linked


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("source-read", read_notebook)
    app.connect("doctree-read", link_code, priority=100)  # before Sphinx copies the downloads
    app.connect("html-collect-pages", code_pages)
    app.connect("html-page-context", share_navigation, priority=100)  # before the theme makes it
    return {"parallel_read_safe": False}
