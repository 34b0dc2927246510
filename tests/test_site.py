"""The documentation site: it builds without a warning, its links lead somewhere, its pages are accessible."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from tests.programs import program

ROOT = Path(__file__).resolve().parents[1]


COLOURED = re.compile(r'<span class="\w+">([^<]*)</span>')
"""A word of highlighted code, without anchors and links; most of a page consists of them."""


class Page(HTMLParser):
    """The places that a page has, and those that it links to or loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(COLOURED.sub("", path.read_text(encoding="utf-8")))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value is None:
                continue
            if name == "id":
                self.anchors.add(value)
            elif tag == "a" and name == "href":
                self.links.append(value)
            elif name == "src" or (tag == "link" and name == "href"):
                self.loads.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs-site` does."""
    pytest.importorskip("furo", reason="furo is not installed: pip install translume[dev]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-d", f"{folder}/cache"]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "docs"), str(ROOT), str(folder / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "site"


def test_every_link_leads_to_a_page_and_a_place_in_it_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 60
    broken, foreign = [], []
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    foreign.append((path.name, link))
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            known = pages[target].anchors if target in pages else {anchor}
            if not target.exists() or (anchor and anchor not in known):
                broken.append((str(path.relative_to(site)), link))
    assert broken == []
    assert foreign == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_fit_phones_and_desktops_in_light_and_dark_mode_and_are_accessible(
    site: Path, browser: Any, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    pages = ("docs/index.html", "docs/transformer.html", "docs/notebooks/first_translator.html")
    for name in (*pages, "code/src/translume/belief.py.html"):
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab.goto((site / name).as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, name
        found = axe.Axe().run(tab).response
        assert len(found["passes"]) > 15
        assert [(each["id"], node["html"]) for each in found["violations"] for node in each["nodes"]] == [], name
        tab.close()


def test_the_figures_of_the_explanation_are_those_of_the_model() -> None:
    folder = ROOT / "docs" / "figures"
    make = program("docs/figures/make.py")
    model = make.Model()
    drawn = {f"{figure.__name__.replace('_', '-')}.svg": figure(model) for figure in make.FIGURES}
    assert {path.name for path in folder.glob("*.svg")} == set(drawn)
    page = (ROOT / "docs" / "transformer.md").read_text(encoding="utf-8")
    for name, picture in drawn.items():
        kept = (folder / name).read_text(encoding="utf-8")
        assert f"figures/{name}" in page
        assert re.sub(r"#[0-9a-f]{6}|[-\d.]+", "", kept) == re.sub(r"#[0-9a-f]{6}|[-\d.]+", "", picture), name
        # Kernels of another processor round otherwise.
        assert make.numbers(kept) == pytest.approx(make.numbers(picture), abs=1.5), name


@pytest.fixture
def serve_folder() -> Iterator[Callable[[Path], str]]:
    """Serve a folder over HTTP on this machine."""
    servers = []

    def served(folder: Path) -> str:
        handler = partial(QuietHandler, directory=str(folder))
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield served
    for server in servers:
        server.shutdown()
        server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write nothing."""


def test_several_published_versions_can_be_chosen(
    site: Path, browser: Any, tmp_path: Path, serve_folder: Callable[[Path], str]
) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    (tmp_path / version).symlink_to(site)
    (tmp_path / "9.9.9").mkdir()
    (tmp_path / "9.9.9" / "index.html").write_text("<title>another version</title>", encoding="utf-8")
    (tmp_path / "versions.json").write_text(f'["9.9.9", "{version}"]', encoding="utf-8")
    tab = browser.new_page()
    tab.goto(f"{serve_folder(tmp_path)}/{version}/docs/transformer.html")
    choice = tab.wait_for_selector(".site-version select:not([hidden])")
    assert choice.evaluate("each => [...each.options].map(one => one.value)") == ["9.9.9", version]
    choice.select_option("9.9.9")
    tab.wait_for_url("**/9.9.9/index.html")
    tab.close()
