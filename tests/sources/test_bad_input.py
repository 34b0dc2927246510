"""Files as users have them, and broken ones: from Python, from the command line and in training."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from PIL import Image
from tests.sources.conftest import untrained
from tests.sources.test_audio import encoded, tone
from tests.sources.test_images import huge_png

from translume.checkpoint import save_model
from translume.cli import main
from translume.config import Config
from translume.data.token_cache import prepare
from translume.errors import DataError, TranslationError
from translume.training.vocabularies import vocabularies_of
from translume.translator import Translator

SOUND = tone(0.3, hertz=700)
PIXELS = np.random.default_rng(2).integers(0, 256, (8, 21), np.uint8)


def image(pixels: np.ndarray, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def many_channels() -> np.ndarray:
    return np.stack([SOUND, SOUND], 1)


def with_alpha() -> np.ndarray:
    """The same pixels, opaque, with three colours and an alpha channel."""
    return np.concatenate([np.repeat(PIXELS[..., None], 3, 2), np.full((8, 21, 1), 255, np.uint8)], 2)


READ: dict[str, dict[str, bytes]] = {
    "audio": {
        "plain.wav": encoded(SOUND, subtype="FLOAT"),
        "stereo.wav": encoded(many_channels(), subtype="FLOAT"),
        "deep.wav": encoded(SOUND, subtype="PCM_24"),
        "fast.wav": encoded(tone(0.3, 48_000, hertz=700), rate=48_000, subtype="FLOAT"),
        "slow.wav": encoded(tone(0.3, 11_025, hertz=700), rate=11_025, subtype="FLOAT"),
        "flac.wav": encoded(SOUND, kind="FLAC"),
        "mp3.wav": encoded(tone(2.0, hertz=700), kind="MP3"),
        "silence.wav": encoded(np.zeros(4000, np.float32)),
    },
    "image": {
        "plain.png": image(PIXELS),
        "alpha.png": image(with_alpha()),
        "deep.png": image((PIXELS.astype(np.uint16) * 257).astype(np.uint16)),
        "named.jpg": image(PIXELS, "BMP"),
    },
}
"""Files that are read. Those before "mp3.wav", and all images, have the same content but for rounding."""
TWO_HOURS = bytearray(encoded(SOUND, kind="FLAC"))
TWO_HOURS[22:26] = (16_000 * 7200).to_bytes(4, "big")  # the number of samples in the header
REFUSED: dict[str, dict[str, tuple[bytes | None, str]]] = {
    "audio": {
        "cut.wav": (encoded(SOUND)[:-100], "truncated: the file is shorter than its header says"),
        "cut.flac": (encoded(SOUND, kind="FLAC")[:200], "not audio that soundfile reads, or truncated"),
        "empty.wav": (b"", "empty file, expected audio"),
        "missing.wav": (None, "no such file"),
        "hours.flac": (bytes(TWO_HOURS), "has 7,200.0 seconds, expected at most 60 (data.source.max_seconds)"),
        "photo.wav": (image(PIXELS), "not audio that soundfile reads, or truncated"),
    },
    "image": {
        "empty.png": (b"", "empty file, expected an image"),
        "cut.png": (image(PIXELS)[:60], "not an image that Pillow reads, or truncated"),
        "huge.png": (huge_png(), "has more than 50,000,000 pixels (data.source.max_pixels)"),
        "missing.png": (None, "no such file"),
        "sound.png": (encoded(SOUND), "not an image that Pillow reads, or truncated"),
    },
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Translator]]:
    """Return a function from a kind of source to a folder with its files and `model`, and the translator."""
    made: dict[str, tuple[Path, Translator]] = {}

    def model(kind: str) -> tuple[Path, Translator]:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            contents = {**READ[kind], **{name: content for name, (content, _) in REFUSED[kind].items()}}
            for name, content in contents.items():
                if content is not None:
                    (folder / name).write_bytes(content)
            translator = untrained(kind, given=SOUND if kind == "audio" else PIXELS)
            save_model(folder / "model", translator.checkpoint)
            made[kind] = folder, translator
        return made[kind]

    return model


@pytest.mark.parametrize("kind", READ)
def test_sound_and_images_of_any_form_are_read(models: Callable, kind: str) -> None:
    folder, translator = models(kind)
    paths = [str(folder / name) for name in READ[kind]]
    found = list(translator.translate_all(paths, stop="optimal"))
    same = [each.text for path, each in zip(paths, found, strict=True) if "mp3" not in path and "silence" not in path]
    assert len(set(same)) == 1
    assert all(each.text for each in found)
    words = ["translate", str(folder / "model"), "--engine", "plain", "--stop", "optimal"]
    typed = CliRunner().invoke(main, words, input="\n".join(paths))
    assert typed.stdout.splitlines() == [each.text for each in found]


@pytest.mark.parametrize("kind", REFUSED)
def test_broken_files_are_one_line_with_their_path(models: Callable, kind: str) -> None:
    folder, translator = models(kind)
    for name, (content, reason) in REFUSED[kind].items():
        path = folder / name
        with pytest.raises(TranslationError) as error:
            translator.translate(path)
        assert str(error.value) == f"text: {path}: {reason}"
        if content is not None:
            with pytest.raises(TranslationError) as error:
                translator.translate(content)
            assert str(error.value) == f"text: <{len(content):,} bytes>: {reason}"
        good = folder / next(iter(READ[kind]))
        typed = CliRunner().invoke(
            main, ["translate", str(folder / "model"), "--engine", "plain"], input=f"{good}\n{path}"
        )
        assert typed.exit_code == 1
        assert len(typed.stdout.splitlines()) == 1
        assert f"line 2: {path}: {reason}" in typed.stderr
        assert "Traceback" not in typed.stderr


@pytest.mark.parametrize("kind", REFUSED)
def test_training_drops_and_counts_broken_files(models: Callable, kind: str, tmp_path: Path) -> None:
    folder, translator = models(kind)
    names = [*READ[kind], *REFUSED[kind]]
    manifest = folder / "train.tsv"
    manifest.write_text("".join(f"{name}\tone two\n" for name in names))
    values = {"train": str(manifest), "source": translator.config.data.source.model_dump()}
    config = Config.build({"data": values, "tokenizer": {"kind": "word", "unknown": "token"}})
    corpus = prepare(config.data, *vocabularies_of(config), tmp_path, split="train", max_positions=(1024, 1024))
    assert corpus.account.dropped == {"unreadable": len(REFUSED[kind])}
    first, (_, reason) = next(iter(REFUSED[kind].items()))
    example = corpus.account.examples["unreadable"]
    assert (example.line, example.source) == (len(READ[kind]) + 1, f"{folder / first}: {reason}")


def test_a_recording_that_says_one_length_and_has_another_is_refused(models: Callable) -> None:
    folder, translator = models("audio")
    samples, _ = soundfile.read(io.BytesIO(READ["audio"]["plain.wav"]), dtype="int16")
    content = bytearray(encoded(samples))
    content[40:44] = (1 << 30).to_bytes(4, "little")  # the size of the samples in the header
    content[4:8] = ((1 << 30) + 36).to_bytes(4, "little")
    with pytest.raises(TranslationError, match="truncated: the file is shorter than its header says"):
        translator.translate(bytes(content))
    with pytest.raises(DataError, match="no such file"):
        translator.reading(translator.config.decoding).reader.read(folder / "nothing.wav")
