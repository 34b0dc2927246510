"""The page for models of recordings and images: records, picks, drops and pastes files, and shows what they say."""

import io
import re
import wave
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.conftest import CHROMIUM

from translume.serving.models import ServedModel
from translume.translator import Translator

RATE = 48_000


def chirp(seconds: float, rate: int) -> np.ndarray:
    """Return a tone that rises from 300 to 1,500 Hz."""
    time = np.arange(int(seconds * rate)) / rate
    return 0.5 * np.sin(2 * np.pi * (300 * time + 600 / seconds * time**2))


def written(samples: np.ndarray, rate: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a Chromium browser whose microphone plays a file once."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install translume[dev]")
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: `make browser` installs it")
    path = tmp_path_factory.mktemp("microphone") / "sound.wav"
    path.write_bytes(written(chirp(2.0, RATE), RATE))
    fake = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    fake.append(f"--use-file-for-fake-audio-capture={path}%noloop")
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *fake])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def models(make_transcriber: Callable[..., Translator]) -> dict[str, Translator]:
    return {"ears": make_transcriber("audio", mels=13), "eyes": make_transcriber("image", height=8)}


@pytest.fixture(scope="module")
def live(start: Callable[..., Any], models: dict[str, Translator], translator: Translator) -> Any:
    served = [ServedModel.from_model(name, model) for name, model in models.items()]
    return start(*served, ServedModel.from_model("en-de", translator), seconds=1.5)


def sent(request: Any) -> bytes:
    """Return the WAV file in the form of a request."""
    body = request.post_data_buffer
    begin = body.index(b"RIFF")
    return body[begin : begin + 8 + int.from_bytes(body[begin + 4 : begin + 8], "little")]


def samples_of(content: bytes) -> tuple[int, np.ndarray]:
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (17, 90), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def choose(tab: Any, model: str) -> None:
    """Choose a model that has no languages."""
    tab.page.select_option("#source", "")
    tab.page.select_option("#model", model)


def likeness(found: np.ndarray, sound: np.ndarray) -> float:
    """Return the share of the energy of `found`, from 0 to 1, that is `sound` at one shift."""
    both = np.fft.irfft(np.fft.rfft(found, 65_536) * np.conj(np.fft.rfft(sound, 65_536)))
    heard = sound[: np.count_nonzero(np.abs(found) > 0.001)]
    return float(np.abs(both).max() / np.sqrt(np.square(found).sum() * np.square(heard).sum()))


def test_the_sound_of_the_microphone_reaches_the_model_and_stops_at_the_limit(
    open_tab: Callable[..., Any], live: Any, models: dict[str, Translator]
) -> None:
    tab = open_tab(live)
    choose(tab, "ears")
    heard: list[float] = []
    while not heard or (heard[-1] <= 0.9 and len(heard) < 3):  # a browser without processor time leaves gaps
        with tab.page.expect_request("**/v1/transcribe") as asked:
            tab.page.click("#record")
            tab.tell("#record", "Stop")
        content = sent(asked.value)
        rate, found = samples_of(content)
        assert (rate, len(found)) == (16_000, 24_000)  # 1.5 seconds
        heard.append(likeness(found, chirp(2.0, 16_000)))
        tab.shows(models["ears"].translate(content).text)
        tab.tell("#record", "Record")
        assert tab.page.evaluate("document.querySelector('#preview audio').duration") == pytest.approx(1.5, abs=0.01)
        tab.page.click("#remove")
        tab.shows("")
    assert heard[-1] > 0.9  # it is the sound of the file
    # A recording is ended by another model, and not read.
    tab.page.click("#record")
    tab.tell("#record", "Stop")
    tab.page.select_option("#model", "eyes")
    tab.page.wait_for_selector("#record", state="hidden")
    assert tab.page.locator("#preview audio").count() == 0
    assert len([url for url in tab.asked if url.endswith("/v1/transcribe")]) == len(heard)


def test_without_permission_the_page_says_so(open_tab: Callable[..., Any], live: Any) -> None:
    tab = open_tab(live)
    denied = "Promise.reject(new DOMException('', 'NotAllowedError'))"
    tab.page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = () => {denied}; }}")
    choose(tab, "ears")
    tab.page.click("#record")
    tab.tell("#problem", "The browser does not allow this page to use the microphone.")
    tab.tell("#record", "Record")


@pytest.mark.parametrize("how", ["pick", "drop", "paste"])
def test_an_image_is_picked_dropped_or_pasted(
    open_tab: Callable[..., Any], live: Any, models: dict[str, Translator], how: str
) -> None:
    tab = open_tab(live)
    choose(tab, "eyes")
    tab.tell("#invitation", "Choose, drop or paste an image")
    file = {"name": "mine.png", "mimeType": "image/png", "buffer": picture()}
    if how == "pick":
        with tab.page.expect_file_chooser() as chooser:
            tab.page.click("#pick")
        chooser.value.set_files(file)
    else:
        tab.page.evaluate(
            """([how, bytes]) => {
              const data = new DataTransfer(), options = { bubbles: true, cancelable: true };
              data.items.add(new File([new Uint8Array(bytes)], "mine.png", { type: "image/png" }));
              const event = how === "drop" ? new DragEvent("drop", { ...options, dataTransfer: data })
                : new ClipboardEvent("paste", { ...options, clipboardData: data });
              document.body.dispatchEvent(event);
            }""",
            [how, list(picture())],
        )
    wanted = models["eyes"].translate(picture(), beam=5, nbest=5).hypotheses
    tab.shows(models["eyes"].translate(picture()).text)
    assert tab.page.evaluate("document.querySelector('#preview img').naturalWidth") == 90
    if how == "pick":
        tab.page.click("#more")
        tab.page.wait_for_selector("#wordings button")
        shown = tab.page.locator("#wordings button").all_text_contents()
        now = models["eyes"].translate(picture()).text
        assert shown == [each for each in dict.fromkeys(one.text for one in wanted if one.text.strip()) if each != now]
        tab.details()
        assert re.search(r"[\d.]+ %", tab.tokens().first.get_attribute("aria-label"))


def test_files_that_cannot_be_read_are_explained_and_models_of_texts_are_as_before(
    open_tab: Callable[..., Any], live: Any, translator: Translator
) -> None:
    tab = open_tab(live)
    choose(tab, "ears")
    for content, reason in (
        (b"", "This file cannot be read: empty file, expected audio."),
        (
            written(chirp(1.0, 8000), 8000)[:-7],
            "This file cannot be read: truncated: the file is shorter than its header says.",
        ),
        (written(chirp(2.0, 8000), 8000), "This file has 2.0 seconds. The limit is 1.5."),
    ):
        tab.page.set_input_files("#file", {"name": "mine.wav", "mimeType": "audio/wav", "buffer": content})
        tab.tell("#problem", reason)
    tab.faults.clear()  # The browser logs the statuses.
    tab.page.select_option("#source", "en")
    tab.page.wait_for_selector("#given", state="hidden")
    tab.type("a man", translator.translate("a man").text)
    tab.tell("#pick", "Document")
    assert ".docx" in tab.page.get_attribute("#file", "accept")
    for name in ("#glossary", "#history", "#share", "#text"):
        assert tab.page.is_visible(name)
    tab.page.wait_for_selector("#problem", state="hidden")


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_the_page_of_files_fits_phones_and_desktops_and_is_accessible(
    open_tab: Callable[..., Any], live: Any, models: dict[str, Translator], width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    tab = open_tab(live, viewport={"width": width, "height": 900}, color_scheme=scheme)
    content = {
        "ears": ("mine.wav", written(chirp(1.0, 16_000), 16_000)),
        "eyes": ("mine.png", picture()),
    }
    for model, (name, file) in content.items():
        choose(tab, model)
        tab.page.wait_for_selector("#invitation:not([hidden])")
        for filled in (False, True) if model == "ears" else (True,):
            if filled:
                tab.page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": file})
                tab.shows(models[model].translate(file).text)
            found = axe.Axe().run(tab.page).response
            assert len(found["passes"]) > 15
            assert [(each["id"], node["html"]) for each in found["violations"] for node in each["nodes"]] == []
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_text_of_an_image_is_inspected_in_a_new_tab(
    open_tab: Callable[..., Any], live: Any, models: dict[str, Translator]
) -> None:
    tab = open_tab(live)
    choose(tab, "eyes")
    tab.page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": picture()})
    tab.shows(models["eyes"].translate(picture()).text)
    tab.details()
    with tab.page.context.expect_page() as opened, tab.page.expect_request("**/v1/inspect/page"):
        tab.page.click("#inside")
    page = opened.value
    page.wait_for_selector("canvas, svg")
    tab.page.locator("#output .token").first.click()  # the tokens of a file have no alternatives
    assert tab.page.locator("#step").is_hidden()
