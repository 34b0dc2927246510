"""The page at /docs in a real browser: it shows the OpenAPI document, and its examples can be sent."""

import json
import shlex
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from translume.serving.access.keys import add_key
from translume.serving.access.quotas import open_access
from translume.serving.models import ServedModel
from translume.serving.settings import KeySettings, ServeSettings
from translume.translator import Translator

TRANSLATE = "#post-v1-translate"


@pytest.fixture
def docs(tab: Any) -> Any:
    return opened(tab)


def opened(tab: Any, place: str = "") -> Any:
    tab.page.goto(f"{tab.url}/docs{place}")
    tab.page.wait_for_selector("[data-ready]")
    return tab


def test_the_main_page_links_to_the_docs_page(tab: Any) -> None:
    tab.page.click("#about a")
    tab.page.wait_for_selector("#groups summary")
    assert tab.page.url == f"{tab.url}/docs"


def test_every_path_is_shown_with_its_fields_and_their_types(docs: Any, live: Any) -> None:
    document = live.get("/openapi.json").json()
    wanted = [(method, path) for path, methods in document["paths"].items() for method in methods]
    shown = docs.page.evaluate("""() => [...document.querySelectorAll("#groups .card:not([id^=shape]) > summary")]
        .map((each) => [each.querySelector(".method").textContent, each.querySelector("code").textContent])""")
    assert sorted(map(tuple, shown)) == sorted(wanted)
    docs.page.click(f"{TRANSLATE} > summary")
    docs.page.wait_for_selector(f"{TRANSLATE} .inside > dl")  # Drawn by the toggle event, which comes after the click.
    rows = docs.page.locator(f"{TRANSLATE} .inside > dl, {TRANSLATE} .more > dl")
    names = rows.locator("dt code").all_text_contents()
    body = document["components"]["schemas"]["TranslateRequest"]
    assert names[: len(body["properties"])] == list(body["properties"])
    beam = docs.page.locator(f"{TRANSLATE} dl.fields > div").filter(has=docs.page.locator("dt code:text-is('beam')"))
    assert beam.locator(".kind").text_content() == "whole number, at least 1, at most 65,536"
    statuses = set(document["paths"]["/v1/translate"]["post"]["responses"]) - {"200"}
    assert statuses < set(names)
    # From the schema of a response to the schemas it refers to.
    docs.page.locator(f"{TRANSLATE} a", has_text="Translation").first.click()
    docs.page.wait_for_selector("#shape-Translation[open] dl")
    assert docs.page.evaluate("document.activeElement.parentElement.id") == "shape-Translation"


def test_the_docs_begin_with_a_command_that_works(docs: Any, live: Any, translator: Translator) -> None:
    first = docs.page.evaluate(
        "[...document.querySelectorAll('main pre')].find((each) => each.checkVisibility()).textContent"
    )
    words = shlex.split(first)
    assert words[:4] == ["curl", "-s", f"{live.url}/v1/translate", "--json"]
    request = json.loads(words[4])
    answer = live.post("/v1/translate", request)
    assert answer.json()["translations"][0]["text"] == translator.translate(request["text"]).text


def test_an_example_can_be_copied_and_sent(open_tab: Callable[..., Any], live: Any, translator: Translator) -> None:
    tab = opened(open_tab(live, permissions=["clipboard-read", "clipboard-write"]), TRANSLATE)
    tab.page.fill(f"{TRANSLATE} textarea", """{"text": "it's a man"}""")
    tab.page.click(f"{TRANSLATE} .copy")
    tab.tell(f"{TRANSLATE} [role=status]", "Copied.")
    words = shlex.split(tab.page.evaluate("navigator.clipboard.readText()"))
    assert words == ["curl", "-s", f"{live.url}/v1/translate", "--json", """{"text": "it's a man"}"""]
    tab.page.click(f"{TRANSLATE} .try")
    tab.tell(f"{TRANSLATE} [role=status]", "200 OK")
    found = json.loads(tab.page.text_content(f"{TRANSLATE} .answer"))
    assert found["translations"][0]["text"] == translator.translate("it's a man").text
    tab.page.fill(f"{TRANSLATE} textarea", "{")
    tab.page.click(f"{TRANSLATE} .try")
    tab.tell(f"{TRANSLATE} [role=status]", "400 Bad Request")
    assert json.loads(tab.page.text_content(f"{TRANSLATE} .answer"))["code"] == "invalid_json"
    tab.faults.clear()  # The browser logs the 400.


def test_every_example_that_can_be_sent_gets_a_response(docs: Any) -> None:
    docs.page.evaluate(
        "for (const each of document.querySelectorAll('#groups .card:not([id^=shape])')) each.open = true"
    )
    docs.page.wait_for_selector("#get-docs .try")
    docs.page.evaluate("for (const each of document.querySelectorAll('.try')) each.click()")
    answered = "[...document.querySelectorAll('.card:has(.try)')].map((each) => [each.id, %s])"
    status = "each.querySelector('[role=status]').textContent"
    docs.page.wait_for_function(f"() => {answered % status}.every(([, text]) => /^[0-9]/.test(text))")
    found = {name: text.split()[0] for name, text in docs.page.evaluate(answered % status)}
    assert {"post-v1-translate", "post-v1-inspect", "post-translate", "get-v1-info"} <= set(found)
    refused = {"post-v1-classify": "404", "post-v1-generate": "404",
               "post-detect": "501", "post-suggest": "403"}  # fmt: skip
    assert found == dict.fromkeys(found, "200") | refused | {"post-v2-glossaries": "201"}
    docs.faults.clear()  # The browser logs each refused request.


def test_the_page_works_with_the_keyboard_alone(docs: Any) -> None:
    docs.page.keyboard.press("Tab")
    assert docs.page.evaluate("document.activeElement.textContent") == "Skip to the endpoints"
    docs.page.keyboard.press("Enter")
    docs.page.keyboard.press("Tab")
    docs.page.keyboard.press("Enter")
    docs.page.wait_for_selector(f"{TRANSLATE}[open] .try")
    docs.page.keyboard.press("Tab")
    assert docs.page.evaluate("document.activeElement.tagName") == "TEXTAREA"


def test_a_key_can_be_entered_when_the_server_requires_one(
    start: Callable[..., Any], translator: Translator, open_tab: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    secret = add_key(path, "alice", {})
    live = start(ServedModel.from_model("en-de", translator), access=open_access(KeySettings(file=str(path))))
    tab = opened(open_tab(live), TRANSLATE)
    assert "Bearer $KEY" in tab.page.text_content(f"{TRANSLATE} pre")
    tab.page.click(f"{TRANSLATE} .try")
    tab.tell(f"{TRANSLATE} [role=status]", "401 Unauthorized")
    tab.faults.clear()  # The browser logs the 401.
    tab.page.fill("#key", secret)
    tab.page.keyboard.press("Enter")
    tab.page.click(f"{TRANSLATE} .try")
    tab.tell(f"{TRANSLATE} [role=status]", "200 OK")


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_the_page_fits_phones_and_desktops_in_light_and_dark_mode_and_is_accessible(
    open_tab: Callable[..., Any], live: Any, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    tab = opened(open_tab(live, viewport={"width": width, "height": 900}, color_scheme=scheme), TRANSLATE)

    def faults() -> list[tuple[str, str]]:
        found = axe.Axe().run(tab.page).response
        assert len(found["passes"]) > 20
        return [(each["id"], node["html"]) for each in found["violations"] for node in each["nodes"]]

    assert tab.page.evaluate("document.documentElement.dataset.theme") == scheme
    tab.page.click(f"{TRANSLATE} .try")
    tab.page.wait_for_selector(f"{TRANSLATE} .answer:not([hidden])")
    for each in ("#shape-Hypothesis", "#post-v1-files", "#get-v1-files-name-"):
        tab.page.click(f"{each} > summary")
    tab.page.click(f"{TRANSLATE} .more > summary >> nth=0")
    tab.page.click("#limits summary")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    assert faults() == []
    other = "dark" if scheme == "light" else "light"
    tab.page.select_option("#theme", other)
    assert tab.page.evaluate("document.documentElement.dataset.theme") == other
    assert faults() == []


def test_the_content_security_policy_is_that_of_the_main_page(live: Any) -> None:
    first, docs = live.get("/"), live.get("/docs")
    assert docs.headers["Content-Security-Policy"] == first.headers["Content-Security-Policy"]
    assert live.ask("HEAD", "/docs").body == b""
    html = docs.body.decode()
    assert "<style" not in html
    assert "<script>" not in html
    assert "//" not in html


def test_the_documented_page_of_another_site_shows_a_translation_as_it_grows(
    browser: Any, start: Callable[..., Any], translator: Translator
) -> None:
    live = start(ServedModel.from_model("en-de", translator))
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    page = text.partition("```html\n")[2].partition("```")[0].replace("https://translate.example", live.url)

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    expected = live.post("/v1/translate", text="a dog").json()["translations"][0]["text"]
    # A real site: a page that Playwright fulfils has no address, and Chromium keeps it from reaching this machine's.
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        Thread(target=site.serve_forever, daemon=True).start()
        origin = f"http://localhost:{site.server_port}"
        live.server.settings = ServeSettings(cors_origins=(origin,))
        context = browser.new_context()
        try:
            tab = context.new_page()
            tab.goto(origin)
            tab.fill("#text", "a dog")
            tab.press("#text", "Tab")
            tab.wait_for_function("text => document.getElementById('translation').textContent === text", arg=expected)
            live.server.settings = ServeSettings()
            tab.fill("#text", "a cat")
            with tab.expect_event("requestfailed"):
                tab.press("#text", "Tab")
        finally:
            context.close()
            site.shutdown()
