"""Keys and the pointer on the page at /: shortcuts take no characters, compositions are whole, clicks hit the text."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.serving.conftest import whole

from translume.translator import Translator

PRESS = """(init) => {
  const event = new KeyboardEvent("keydown", { bubbles: true, cancelable: true, ...init });
  document.activeElement.dispatchEvent(event);
  return event.defaultPrevented;
}"""
MAC = """
Object.defineProperty(navigator, "userAgentData", { value: { platform: "macOS" } });
Object.defineProperty(navigator, "platform", { value: "MacIntel" });
"""
ALT, CTRL_SHIFT = {"altKey": True}, {"ctrlKey": True, "shiftKey": True}


@pytest.fixture
def mac(tab: Any) -> Any:
    tab.page.add_init_script(MAC)
    tab.page.reload()
    tab.page.wait_for_selector("[data-ready]")
    return tab


@pytest.mark.parametrize("system", ["tab", "mac"])
def test_a_key_that_types_a_character_is_no_shortcut(request: pytest.FixtureRequest, system: str) -> None:
    page = request.getfixturevalue(system).page
    page.focus("#text")
    typed = [("ß", "KeyS"), ("ø", "KeyO"), ("ç", "KeyC"), ("ś", "KeyS"), ("ć", "KeyC"), ("ó", "KeyO"), ("Ó", "KeyO")]
    typed += [("†", "KeyT"), ("Dead", "KeyI"), ("©", "KeyC")]
    for key, code in typed:
        assert not page.evaluate(PRESS, {"key": key, "code": code, **ALT}), key
        assert page.evaluate("document.activeElement.id") == "text"
    # AltGr is Ctrl and Alt on Windows.
    for key, code in [("s", "KeyS"), ("ś", "KeyS"), ("ö", "KeyO")]:
        assert not page.evaluate(PRESS, {"key": key, "code": code, "ctrlKey": True, **ALT})


@pytest.mark.parametrize(
    ("system", "init", "taken"),
    [
        ("tab", {"key": "t", "code": "KeyT", **ALT}, True),
        ("tab", {"key": "t", "code": "KeyK", **ALT}, True),  # Dvorak
        ("tab", {"key": "е", "code": "KeyT", **ALT}, True),  # Russian
        ("tab", {"key": "t", "code": "KeyT", **CTRL_SHIFT}, False),
        ("tab", {"key": "t", "code": "KeyT", "isComposing": True, **ALT}, False),
        ("tab", {"key": "Process", "code": "KeyT", "keyCode": 229, **ALT}, False),
        ("mac", {"key": "t", "code": "KeyT", **ALT}, False),
        ("mac", {"key": "T", "code": "KeyT", **CTRL_SHIFT}, True),
        ("mac", {"key": "t", "code": "KeyT", "ctrlKey": True}, False),  # swaps two characters
    ],
)
def test_shortcuts_are_letters_of_the_layout(
    request: pytest.FixtureRequest, system: str, init: dict[str, Any], taken: bool
) -> None:
    page = request.getfixturevalue(system).page
    page.focus("#source")
    assert page.evaluate(PRESS, init) == taken
    assert page.evaluate("document.activeElement.id") == ("text" if taken else "source")


def test_the_keys_of_a_mac_are_named(mac: Any) -> None:
    mac.page.click("footer summary")
    shown = mac.page.inner_text(".keys")
    assert "Ctrl+Shift+S" in shown.replace(" ", "")
    assert "Alt" not in shown
    assert mac.page.get_attribute("#copy", "aria-keyshortcuts") == "Control+Shift+C"


@pytest.mark.parametrize("key", ["Control+2", "Meta+3", "Alt+2", "Control+ArrowDown"])
def test_keys_of_the_browser_choose_no_alternative(tab: Any, translator: Translator, key: str) -> None:
    (before,) = whole(translator, "a man")
    tab.type("a man", before)
    tab.tokens().nth(1).click()
    tab.page.wait_for_selector("#step:not([hidden])")
    tab.page.keyboard.press(key)
    tab.page.wait_for_timeout(300)
    tab.shows(before)
    assert tab.page.evaluate("document.activeElement.className").startswith("token")
    assert len([url for url in tab.asked if url.endswith("/v1/inspect")]) == 1


def compose(session: Any, *pieces: str) -> None:
    for piece in pieces:
        session.send(
            "Input.imeSetComposition", {"text": piece, "selectionStart": len(piece), "selectionEnd": len(piece)}
        )


def test_a_composition_is_translated_when_it_ends(tab: Any) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.extend((request.post_data_json or {}).get("text", [])))
    session = tab.context.new_cdp_session(tab.page)
    tab.hurry()
    tab.page.locator("#text").press_sequentially("a ")
    tab.page.wait_for_selector("#output .token")
    for piece in ("n", "ni", "nih", "niha", "nihao"):
        compose(session, piece)
        tab.page.wait_for_timeout(80)
    assert tab.page.input_value("#text") == "a nihao"
    assert asked == ["a"]
    session.send("Input.insertText", {"text": "你好"})
    tab.page.wait_for_selector("#output .token[data-token='2']")
    tab.page.wait_for_timeout(300)
    assert tab.page.input_value("#text") == "a 你好"
    assert asked == ["a", "a 你好"]


@pytest.mark.parametrize(("piece", "phone"), [("안녕", False), ("hello", True)])
def test_compositions_of_korean_and_of_phones_are_translated_once_they_rest(
    open_tab: Callable[..., Any], live: Any, piece: str, phone: bool
) -> None:
    tab = open_tab(live, **({"has_touch": True, "is_mobile": True} if phone else {}))
    session = tab.context.new_cdp_session(tab.page)
    tab.page.focus("#text")
    with tab.page.expect_request("**/v1/translate/stream") as asked:
        compose(session, piece[:1], piece)
    assert asked.value.post_data_json["text"] == [piece]


@pytest.mark.parametrize("width", [360, 1280])
def test_a_click_in_the_empty_box_reaches_the_text(open_tab: Callable[..., Any], live: Any, width: int) -> None:
    page = open_tab(live, viewport={"width": width, "height": 900}).page
    box = page.locator("#text").bounding_box()
    examples = page.locator("#examples").bounding_box()
    for y in (box["y"] + 0.6 * box["height"], box["y"] + 0.95 * box["height"], examples["y"] + examples["height"] - 3):
        page.evaluate("document.activeElement.blur()")
        page.mouse.click(box["x"] + box["width"] - 12, y)
        assert page.evaluate("document.activeElement.id") == "text"
    page.locator("#examples button").first.click()
    assert page.input_value("#text")
