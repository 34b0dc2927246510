"""Headers of recordings with sizes that are unknown, as in a pipe, or that lie."""

import numpy as np
import pytest
from tests.sources.test_audio import encoded, reader, tone

from translume.errors import DataError

SOUND = tone(0.3)
WAV, FLAC, AU, RF64 = (encoded(SOUND, kind=kind) for kind in ("WAV", "FLAC", "AU", "RF64"))
DS64 = RF64.index(b"ds64") + 8


def riff(whole: int, data: int) -> bytes:
    return WAV[:4] + whole.to_bytes(4, "little") + WAV[8:40] + data.to_bytes(4, "little") + WAV[44:]


def flac(samples: int) -> bytes:
    return FLAC[:21] + bytes([FLAC[21] & 0xF0 | samples >> 32]) + (samples % (1 << 32)).to_bytes(4) + FLAC[26:]


def rf64(whole: int, data: int) -> bytes:
    return RF64[:DS64] + whole.to_bytes(8, "little") + data.to_bytes(8, "little") + RF64[DS64 + 16 :]


PIPED = {
    "sox": riff(0x7FFFF024, 0x7FFFF000),
    "arecord": riff(0x80000024, 0x80000000),
    "ffmpeg": riff(0xFFFFFFFF, 0xFFFFFFFF),
    "zeros": riff(0, 0),
    "header of an empty file": riff(36, 0),
    "no data": riff(0xFFFFFFFF, 0),
    "data of more than the file": riff(len(WAV) - 8, 99_999_999),
    "AU": AU[:8] + b"\xff" * 4 + AU[12:],
    "AU zeros": AU[:8] + bytes(4) + AU[12:],
    "FLAC": flac(0),
    "FLAC of fewer samples": flac(8),
    "RF64 zeros": rf64(0, 0),
    "RF64": rf64((1 << 64) - 1, (1 << 64) - 1),
}


@pytest.mark.parametrize("name", PIPED)
def test_a_recording_from_a_pipe_is_read_to_its_end(name: str) -> None:
    np.testing.assert_allclose(reader().read(PIPED[name]), reader().read(WAV), atol=1e-3)


def test_an_empty_recording_stays_empty() -> None:
    assert len(reader().read(encoded(SOUND[:0]))) == 0
    empty = encoded(SOUND[:0]) + b"LIST\4\0\0\0INFO"
    assert len(reader().read(empty[:4] + (len(empty) - 8).to_bytes(4, "little") + empty[8:])) == 0


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [
        *((kind, None) for kind in ("WAV", "WAVEX", "AIFF", "AU", "W64", "RF64", "MP3")),
        *(("OGG", subtype) for subtype in ("VORBIS", "OPUS")),
    ],
)
def test_a_truncated_recording_is_refused(kind: str, subtype: str | None) -> None:
    content = encoded(tone(4.0), kind=kind, subtype=subtype)
    for kept in (len(content) // 2, len(content) - 2):
        with pytest.raises(DataError) as error:
            reader().read(content[:kept])
        assert str(error.value) == f"<{kept:,} bytes>: truncated: the file is shorter than its header says"


def test_a_flac_of_fewer_samples_than_stated_is_refused() -> None:
    with pytest.raises(DataError) as error:
        reader().read(flac(99_999))
    assert str(error.value) == f"<{len(FLAC):,} bytes>: truncated: the file is shorter than its header says"


def test_the_tag_of_an_mp3_is_found_behind_a_picture() -> None:
    content = b"ID3\3\0\0\0\0\1\1" + bytes(129) + encoded(tone(4.0), kind="MP3")
    assert 390 < len(reader().read(content)) < 420
    with pytest.raises(DataError, match="truncated: the file is shorter than its header says"):
        reader().read(content[:-500])
