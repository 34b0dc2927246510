"""The page at /: no script injection, retries when busy, API keys, layout, accessibility (axe), security headers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serving.conftest import whole

from translume.serving.access.keys import add_key
from translume.serving.access.quotas import open_access
from translume.serving.models import ServedModel
from translume.serving.page.routes import DRAWN
from translume.serving.settings import KeySettings
from translume.translator import Translator

PAGE = Path(__file__).resolve().parents[2] / "src" / "translume" / "serving" / "page"


MALICE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_text_of_users_and_models_is_neither_executed_nor_parsed_as_html(tab: Any) -> None:
    tokens = ["▁<img", "▁src=x", "▁onerror=alert(1)><script>alert(2)</script>", "</s>"]
    hypothesis = {"text": MALICE, "tokens": tokens, "token_log_probs": [-0.1, -1.0, -3.0, -0.1]}
    answer = {"model": "en-de", "translations": [{"text": MALICE, "warnings": [], "hypotheses": [hypothesis]}]}
    tab.page.route(
        "**/v1/translate/stream",
        lambda route: route.fulfill(
            body=f"event: done\ndata: {json.dumps(answer)}\n\n", content_type="text/event-stream"
        ),
    )
    tab.hurry()
    tab.type(MALICE, MALICE)
    assert tab.tokens().all_inner_texts() == ["<img", "src=x", "onerror=alert(1)><script>alert(2)</script>"]
    tab.page.wait_for_selector("#entries li", state="attached")
    assert tab.page.locator("main img, main script").count() == 0
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|https?://|import\(")
    for path in PAGE.glob("*.[hcjs]*"):
        found = sinks.findall(path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", ""))
        assert not found, path.name


def test_a_sentence_that_is_too_long_is_explained_below_the_last_translation(tab: Any, translator: Translator) -> None:
    tab.type("a man", *whole(translator, "a man"))
    tab.page.fill("#text", "a" * 41)
    tab.tell(
        "#problem",
        "A sentence is too long for this model (41 tokens, at most 40). Split it with a full stop or a new line.",
    )
    assert tab.page.inner_text("#output .stale") == whole(translator, "a man")[0].strip()
    tab.faults.clear()  # The browser logs the 422.
    tab.type("a man", *whole(translator, "a man"))
    tab.page.wait_for_selector("#problem", state="hidden")


def test_the_page_prompts_for_a_key_when_the_server_requires_one(
    start: Callable[..., Any], translator: Translator, open_tab: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    secret = add_key(path, "alice", {})
    live = start(ServedModel.from_model("en-de", translator), access=open_access(KeySettings(file=str(path))))
    tab = open_tab(live)
    tab.page.fill("#text", "a man")
    tab.tell("#problem", "Enter an API key to translate.")
    tab.faults.clear()  # The browser logs the 401.
    tab.page.fill("#key", secret)
    tab.page.keyboard.press("Enter")
    tab.shows(*whole(translator, "a man"))
    tab.tokens().first.click()
    tab.page.wait_for_selector("#bars .bar")
    assert tab.page.locator("#key-form").is_hidden()
    assert secret not in tab.page.evaluate("JSON.stringify(localStorage)")


@pytest.mark.parametrize(
    ("width", "scheme", "forced"), [(400, "dark", "none"), (1600, "light", "none"), (360, "dark", "active")]
)
def test_the_page_fits_phones_and_desktops_in_light_and_dark_mode_and_is_accessible(
    open_tab: Callable[..., Any], live: Any, translator: Translator, width: int, scheme: str, forced: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    tab = open_tab(live, viewport={"width": width, "height": 900}, color_scheme=scheme, forced_colors=forced)

    def violations() -> list[tuple[str, str]]:
        # The page's policy forbids foreign scripts, so axe is injected through the debugger.
        found = axe.Axe().run(tab.page).response
        assert len(found["passes"]) > 20
        return [(each["id"], node["html"]) for each in found["violations"] for node in each["nodes"]]

    assert tab.page.evaluate("document.documentElement.dataset.theme") == scheme
    assert violations() == []
    tab.hurry()
    tab.type("a man\nhello you", "\n".join(whole(translator, "a man", "hello you")))
    tab.page.wait_for_selector("#entries li", state="attached")
    for drawer in ("#history", "#glossary", "footer"):
        tab.page.click(f"{drawer} summary")
    tab.page.fill("#term", "man")
    tab.page.fill("#translated-term", "mad")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#terms li")
    tab.page.click("#more")
    tab.page.wait_for_selector("#others:not([hidden])")
    tab.tokens().nth(1).click()
    tab.page.wait_for_selector("#step:not([hidden])")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations() == []
    tab.page.click("#figures")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations() == []
    other = "dark" if scheme == "light" else "light"
    tab.page.select_option("#theme", other)
    assert tab.page.evaluate("document.documentElement.dataset.theme") == other
    assert violations() == []


def test_bars_and_the_selected_word_are_visible_in_forced_colours(
    open_tab: Callable[..., Any], live: Any, translator: Translator
) -> None:
    tab = open_tab(live, forced_colors="active")
    tab.type("a man", *whole(translator, "a man"))
    tab.tokens().nth(1).click()
    tab.page.wait_for_selector("#step:not([hidden])")
    colour = "(element) => getComputedStyle(element).backgroundColor"
    ground = tab.page.locator("body").evaluate(colour)
    mark = tab.tokens().nth(1).evaluate(colour)
    assert mark != ground
    assert mark != tab.tokens().nth(2).evaluate(colour)
    assert tab.page.locator("#bars .track i").first.evaluate(colour) not in {ground, "rgba(0, 0, 0, 0)"}
    tab.details()
    assert tab.page.locator("#details").evaluate(colour) == mark  # pressed
    width = "(element) => parseFloat(getComputedStyle(element).borderBottomWidth)"
    legend = [each.evaluate(width) for each in tab.page.locator("#legend .token").all()]
    assert legend[0] < 2 < legend[-1]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_without_scripts_a_page_says_so_and_shows_no_dead_controls(browser: Any, live: Any, path: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(live.url + path)
    assert page.inner_text("main").strip().startswith("This page needs JavaScript.")
    assert page.locator("select:visible, button:visible, textarea:visible, input:visible").count() == 0
    context.close()


def test_the_page_is_self_contained_and_its_policy_blocks_other_sources(live: Any) -> None:
    answer = live.get("/")
    policy = dict(each.strip().partition(" ")[::2] for each in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    html = answer.body.decode()
    assert not re.search(r"<style|<script>|\son\w+=|style=", html)
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', html):
        assert live.get(f"/{name}").status == 200
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    own = [path.name for path in PAGE.iterdir() if path.suffix in {".css", ".js", ".svg"}]
    for name in (*own, *DRAWN):
        found = live.get(f"/page/{name}")
        assert (found.status, found.headers["Content-Type"].partition(";")[0]) == (200, kinds[name.rpartition(".")[2]])
    for name in ("index.html", "..%2fpages.py", "../app.py"):
        assert live.get(f"/page/{name}").status == 404
    assert live.ask("HEAD", "/").body == b""
