"""translume docs"""

import sys
from pathlib import Path

import click

from translume.errors import SettingsError, nearest

IN_PACKAGE, IN_CHECKOUT = Path(__file__).parents[1] / "docs", Path(__file__).parents[3] / "docs"
WIDEST = 110
"""Columns of a page on a wide terminal."""


@click.command("docs", short_help="Show a page of the documentation.", epilog="Example: translume docs cleaning")
@click.argument("page", required=False)
def command(page: str | None) -> None:
    """Show a page of this version's documentation, without network. Without PAGE, list the pages.

    On a terminal it is formatted and can be scrolled; in a pipe or file it is the page's Markdown.
    """
    folder = IN_PACKAGE if IN_PACKAGE.is_dir() else IN_CHECKOUT
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    if not pages:
        raise SettingsError("docs: this installation has no pages; they are in the folder docs of the sources")
    if page is None:
        for name, text in pages.items():
            print(f"{name:18}{text.partition(chr(10))[0].removeprefix('# ')}")
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        raise SettingsError(f"docs: no page '{page}'{nearest(name, pages)}")
    if not sys.stdout.isatty():
        print(pages[name], end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.width = min(console.width, WIDEST)
    with console.capture() as captured:
        console.print(Markdown(pages[name], hyperlinks=False))
    click.echo_via_pager(captured.get())
