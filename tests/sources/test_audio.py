"""Recordings as sources: formats, sample rates, channels, features, and what is refused."""

import io
import time
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from translume.config import ModelSettings
from translume.config.sources import AudioSettings, FeatureSettings
from translume.errors import DataError, SettingsError
from translume.model.frames import FrameEmbedding
from translume.sources.audio import AudioReader, _filter, _interpolated, log_mel, resampled


def tone(seconds: float, rate: int = 16_000, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: np.ndarray, rate: int = 16_000, kind: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def reader(**settings: object) -> AudioReader:
    return AudioReader(AudioSettings.model_validate({"mels": 23, **settings}))


def test_log_mel_energies_are_those_of_whisper() -> None:
    from transformers import WhisperFeatureExtractor  # type: ignore[attr-defined]  # loaded when it is used

    noise = np.random.default_rng(3).normal(size=7001).astype(np.float32)
    samples = np.pad(noise, (0, 480_000 - len(noise)))  # Whisper reads 30 seconds
    expected = WhisperFeatureExtractor(feature_size=80)(noise, sampling_rate=16_000, return_tensors="np")
    found = log_mel(samples, 80)
    assert np.abs(found.T - expected.input_features[0]).max() < 1e-5


def test_there_are_100_frames_a_second(tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    path.write_bytes(encoded(tone(0.5)))
    assert reader().read(path).shape == (50, 23)
    assert reader(features="mfcc").read(path).shape == (50, 13)
    assert reader().read(tone(0.5)).shape == (50, 23)


def test_cepstral_coefficients_are_the_cosine_transform_of_the_energies() -> None:
    energies = reader(mels=5).read(tone(0.05))
    found = reader(mels=5, features="mfcc", coefficients=5).read(tone(0.05))
    np.testing.assert_allclose(found[:, 0], energies.sum(1) / np.sqrt(5), rtol=1e-4)
    np.testing.assert_allclose(np.square(found).sum(1), np.square(energies).sum(1), rtol=1e-4)  # orthonormal


@pytest.mark.parametrize(("kind", "subtype"), [("WAV", "PCM_24"), ("FLAC", None), ("OGG", "VORBIS"), ("MP3", None)])
def test_formats_are_recognised_by_their_content(tmp_path: Path, kind: str, subtype: str | None) -> None:
    path = tmp_path / "named.wav"
    path.write_bytes(encoded(tone(0.5), kind=kind, subtype=subtype))
    found = reader().read(path)
    assert abs(len(found) - 50) <= 12  # MP3 adds silence
    assert found.mean(0).argmax() == reader().read(tone(0.5)).mean(0).argmax()


def test_stereo_is_mixed_down() -> None:
    both = np.stack([tone(0.1), np.zeros(1600, np.float32)], 1)
    np.testing.assert_allclose(reader().read(encoded(both)), reader().read(encoded(both.mean(1))), atol=2e-3)
    np.testing.assert_allclose(reader().read(both), reader().read(both.mean(1)), atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100, 48_000])
def test_other_rates_are_resampled(rate: int) -> None:
    found = np.concatenate([*resampled([tone(0.2, rate)], rate)])
    assert len(found) == 3200
    np.testing.assert_allclose(found[400:-400], tone(0.2)[400:-400], atol=1e-4)


@pytest.mark.parametrize(
    "rate", [1000, 1009, 7919, 8000, 11_025, 15_999, 16_001, 22_254, 44_100, 47_999, 191_999, 192_000, 767_999, 768_000]
)
def test_every_rate_is_resampled_in_bounded_time(rate: int) -> None:
    for samples in (0, 1, 1000):
        started = time.process_time()
        short = np.concatenate([*resampled([tone(samples / rate, rate, 300)], rate)])
        assert len(short) == -(-int(samples / rate * rate) * 16_000 // rate)
        assert time.process_time() - started < 0.5  # 0.03 s; 43 s when a filter had 15,999 phases
    found = np.concatenate([*resampled(in_blocks(tone(0.25, rate, 300), 4096), rate)])
    expected = tone(0.26, hertz=300)[: len(found)]
    np.testing.assert_allclose(found[800:-800], expected[800:-800], atol=2e-3 if rate < 2000 else 1e-4)


@pytest.mark.parametrize("rate", [44_056, 95_999, 767_999])
def test_interpolated_filters_are_those_that_are_computed(rate: int) -> None:
    samples = np.random.default_rng(3).normal(size=rate // 20).astype(np.float32)
    ratio = Fraction(rate, 16_000)
    if ratio > 4:
        samples, ratio = samples[: len(samples) // 10], ratio / int(ratio / 2)
    found = np.concatenate([*_interpolated(in_blocks(samples, 1000), ratio)])[:99]
    places = [float(place * ratio) for place in range(99)]  # each sample from all input samples
    exact = [(_filter(np.arange(len(samples)) - place, ratio) * samples).sum() for place in places]
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)


def in_blocks(samples: np.ndarray, size: int) -> list[np.ndarray]:
    return [samples[begin : begin + size] for begin in range(0, len(samples), size)]


def test_frequencies_above_8_khz_do_not_come_back_as_lower_ones() -> None:
    found = np.concatenate([*resampled([tone(0.2, 48_000, hertz=11_000)], 48_000)])
    assert np.abs(found[400:-400]).max() < 1e-3


def test_silence_and_very_short_recordings_have_frames() -> None:
    assert np.isfinite(reader().read(np.zeros(16_000, np.float32))).all()
    assert reader().read(np.zeros(3, np.float32)).shape == (2, 23)
    assert reader().read(np.zeros(0, np.float32)).shape == (0, 23)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "<0 bytes>: empty file, expected audio"),
        (b"no audio", "<8 bytes>: not audio that soundfile reads, or truncated"),
        (encoded(tone(0.1))[:-101], "<3,143 bytes>: truncated: the file is shorter than its header says"),
        (
            encoded(np.zeros(160, np.float32), rate=100),
            "<364 bytes>: has 100 samples a second, expected 1,000 to 768,000",
        ),
        (
            np.zeros(5, np.int16),
            "<ndarray 5>: holds an array of shape [5] and type int16, "
            "expected samples from −1 to 1 at 16 kHz, [samples] or [samples, channels]",
        ),
    ],
)
def test_what_is_no_recording_is_refused(content: object, reason: str) -> None:
    with pytest.raises(DataError) as error:
        reader().read(content)
    assert str(error.value) == reason


def test_a_recording_of_two_hours_is_refused_before_it_is_decoded() -> None:
    silence = encoded(np.zeros(1000 * 7200, np.int16), rate=1000, kind="FLAC")
    with pytest.raises(DataError) as error:
        reader().read(silence)
    assert str(error.value).endswith("has 7,200.0 seconds, expected at most 60 (data.source.max_seconds)")


def test_more_coefficients_than_bands_are_refused() -> None:
    with pytest.raises(SettingsError, match="coefficients is 13, expected at most mels, 7"):
        reader(features="mfcc", mels=7)


def test_sources_change_their_speed_in_training() -> None:
    embedding = FrameEmbedding(
        FeatureSettings(values=1, convolutions=0, speed=0.25), ModelSettings(width=2, attention_heads=1)
    )
    ramp = torch.arange(41.0)[None, :, None].expand(59, -1, -1)
    found, mask = embedding.front(ramp, torch.ones(59, 41, dtype=torch.bool))
    lengths = mask.sum(1)
    assert 33 <= lengths.min() < 37  # 41 / 1.25
    assert 48 < lengths.max() <= 55  # 41 / 0.75
    for row, length in zip(found, lengths.tolist(), strict=True):
        torch.testing.assert_close(row[:length, 0], torch.linspace(0, 40, length), atol=1e-4, rtol=0)
        assert not row[length:].any()


def test_a_recording_is_the_same_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(np.random.default_rng(3).normal(size=(30_011, 3)) * 0.1, rate=22_050)
    whole = reader().read(content)
    monkeypatch.setattr("translume.sources.audio._BLOCK", 701)
    for name in ("_FRAMES", "_INTERPOLATED"):
        monkeypatch.setattr(f"translume.sources.audio.{name}", 17)
    np.testing.assert_allclose(reader().read(content), whole, atol=1e-5)


def test_channels_of_a_compressed_recording_are_not_all_in_memory() -> None:
    silence = encoded(np.zeros((6 * 192_000, 8), np.int16), rate=192_000, kind="FLAC")
    assert len(silence) < 100_000
    tracemalloc.start()
    assert reader().read(silence).shape == (600, 23)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000  # decoded at once, they take 37 MB
