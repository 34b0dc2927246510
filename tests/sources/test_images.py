"""Images as sources: what is read, what is refused, and how they are scaled and moved."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from translume.config import ModelSettings
from translume.config.sources import ImageSettings
from translume.errors import DataError
from translume.model.frames import ImageEmbedding
from translume.sources.image import ImageReader

PIXELS = np.array([[0, 51, 102], [255, 204, 153]], np.uint8)
"""An image of 3 × 2 pixels."""
COLUMNS = np.array([[0, 1], [0.2, 0.8], [0.4, 0.6]], np.float32)


def reader(**settings: object) -> ImageReader:
    return ImageReader(ImageSettings.model_validate({"height": 2, **settings}))


def png(pixels: np.ndarray, mode: str | None = None) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels, mode).save(buffer, "PNG")
    return buffer.getvalue()


def test_frames_are_the_columns_of_an_image() -> None:
    found = reader().read(png(PIXELS))
    np.testing.assert_allclose(found, COLUMNS, atol=1e-6)
    assert found.dtype == np.float32


def test_a_file_an_array_and_a_pil_image_are_the_same_source(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(PIXELS))
    for given in (tmp_path / "x.png", PIXELS, Image.fromarray(PIXELS), PIXELS / 255, PIXELS.astype(np.uint16) * 257):
        np.testing.assert_allclose(reader().read(given), COLUMNS, atol=1e-6)


def test_an_image_is_scaled_to_the_height_of_the_settings() -> None:
    assert reader(height=4).read(np.zeros((8, 30), np.uint8)).shape == (15, 4)


def test_sixteen_bits_keep_their_shades() -> None:
    deep = (PIXELS.astype(np.uint16) * 257).astype(np.uint16)
    np.testing.assert_allclose(reader().read(png(deep)), COLUMNS, atol=0.005)


def test_colours_are_read_side_by_side() -> None:
    colours = np.zeros((2, 3, 3), np.uint8)
    colours[0, 1] = [255, 51, 0]
    found = reader(color=True).read(png(colours))
    assert found.shape == (3, 6)
    np.testing.assert_allclose(found[1], [1, 0.2, 0, 0, 0, 0], atol=1e-6)


def test_transparent_pixels_are_white() -> None:
    clear = np.zeros((2, 3, 4), np.uint8)
    clear[:, 0, 3] = 255
    np.testing.assert_allclose(reader().read(png(clear)), [[0, 0], [1, 1], [1, 1]], atol=1e-6)


def huge_png() -> bytes:
    """Return a PNG whose header says 30,000 × 30,000 pixels, without any."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "<0 bytes>: empty file, expected an image"),
        (png(PIXELS)[:50], "<50 bytes>: not an image that Pillow reads, or truncated"),
        (b"RIFF0000WAVE", "<12 bytes>: not an image that Pillow reads, or truncated"),
        (
            np.zeros((2, 3), np.int64),
            "<ndarray 2 × 3>: holds an array of type int64, expected uint8, uint16 or numbers from 0 to 1",
        ),
        (
            np.zeros((2, 3, 5), np.uint8),
            "<ndarray 2 × 3 × 5>: holds an array of shape [2, 3, 5], "
            "expected pixels [height, width] or [height, width, 3]",
        ),
    ],
)
def test_what_is_no_image_is_refused(content: object, reason: str) -> None:
    with pytest.raises(DataError) as error:
        reader().read(content)
    assert str(error.value) == reason


def test_a_huge_image_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(DataError, match=r"has (more than|30,000 × 30,000)"):
        reader().read(huge_png())
    with pytest.raises(DataError, match=r"has 3 × 2 pixels, expected at most 5 \(data.source.max_pixels\)"):
        reader(max_pixels=5).read(PIXELS)


@pytest.fixture
def embedding() -> ImageEmbedding:
    settings = ModelSettings(width=6, attention_heads=1)
    return ImageEmbedding(ImageSettings(height=5, channels=3, shift=2), settings)


def test_an_image_has_the_same_positions_alone_and_in_a_batch(embedding: ImageEmbedding) -> None:
    embedding.eval().learn(np.random.default_rng(1).random((31, 5)))
    sources, mask = torch.rand(2, 17, 5), torch.arange(17) < torch.tensor([17, 9])[:, None]
    batch, positions = embedding.front(sources, mask)
    assert batch.shape == (2, 5, 3 * 2)
    assert positions.sum(1).tolist() == [5, 3]
    alone, _ = embedding.front(sources[1:, :9], mask[1:, :9])
    torch.testing.assert_close(batch[1, :3], alone[0])


def test_an_image_is_moved_in_training_and_keeps_its_size(embedding: ImageEmbedding) -> None:
    image = torch.arange(7)[None, :, None] * 10 + torch.arange(5.0)
    torch.manual_seed(3)
    # Each of the 25 places occurs 16 times on average.
    moved = {tuple(embedding.augment(image, torch.ones(1, 7, dtype=torch.bool))[0, 3].tolist()) for _ in range(401)}
    columns = {row[2] // 10 for row in moved}
    assert columns == {1, 2, 3, 4, 5}  # at most two to either side
    assert (30.0, 30.0, 30.0, 31.0, 32.0) in moved  # two down: the edge is repeated
