"""`init` of manifests: recordings, images and arrays are recognised, and what is proposed trains."""

import json
import tomllib
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image

from translume.sources.headers import kind_of

WORDS = ("one", "two", "three")


def write_tone(path: Path, *, seconds: float = 0.5, rate: int = 16_000, channels: int = 1) -> None:
    samples = np.sin(np.arange(int(seconds * rate)) / 5) * 9000
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat(samples.astype("<i2"), channels).tobytes())


def write_image(path: Path, *, width: int = 90, height: int = 24, color: tuple[int, int, int] = (70, 70, 70)) -> None:
    Image.new("RGB", (width, height), color).save(path)


def write_array(path: Path, *, frames: int = 60, values: int = 13) -> None:
    np.save(path, np.random.default_rng(frames).normal(size=(frames, values)).astype(np.float32))


WRITERS: dict[str, Callable[[Path], None]] = {".wav": write_tone, ".png": write_image, ".npy": write_array}


def manifest(
    folder: Path, extension: str, count: int = 60, target: Callable[[int], str] = lambda n: WORDS[n % 3]
) -> Path:
    (folder / "files").mkdir(exist_ok=True)
    rows = []
    for number in range(count):
        WRITERS[extension](folder / "files" / f"{number}{extension}")
        rows.append(f"files/{number}{extension}\t{target(number)}\n")
    (folder / "train.tsv").write_text("".join(rows))
    return folder / "train.tsv"


def settings_of(result: Result) -> dict[str, dict[str, object]]:
    assert result.exit_code == 0, result.stderr
    return tomllib.loads(result.stdout)


@pytest.mark.parametrize(
    ("extension", "source", "described"),
    [
        (".wav", {"kind": "audio", "mels": 80}, "60 recordings of 0.5 seconds, 16 kHz, mono"),
        (".png", {"kind": "image", "height": 24}, "60 images of 90 × 24 pixels"),
        (".npy", {"kind": "features", "values": 13}, "60 arrays of 60 frames"),
    ],
)
def test_the_kind_of_sources_is_recognised_and_the_proposal_trains(
    run, tmp_path: Path, extension: str, source: dict[str, object], described: str
) -> None:
    file = manifest(tmp_path, extension)
    result = run("init", file)
    settings = settings_of(result)
    assert settings["data"]["source"].items() >= source.items()
    assert settings["data"]["train"] == str(file)
    assert settings["tokenizer"] == {"kind": "word", "unknown": "token"}
    assert (settings["training"]["metric"], settings["training"]["ctc_weight"]) == ("wer", 0.3)
    assert settings["decoding"]["ctc_weight"] == 0.5
    assert settings["evaluation"]["metrics"] == ["exact_match", "wer"]
    assert result.stderr == f"{described}; 2 % of it held out for validation\n"
    (tmp_path / "proposed.toml").write_text(result.stdout)
    short = "training.updates=2", "training.warmup_updates=1", "model.width=16", "model.encoder_layers=1"
    options = [word for each in short for word in ("--set", each)]
    trained = run("train", tmp_path / "proposed.toml", "--out", tmp_path / "model", "--threads", "1", *options)
    assert trained.exit_code == 0, trained.stderr
    translated = run("translate", tmp_path / "model", "--threads", "1", text=f"{tmp_path}/files/0{extension}\n")
    assert translated.exit_code == 0, translated.stderr
    assert settings_of(run("init", file, "--from", tmp_path / "model"))["data"] == {"train": str(file)}
    text = tmp_path / "text.tsv"
    text.write_text("one\teno\n")
    refused = run("init", text, "--from", tmp_path / "model")
    assert refused.stderr == f"Error: {text}: found text, but {tmp_path}/model reads {source['kind']}\n"


@pytest.mark.parametrize(
    ("lines", "columns"),
    [
        (["path\tclient\tsentence", "files/0.npy\tx\tone", "files/1.npy\ty\ttwo"], ["path", "sentence"]),
        (["one\tfiles/0.npy", "two\tfiles/1.npy"], [1, 0]),
        (["files/0.npy\tone", "files/1.npy\ttwo"], None),
    ],
)
def test_paths_may_be_in_any_column(run, tmp_path: Path, lines: list[str], columns: list[str] | None) -> None:
    file = manifest(tmp_path, ".npy", 2)
    file.write_text("".join(f"{line}\n" for line in lines))
    assert settings_of(run("init", file))["data"].get("columns") == columns


def test_keys_of_jsonl_and_columns_of_csv_are_found(run, tmp_path: Path) -> None:
    manifest(tmp_path, ".npy", 2)
    lines = [{"audio_filepath": f"files/{n}.npy", "text": "one", "lang": "en", "duration": 0.5} for n in (0, 1)]
    file = tmp_path / "m.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert settings_of(run("init", file))["data"]["columns"] == ["audio_filepath", "text"]
    table = tmp_path / "m.csv"
    table.write_text("file,words\nfiles/0.npy,one\nfiles/1.npy,two\n")
    assert settings_of(run("init", table))["data"]["columns"] == ["file", "words"]
    (tmp_path / "train.paths").write_text("files/0.npy\nfiles/1.npy\n")
    (tmp_path / "train.words").write_text("one\ntwo\n")
    apart = settings_of(run("init", tmp_path / "train.paths", tmp_path / "train.words"))
    assert apart["data"]["source"]["kind"] == "features"
    assert apart["data"]["train_target"] == str(tmp_path / "train.words")


def test_files_are_recognised_by_their_first_bytes(tmp_path: Path) -> None:
    for name, content, kind in (
        ("sound.png", b"ID3\x04rest", "audio"),
        ("sound", b"\xff\xfb\x90\x00", "audio"),
        ("photo", b"\xff\xd8\xff\xe0", "image"),
        ("photo.wav", b"RIFF\0\0\0\0WEBPVP8 ", "image"),
        ("array", b"\x93NUMPY\x01\x00", "features"),
        ("arrays.npz", b"PK\x03\x04", "features"),
        ("text.txt", b"one two", None),
        ("empty.flac", b"", "audio"),
    ):
        (tmp_path / name).write_bytes(content)
        assert kind_of(tmp_path / name) == kind
    assert kind_of(tmp_path / "missing.wav") == "audio"


def test_a_file_that_cannot_be_read_is_named_with_its_line(run, tmp_path: Path) -> None:
    file = manifest(tmp_path, ".wav", 40)
    sound = tmp_path / "files" / "7.wav"
    sound.write_bytes(sound.read_bytes()[:-100])
    (tmp_path / "files" / "11.wav").unlink()
    result = run("init", file)
    assert result.exit_code == 0
    assert result.stderr.splitlines()[0] == (
        f"{file}:12: {tmp_path}/files/11.wav: no such file; 2 of 40 files looked at cannot be read, "
        "which training drops and counts"
    )


def test_paths_that_do_not_exist_are_refused(run, tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_text("clips/a.wav\tone\nclips/b.wav\ttwo\n")
    result = run("init", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: {file}:1: {tmp_path}/clips/a.wav: no such file; paths are relative to the folder of the manifest; "
        "2 of 2 files cannot be read\n"
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["files/0.npy", "files/1.npy"], "1: found a path without a target, expected both, separated by a tab, or a "
         "file of targets"),
        (["files/0.npy\tx\tone"], "1: found paths in column 0 and others: 1, 2; choose with --columns 0,NAME"),
        (["files/0.npy\t "], "1: found no path with a target"),
    ],
)  # fmt: skip
def test_unclear_manifests_are_a_one_line_error(run, tmp_path: Path, lines: list[str], message: str) -> None:
    file = manifest(tmp_path, ".npy", 2)
    file.write_text("".join(f"{line}\n" for line in lines))
    result = run("init", file)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {file}:{message}\n")


def test_paths_are_not_taken_for_texts_to_label(run, tmp_path: Path) -> None:
    file = manifest(tmp_path, ".wav", 4)
    result = run("init", file, "--task", "classification")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {file}: found paths of audio files, expected texts to label\n"


def test_settings_follow_from_the_files(run, tmp_path: Path) -> None:
    sentences = ("".join(chr(97 + (n * k) % 26) for k in range(1, 60)) for n in range(1, 9))
    file = manifest(tmp_path, ".wav", 8, lambda _: next(sentences))
    for number in range(8):  # stereo at 8 kHz; the longest target has 59 characters, for 29 positions of a quarter
        write_tone(tmp_path / "files" / f"{number}.wav", seconds=1.2, rate=8000, channels=1 + number % 2)
    result = run("init", file)
    settings = settings_of(result)
    assert settings["data"]["source"].items() >= {"mels": 40, "convolutions": 1}.items()
    assert settings["tokenizer"]["kind"] == "character"
    assert (settings["model"]["positions"], settings["training"]["ctc_weight"]) == ("rotary", 0.5)  # as for an4
    assert settings["evaluation"]["metrics"] == ["wer", "cer"]
    assert "patience" not in settings["training"]
    assert result.stderr.startswith("8 recordings of 1.2 seconds, 8 kHz, mono and stereo")
    write_tone(tmp_path / "files" / "0.wav", seconds=70, rate=8000)
    longer = settings_of(run("init", file))
    assert longer["data"]["source"]["max_seconds"] == 70
    assert longer["data"]["cleaning"]["max_tokens"] == 2040
    file.write_text(file.read_text() * 626)
    assert settings_of(run("init", file))["training"]["patience"] == 10  # 5,008 pairs


def test_photographs_of_colour_get_no_ctc(run, tmp_path: Path) -> None:
    file = manifest(tmp_path, ".png", 6, lambda n: f"a photograph of {WORDS[n % 3]} things on a table, in all colours")
    for number in range(6):
        write_image(tmp_path / "files" / f"{number}.png", width=64, height=48, color=(200, 20, 20))
    settings = settings_of(run("init", file))
    assert settings["data"]["source"]["color"] is True
    assert "ctc_weight" not in settings["training"] | settings["decoding"]
