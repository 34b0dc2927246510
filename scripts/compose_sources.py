"""Write the files and manifests of the recipes an4, mnist-strings and fsdd from their data sets.

python scripts/compose_sources.py SET FOLDER [DATA] writes FOLDER/SET/train.tsv, valid.tsv, test.tsv and the files that
they name. DATA: the folder of the data sets, ../shared/data unless TRANSLUME_DATA says otherwise.
"""

import gzip
import io
import os
import sys
import wave
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

Row = tuple[str, Callable[[Path], None], str]
"""The name of a file, a function that writes it, and its target."""


def lines(path: Path) -> Iterator[list[str]]:
    """Yield the fields of a TSV file, which may be compressed."""
    packed = path.with_name(f"{path.name}.gz")
    text = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else path.read_text(encoding="utf-8")
    return (line.split("\t") for line in text.splitlines())


def an4(data: Path, part: str) -> Iterator[Row]:
    """Yield one array [frames, 13] of MFCCs for each utterance."""
    with np.load(data / f"{part}.npz") as stacked:
        arrays = np.split(stacked["feats"], np.cumsum(stacked["lengths"])[:-1])
    for (name, _, _, words), array in zip(lines(data / f"{part}.tsv"), arrays, strict=True):
        yield f"{name}.npy", lambda path, array=array: np.save(path, array), words


def mnist_strings(data: Path, part: str) -> Iterator[Row]:
    """Yield one image of digits for each string, white on black, 28 pixels high."""
    content = gzip.decompress(
        (data / f"{'test' if part in ('test', 'long') else 'train'}-images-idx3-ubyte.gz").read_bytes()
    )
    digits = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28)
    for name, numbers, places, target in lines(data / ("test.long.tsv" if part == "long" else f"{part}.strings.tsv")):
        begins = [int(place) for place in places.split()]
        image = np.zeros((28, begins[-1] + 32), np.uint8)
        for number, begin in zip(numbers.split(), begins, strict=True):
            image[:, begin : begin + 28] = np.maximum(image[:, begin : begin + 28], digits[int(number)])
        yield f"{name}.png", lambda path, image=image: Image.fromarray(image).save(path), target


def fsdd(data: Path, part: str) -> Iterator[Row]:
    """Yield one recording at 8 kHz for each digit of the training part and for each string."""
    recordings = zipfile.ZipFile(data / "recordings.zip")

    def samples(name: str) -> np.ndarray:
        with wave.open(io.BytesIO(recordings.read(f"{name}.wav"))) as file:
            return np.frombuffer(file.readframes(file.getnframes()), "<i2")

    def write(path: Path, content: np.ndarray) -> None:
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(content.tobytes())

    names = ["test.long.tsv"] if part == "long" else [f"{part}.strings.tsv"]
    if part == "train":
        names.append("train.single.tsv")
    for number, name in enumerate(names):
        for id_, _, parts, gaps, target in lines(data / name):
            pieces = [np.zeros(0, "<i2")]
            for each, gap in zip(parts.split(), gaps.split(), strict=True):
                pieces += [np.zeros(8 * int(gap), "<i2"), samples(each)]
            content = np.concatenate([*pieces, np.zeros(800, "<i2")])
            yield f"{number}-{id_}.wav", lambda path, content=content: write(path, content), target


SETS = {
    "an4": (an4, ("train", "valid", "test")),
    "mnist_strings": (mnist_strings, ("train", "valid", "test", "long")),
    "fsdd": (fsdd, ("train", "valid", "test", "long")),
}


def main(name: str, folder: str, data: str = "") -> None:
    """Write the files and manifests of one set."""
    rows_of, parts = SETS[name]
    found = Path(data or os.environ.get("TRANSLUME_DATA", "../shared/data")) / name
    for part in parts:
        files = Path(folder) / name / part
        files.mkdir(parents=True, exist_ok=True)
        with (files.parent / f"{part}.tsv").open("w", encoding="utf-8") as manifest:
            for file, write, target in rows_of(found, part):
                write(files / file)
                manifest.write(f"{part}/{file}\t{target}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
