"""Images as sources: what is read, what is refused, and how they are scaled and moved."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from translume.config import ModelSettings
from translume.config.sources import ImageSettings
from translume.errors import DataError
from translume.model.frames import ImageEmbedding
from translume.sources.headers import read_header
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


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


DEEP = np.array([[0, 128, 129, 20_000], [65_535, 65_406, 65_407, 40_000]], np.uint16)


@pytest.mark.parametrize(
    "given",
    [
        png(DEEP),
        encoded(Image.fromarray(DEEP), "TIFF"),
        encoded(Image.fromarray(DEEP.astype(">u2")), "TIFF"),
        encoded(Image.fromarray(DEEP.astype(np.int32)), "TIFF"),
        encoded(Image.fromarray((DEEP / 65_535).astype(np.float32)), "TIFF"),
        b"P5 4 2 65535\n" + DEEP.astype(">u2").tobytes(),
        Image.fromarray((DEEP / 65_535).astype(np.float32)),
    ],
)
def test_more_than_eight_bits_are_read_as_the_same_array(given: object) -> None:
    np.testing.assert_array_equal(reader().read(given), reader().read(DEEP))


def test_floats_may_also_go_up_to_255() -> None:
    given = encoded(Image.fromarray(PIXELS.astype(np.float32)), "TIFF")
    np.testing.assert_allclose(reader().read(given), COLUMNS, atol=1e-6)


TURNS = [
    None,
    *("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_90", "TRANSVERSE", "ROTATE_270"),
]
"""What a camera did to an image of each orientation, from 1 on."""


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_upright_as_the_camera_says(tmp_path: Path, kind: str, orientation: int) -> None:
    large = np.kron(np.eye(3, 4) + np.eye(3, 4, 2) * 0.5, np.full((16, 16), 255)).astype(np.uint8)
    image, turn = Image.fromarray(large).convert("RGB"), TURNS[orientation - 1]
    turned = image if turn is None else image.transpose(Image.Transpose[turn])
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(turned, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {"quality": 100}))
    np.testing.assert_allclose(reader(height=48).read(content), large.T / 255, atol=0.02)
    (tmp_path / "x").write_bytes(content)
    assert (read_header("image", tmp_path / "x").length, read_header("image", tmp_path / "x").height) == (64, 48)


def test_damaged_exif_data_are_ignored() -> None:
    content = encoded(Image.fromarray(PIXELS), "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff\1")
    np.testing.assert_allclose(reader().read(content), COLUMNS, atol=1e-6)


def test_the_first_image_of_an_animation_is_read() -> None:
    frames = [Image.fromarray(PIXELS), Image.fromarray(255 - PIXELS)]
    for kind in ("GIF", "PNG", "TIFF"):
        content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        np.testing.assert_allclose(reader().read(content), COLUMNS, atol=1e-6)


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_colour_that_is_transparent_is_white(kind: str) -> None:
    for pixels, clear in ((PIXELS, 51), (PIXELS.astype(np.uint16) * 257, 51 * 257)):
        image = Image.fromarray(pixels)
        if kind == "GIF" and pixels.dtype != np.uint8:
            continue
        found = reader().read(encoded(image, kind, transparency=clear))
        np.testing.assert_allclose(found, np.where(abs(COLUMNS - 0.2) < 1e-3, 1, COLUMNS), atol=1e-6)


def test_inks_are_colours() -> None:
    colours = np.random.default_rng(2).integers(0, 256, (2, 3, 3), np.uint8)
    inks = Image.fromarray(colours).convert("CMYK")
    np.testing.assert_allclose(
        reader(color=True).read(encoded(inks, "TIFF")), reader(color=True).read(colours), atol=1e-6
    )


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
        (Image.fromarray(np.full((2, 3), -1, np.int32)), "<Image 3 × 2>: holds numbers outside 0 to 65,535"),
        (Image.fromarray(np.full((2, 3), np.nan, np.float32)), "<Image 3 × 2>: holds numbers outside 0 to 255"),
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
