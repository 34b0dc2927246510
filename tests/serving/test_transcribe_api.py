"""/v1/transcribe reads recordings, images and arrays as Python does, within limits that hold before decoding."""

import asyncio
import http.client
import io
import json
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image
from prometheus_client import generate_latest
from tests.serving.conftest import FORM, form

from translume.inspection import trace
from translume.serving.access.keys import add_key
from translume.serving.access.quotas import open_access
from translume.serving.files.documents import DocumentProcesses
from translume.serving.models import ServedModel
from translume.serving.settings import KeySettings
from translume.sources.headers import EXTENSIONS
from translume.translator import Translator

Make = Callable[..., Translator]


def tone(seconds: float, rate: int = 16_000) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def sound(samples: np.ndarray, rate: int = 16_000, kind: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def picture(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def array(values: np.ndarray, save: Callable[..., None] = np.save) -> bytes:
    buffer = io.BytesIO()
    save(buffer, values)
    return buffer.getvalue()


def large_png(width: int, height: int) -> bytes:
    """Return the beginning of an image of so many pixels, of which there are none."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), b"IDAT" + zlib.compress(bytes(99)))
    whole = (struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(whole)


NOISE = np.random.default_rng(5)
FRAMES = NOISE.normal(size=(31, 5)).astype(np.float32)
PIXELS = NOISE.integers(0, 256, (17, 40), np.uint8)


@pytest.fixture(scope="module")
def models(make_transcriber: Make) -> dict[str, Translator]:
    return {
        "ears": make_transcriber("audio", mels=13, max_seconds=3.0),
        "eyes": make_transcriber("image", height=8),
        "arrays": make_transcriber("features", values=5),
    }


@pytest.fixture(scope="module")
def live(start: Callable[..., Any], models: dict[str, Translator], translator: Translator) -> Any:
    served = [ServedModel.from_model(name, model) for name, model in models.items()]
    return start(ServedModel.from_model("en-de", translator), *served, file_bytes=300_000)


def refused(answer: Any) -> tuple[int, str, str]:
    found = answer.json()
    return answer.status, found["code"], found["error"]


@pytest.mark.parametrize(
    ("model", "content"),
    [
        ("ears", sound(tone(0.5))),
        ("ears", sound(tone(0.5), subtype="PCM_24")),
        ("ears", sound(np.stack([tone(0.5), np.zeros(8000, np.float32)], 1))),
        ("ears", sound(tone(0.5, 44_100), 44_100, "FLAC")),
        ("ears", sound(tone(0.5), kind="OGG")),
        ("ears", sound(tone(0.5), kind="MP3")),
        ("ears", sound(np.zeros(8000, np.float32))),
        ("eyes", picture(PIXELS)),
        ("eyes", picture(PIXELS, "JPEG")),
        ("eyes", picture(NOISE.integers(0, 256, (17, 40, 4), np.uint8))),
        ("eyes", picture(NOISE.integers(0, 65536, (17, 40), np.uint16))),
        ("arrays", array(FRAMES)),
        ("arrays", array(FRAMES, np.savez)),
        ("arrays", array(FRAMES, np.savez_compressed)),
    ],
    ids=[
        "wav",
        "24 bits",
        "stereo",
        "flac",
        "ogg",
        "mp3",
        "silence",
        "png",
        "jpeg",
        "alpha",
        "16 bits",
        "npy",
        "npz",
        "zip",
    ],
)
def test_a_file_says_what_it_says_in_python(
    live: Any, models: dict[str, Translator], model: str, content: bytes
) -> None:
    wanted = models[model].translate(content)
    found = live.upload("/v1/transcribe", content, "named.wav", model=model, detail="true").json()
    assert (found["model"], found["text"], found["warnings"]) == (model, wanted.text, wanted.to_dict()["warnings"])
    assert found["hypotheses"][0]["tokens"] == list(wanted.hypotheses[0].tokens)
    assert found["hypotheses"][0]["log_prob"] == pytest.approx(wanted.hypotheses[0].log_prob, abs=1e-4)


@pytest.mark.parametrize(
    ("model", "content"), [("ears", sound(tone(0.5))), ("eyes", picture(PIXELS)), ("arrays", array(FRAMES))]
)
def test_files_are_inspected_as_in_python(live: Any, models: dict[str, Translator], model: str, content: bytes) -> None:
    wanted = trace(models[model], content, k=3, show=("attention", "prior")).to_dict()
    options = {"model": model, "k": "3", "show": '["attention", "prior"]'}
    answer = live.upload("/v1/inspect", content, search="true", **options)
    assert answer.status == 200, answer.body
    found = answer.json()
    assert (found["model"], found["part"], found["parts"]) == (model, 0, 1)
    assert found["trace"]["source"] == "file"
    assert found["trace"]["frames"] == wanted["frames"]
    assert found["trace"]["target"] == wanted["target"]
    assert [each["log_p_model"] for each in found["trace"]["steps"]] == pytest.approx(
        [each["log_p_model"] for each in wanted["steps"]], abs=1e-4
    )
    assert found["search"]["finished"]
    tokens = models[model].translate(content).hypotheses[0].tokens
    given = live.upload("/v1/inspect", content, target_tokens=json.dumps(tokens), **options).json()["trace"]
    assert [each["text"] for each in given["target_tokens"]] == list(tokens)
    page = live.upload("/v1/inspect/page", content, **options)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<title>" in page.body.decode()
    refusals = {
        "show": ('["occlusion"]', "show: found 'occlusion', expected 'occlusion-mask', 'input-gradient'"),
        "text": ("a man", "text: no such field"),
        "prefix_tokens": ('["no such token"]', "prefix_tokens[0]: no such token"),
    }
    for name, (value, reason) in refusals.items():
        status, _, error = refused(live.upload("/v1/inspect", content, **{**options, name: value}))
        assert (status, error[: len(reason)]) == (422, reason)


def test_options_of_decoding_are_fields_of_the_form(live: Any, models: dict[str, Translator]) -> None:
    content = array(FRAMES)
    options = {"beam": "4", "nbest": "3", "prefix": "null", "length_penalty": "0.5", "strategy": "beam"}
    found = live.upload("/v1/transcribe", content, model="arrays", **options).json()
    wanted = models["arrays"].translate(content, beam=4, nbest=3, prefix="null", length_penalty=0.5)
    assert [each["text"] for each in found["hypotheses"]] == [each.text for each in wanted.hypotheses]
    text = live.upload("/v1/transcribe", content, model="arrays", format="txt")
    assert text.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert text.body.decode() == f"{models['arrays'].translate(content).text}\n"
    assert refused(live.upload("/v1/transcribe", content, model="arrays", beam="many"))[:2] == (422, "invalid_value")
    assert refused(live.upload("/v1/transcribe", content, model="arrays", beem="4"))[1:] == (
        "unknown_field",
        "beem: no such field; did you mean 'beam'?",
    )
    assert refused(live.upload("/v1/transcribe", content, model="arrays", beam="99"))[1] == "too_wide"
    assert refused(live.upload("/v1/transcribe", content, model="arrays", format="srt"))[2] == (
        "format: found srt, expected json or txt: the model writes no times"
    )


@pytest.mark.parametrize(
    ("model", "content", "status", "reason"),
    [
        ("ears", sound(tone(0.5))[:-101], 422, "truncated: the file is shorter than its header says"),
        ("ears", b"", 422, "empty file, expected audio"),
        ("ears", picture(PIXELS), 422, "not audio that soundfile reads, or truncated"),
        ("ears", sound(tone(3.5)), 413, "has 3.5 seconds, expected at most 3"),
        ("ears", sound(np.zeros(7200 * 1000, np.int16), 1000, "FLAC"), 413, "has 7,200.0 seconds, expected at most 3"),
        ("ears", sound(np.zeros((99, 33), np.int16), 8000), 422, "has 33 channels, expected at most 32"),
        ("eyes", b"", 422, "empty file, expected an image"),
        ("eyes", picture(PIXELS)[:-60], 422, "not an image that Pillow reads, or truncated"),
        ("eyes", large_png(30_000, 30_000), 413, "has more than 50,000,000 pixels"),
        ("eyes", large_png(9000, 9000), 413, "has 9,000 × 9,000 pixels, expected at most 50,000,000"),
        (
            "eyes",
            picture(np.zeros((8, 500), np.uint8)),
            422,
            "500 frames are 125 positions of the encoder, expected at most 96",
        ),
        ("arrays", b"PK", 422, "not an array in .npy or .npz format, or truncated"),
        ("arrays", array(np.array([{}], object)), 422, "not an array in .npy or .npz format, or truncated"),
        (
            "arrays",
            array(np.zeros((90_000, 5), np.float32), np.savez_compressed),
            422,
            "90,000 frames are 22,500 positions of the encoder, expected at most 96",
        ),
        ("arrays", array(FRAMES[:, :3]), 422, "holds frames of 3 values, expected 5"),
        ("arrays", array(np.full((3, 5), np.nan)), 422, "holds a number that is not finite"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    live: Any, model: str, content: bytes, status: int, reason: str
) -> None:
    for path in ("/v1/transcribe", "/v1/inspect", "/v1/inspect/page"):
        answer = live.upload(path, content, model=model)
        assert (answer.status, answer.json()["error"]) == (status, f"file: {reason}")
        assert answer.json()["field"] == "file"


def test_recordings_of_hours_that_are_small_files_take_no_memory(live: Any, make_transcriber: Make) -> None:
    hours = sound(np.zeros((60 * 8000, 8), np.int16), 8000, "FLAC")  # 8 channels; the third second is one too many
    assert (
        refused(live.upload("/v1/transcribe", hours, model="ears"))[2] == "file: has 60.0 seconds, expected at most 3"
    )
    model = make_transcriber("audio", mels=13, max_seconds=60.0)
    reader = model.reading(model.config.decoding).reader
    assert reader is not None
    assert reader.read(hours).shape == (6000, 13)


def test_large_files_and_bodies_that_are_no_forms_are_refused(live: Any) -> None:
    assert refused(live.upload("/v1/transcribe", bytes(300_001), model="ears")) == (
        *(413, "file_too_large"),
        "file: found 300,001 bytes, expected at most 300,000",
    )
    assert live.post("/v1/transcribe", text="/etc/passwd").status == 415
    missing = live.ask("POST", "/v1/transcribe", b"--xx--\r\n", content_type=FORM)
    assert refused(missing) == (400, "missing_field", "Invalid request: missing file parameter")


def test_texts_never_reach_a_model_of_files_which_would_open_them_as_paths(live: Any, tmp_path: Path) -> None:
    path = tmp_path / "secret.npy"
    path.write_bytes(array(FRAMES))
    for address, fields in (
        ("/v1/translate", {"text": str(path)}),
        ("/v1/score", {"sources": str(path), "targets": "a"}),
        ("/v1/inspect", {"text": str(path)}),
        ("/v1/classify", {"text": str(path)}),
        ("/v1/generate", {"prompt": str(path)}),
    ):
        answer = live.post(address, model="arrays", **fields)
        assert answer.status in (404, 422), address
        assert answer.json()["field"] == "model"
    assert live.post("/v1/translate", model="arrays", text="a").json()["error"] == (
        "model: 'arrays' is a model of files, expected a translator; use /v1/transcribe"
    )
    assert live.upload("/v1/transcribe", array(FRAMES), model="en-de").status == 404


def test_models_say_what_files_they_read(live: Any) -> None:
    models = {each["name"]: each for each in live.get("/v1/models").json()["models"]}
    assert models["ears"]["reads"] == {
        "kind": "audio",
        "files": [*EXTENSIONS["audio"]],
        "times": False,
        "seconds": 3.0,
    }
    assert (models["eyes"]["reads"]["kind"], models["eyes"]["offers"]) == ("image", ["transcribe", "inspect"])
    assert "reads" not in models["en-de"]
    assert live.get("/health/ready").status == 200


def test_files_count_in_quotas_and_refused_ones_do_not(
    start: Callable[..., Any], models: dict[str, Translator], tmp_path: Path
) -> None:
    secret = add_key(tmp_path / "keys.json", "alice", {"characters_per_day": 30})
    access = open_access(KeySettings(file=str(tmp_path / "keys.json")))
    live = start(ServedModel.from_model("arrays", models["arrays"]), access=access)
    assert live.upload("/v1/transcribe", array(FRAMES)).status == 401

    def send(content: bytes, **fields: str) -> Any:
        body, key = form(content, **fields), f"Bearer {secret}"
        return live.ask("POST", "/v1/transcribe", body, content_type=FORM, authorization=key)

    assert send(array(FRAMES)).status == 200  # 31 frames count as 8 characters
    assert send(b"broken").status == 422
    assert send(array(FRAMES), beam="6").status == 200  # twice the model's beam: 16
    answer = send(array(FRAMES))
    assert (answer.status, answer.json()["code"]) == (429, "quota_used_up")


def test_a_client_that_disconnects_ends_the_reading_of_its_file(
    start: Callable[..., Any], models: dict[str, Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(ServedModel.from_model("arrays", models["arrays"]))
    begun = threading.Event()

    async def slow(*_: object) -> None:
        begun.set()
        await asyncio.sleep(120)

    monkeypatch.setattr(DocumentProcesses, "read_frames", slow)
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=120)
    connection.request("POST", "/v1/transcribe", form(array(FRAMES)), {"Content-Type": FORM})
    assert begun.wait(120)
    connection.close()
    deadline = time.monotonic() + 120
    while b'code="client_gone",route="/v1/transcribe"' not in generate_latest(live.server.metrics.registry):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    monkeypatch.undo()
    assert live.upload("/v1/transcribe", array(FRAMES)).status == 200


def test_openai_clients_get_their_format(live: Any, models: dict[str, Translator]) -> None:
    content = sound(tone(0.5))
    text = models["ears"].translate(content).text
    assert live.upload("/v1/audio/transcriptions", content, model="ears").json() == {"text": text}
    plain = live.upload("/v1/audio/transcriptions", content, model="ears", response_format="text")
    assert plain.body.decode() == f"{text}\n"
    sampled = live.upload("/v1/audio/transcriptions", content, model="ears", temperature="0.7")
    assert sampled.json() == {"text": models["ears"].translate(content, strategy="sampling", temperature=0.7).text}
    for field, value, reason in (
        ("model", "whisper-1", "model: no such model of recordings, images or arrays; known: ears, eyes, arrays"),
        ("prompt", "names", "prompt: found a string, expected ''"),
        (
            "response_format",
            "verbose_json",
            "response_format: found verbose_json, expected json or text: the model writes no times",
        ),
        ("temperature", "2", "temperature: found 2, expected less than or equal to 1"),
    ):
        fields = {"model": "ears", field: value}
        assert live.upload("/v1/audio/transcriptions", content, **fields).json()["error"] == reason


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        ("audio/transcriptions", {"language": "de"}, "language: found 'de', but the model does not name its languages"),
        (
            "audio/transcriptions",
            {"response_format": "verbose_json"},
            "response_format: found verbose_json, expected json or text: the model writes no times",
        ),
        (
            "audio/transcriptions",
            {"response_format": "srt"},
            "response_format: found srt, expected json or text: the model writes no times",
        ),
        ("audio/translations", {}, "model: this one does not translate into English"),
        ("audio/transcriptions", {"model": ""}, "Invalid request: missing model parameter"),
        ("transcribe", {"source": "de"}, "source: found 'de', but the model does not name its languages"),
        ("transcribe", {"target": "en"}, "target: found 'en', but the model does not name its languages"),
    ],
)
def test_errors_name_the_fields_of_the_client(live: Any, path: str, fields: dict[str, str], reason: str) -> None:
    answer = live.upload(f"/v1/{path}", sound(tone(0.2)), "a.wav", **{"model": "ears", **fields}).json()
    assert answer["error"].partition(";")[0] == reason
    assert answer["field"] == (reason.partition(":")[0] if "missing" not in reason else "model")
