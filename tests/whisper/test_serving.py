"""A Whisper in a server writes what it writes in Python: texts, times, languages, over windows of a recording."""

import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.serving.conftest import Live, Tab
from tests.serving.conftest import open_tab as open_tab
from tests.serving.conftest import reused_processes as reused_processes
from tests.whisper.conftest import CODES, POSITIONS, sound

from translume.documents.transcripts import transcript
from translume.inspection import trace
from translume.serving.models import ServedModels
from translume.serving.reloading import load_served
from translume.serving.server import Server
from translume.serving.settings import Limits, ServeSettings
from translume.translator.loading import ComputeOptions

soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed (extra: audio)")

SHORT, LONG = 320 * POSITIONS // 2, 320 * POSITIONS * 5 // 2
"""Samples of half a window, and of two and a half."""


@pytest.fixture(scope="module")
def live(whisper: SimpleNamespace) -> Iterator[Live]:
    served = load_served(ComputeOptions(engine="plain", device="cpu", dtype="fp32"), "whisper", whisper.ours)
    live = Live(Server(models=ServedModels([served]), settings=ServeSettings(limits=Limits(seconds=5.0))))
    yield live
    live.stop()


def wav(samples: int) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, sound(samples), 16_000, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


@pytest.mark.parametrize("samples", [SHORT, LONG], ids=["half a window", "windows"])
@pytest.mark.parametrize("form", ["txt", "srt", "vtt"])
def test_texts_and_subtitles_are_those_of_the_command(
    live: Live, whisper: SimpleNamespace, samples: int, form: str
) -> None:
    content = wav(samples)
    found = live.upload("/v1/transcribe", content, format=form, source="de")
    wanted = whisper.translator.translate(content, from_="de", timestamps=form != "txt")
    assert found.body.decode() == transcript(wanted, form)
    kinds = {"txt": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
    assert found.headers["Content-Type"] == f"{kinds[form]}; charset=utf-8"


def test_languages_are_detected_named_and_translated(live: Live, whisper: SimpleNamespace) -> None:
    content = wav(SHORT)

    def values(wanted: Any) -> tuple[str, str]:
        return wanted.text, wanted.language

    found = live.upload("/v1/transcribe", content).json()
    assert (found["text"], found["language"]) == values(whisper.translator.translate(content))
    assert "segments" not in found
    found = live.upload("/v1/transcribe", content, source="de", target="en").json()
    assert (found["text"], found["language"]) == values(whisper.translator.translate(content, from_="de", to="en"))
    assert live.upload("/v1/transcribe", content, source="xx").json()["error"] == (
        "source: found 'xx'; the model translates en→en, de→de, de→en, zh→zh, zh→en, haw→haw, haw→en"
    )
    model = live.get("/v1/models").json()["models"][0]
    assert model["languages"] == [*CODES]
    assert (model["reads"]["times"], model["reads"]["seconds"]) == (True, 7200.0)
    assert live.get("/health/ready").status == 200


def test_openai_clients_get_segments_and_english(live: Live, whisper: SimpleNamespace) -> None:
    content = wav(LONG)
    options = {"model": "whisper", "response_format": "verbose_json", "timestamp_granularities[]": "segment"}
    found = live.upload("/v1/audio/transcriptions", content, **options, language="de").json()
    wanted = whisper.translator.translate(content, from_="de", timestamps=True)
    assert (found["task"], found["language"], found["text"]) == ("transcribe", "de", wanted.text)
    assert found["duration"] == pytest.approx(LONG / 16_000, abs=0.01)
    assert found["segments"] == [
        {"id": number, "start": each.start, "end": each.end, "text": each.text}
        for number, each in enumerate(wanted.segments)
    ]
    english = live.upload("/v1/audio/translations", content, model="whisper").json()
    assert english == {"text": whisper.translator.translate(content, to="en").text}


def test_the_page_shows_what_is_said_when_and_plays_it(
    open_tab: Callable[..., Tab], live: Live, whisper: SimpleNamespace
) -> None:
    content = wav(LONG)
    wanted = whisper.translator.translate(content, timestamps=True)
    assert len(wanted.segments) > 1
    tab = open_tab(live)
    tab.page.set_input_files("#file", {"name": "talk.wav", "mimeType": "audio/wav", "buffer": content})
    tab.shows(wanted.text)
    rows = tab.page.locator("#segments li")
    assert [text.strip() for text in rows.locator("span").all_inner_texts()] == [
        " ".join(each.text.split()) for each in wanted.segments
    ]

    def clock(seconds: float) -> str:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02}"

    assert rows.locator("button").all_inner_texts() == [
        f"{clock(each.start)} – {clock(each.end)}" for each in wanted.segments
    ]
    rows.locator("button").last.click()
    start = wanted.segments[-1].start
    assert tab.page.evaluate("document.querySelector('#preview audio').currentTime") >= start - 0.01
    tab.details()
    tab.page.click("#inside")
    tab.tell("#problem", "This recording is too long to inspect. Choose one of at most 30 seconds.")
    tab.faults.clear()  # The browser logs the 422.
    tab.page.click("#remove")
    tab.page.wait_for_selector("#segments", state="hidden")


def test_warnings_about_a_recording_do_not_call_its_text_a_translation(
    open_tab: Callable[..., Tab], live: Live
) -> None:
    details = {"repetition": "4 times", "truncated": "the target reached its limit of tokens"}

    def warn(route: Any) -> None:
        answer = route.fetch()
        warnings = [{"kind": kind, "detail": detail} for kind, detail in details.items()]
        route.fulfill(response=answer, json={**answer.json(), "warnings": warnings})

    tab = open_tab(live)
    tab.page.route("**/v1/transcribe", warn)
    tab.page.set_input_files("#file", {"name": "talk.wav", "mimeType": "audio/wav", "buffer": wav(LONG)})
    tab.page.wait_for_selector("#notes li")
    assert tab.page.locator("#notes li").all_inner_texts() == [
        "The model is unsure about this text. Check the underlined words.",
        "The text repeats itself. It is probably wrong.",
        "The text was cut off at the length limit.",
    ]


def test_a_window_is_inspected(live: Live, whisper: SimpleNamespace) -> None:
    content = wav(SHORT)
    wanted = trace(whisper.translator, content, show=("lens",)).to_dict()
    found = live.upload("/v1/inspect", content, show='["lens"]').json()["trace"]
    assert (found["target"], found["frames"]) == (wanted["target"], wanted["frames"])
    silence = io.BytesIO()
    soundfile.write(silence, np.zeros(SHORT, np.float32), 16_000, format="WAV")
    answers = [live.upload("/v1/inspect", each) for each in (wav(LONG), silence.getvalue())]
    limit = f"expected at most {2 * POSITIONS:,}, one window; inspect parts of it"
    assert [(each.status, each.json()["code"], each.json()["error"]) for each in answers] == [
        (422, "file_too_long", f"file: found {5 * POSITIONS:,} frames, {limit}"),
        (422, "cannot_inspect", "file: found digital silence, expected speech"),
    ]


def test_long_recordings_are_refused_by_the_limit_of_the_server(live: Live) -> None:
    answer = live.upload("/v1/transcribe", wav(16_000 * 6))
    assert (answer.status, answer.json()["error"]) == (413, "file: has 6.0 seconds, expected at most 5")
