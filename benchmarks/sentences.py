"""Measure how many sentences are split wrongly, in 12 languages: by Translume's rules, by sentencex and by pysbd.

The test set is tests/text/sentences: 200 sentences for each language, one a line, in paragraphs that blank lines
separate.  Between two sentences of a paragraph there is a space; in Chinese and Japanese there is none.  "¦" marks a
place where both decisions are right: between the sentences of one quotation.  A sentence is right if its beginning and
its end are found, and no end within it.

A paragraph is seen if the CRC32 of its lines is even: rules are written by those alone.

    python benchmarks/sentences.py [--unseen] [--show LANGUAGE] [--with FOLDER]
"""

import argparse
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

TEST_SET = Path(__file__).parents[1] / "tests/text/sentences"
LANGUAGES = ("en", "de", "fr", "es", "it", "nl", "ru", "pl", "zh", "ja", "ar", "hi")
Split = Callable[[str], Iterable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A text, the places where its sentences end, and the places where one may end."""

    text: str
    ends: tuple[int, ...]
    optional: frozenset[int]

    @classmethod
    def from_lines(cls, lines: list[str], spacing: str) -> "Paragraph":
        """Join the sentences of a block."""
        text, ends, optional = "", list[int](), set[int]()
        for line in lines:
            *parts, last = line.split("¦")
            for part in parts:
                text += part
                optional.add(len(text))
            text += last + spacing
            ends.append(len(text))
        return cls(text=text.rstrip(), ends=(*ends[:-1], len(text.rstrip())), optional=frozenset(optional))

    def wrong(self, sentences: Iterable[str]) -> list[str]:
        """Return its sentences that a splitter did not find.  sentences: concatenated they must be the text."""
        found, place = set[int](), 0
        for sentence in sentences:
            place += len(sentence)
            found.add(place + len(self.text[place:]) - len(self.text[place:].lstrip()))
        if place != len(self.text):
            raise ValueError("the sentences are not the text")
        return [
            self.text[begin:end]
            for begin, end in zip((0, *self.ends), self.ends, strict=False)
            if not {begin, end} <= found | {0} or any(begin < each < end for each in found - self.optional)
        ]


def paragraphs_of(language: str, *, seen: bool) -> list[Paragraph]:
    """Return one half of the test set of a language."""
    blocks = (TEST_SET / f"{language}.txt").read_text("utf-8").strip().split("\n\n")
    spacing = "" if language in ("zh", "ja") else " "
    return [
        Paragraph.from_lines(block.split("\n"), spacing)
        for block in blocks
        if (zlib.crc32(block.encode()) % 2 == 0) is seen
    ]


def error_rate(paragraphs: list[Paragraph], split: Split) -> float:
    """Return the fraction of sentences that are split wrongly."""
    return sum(len(each.wrong(split(each.text))) for each in paragraphs) / sum(len(each.ends) for each in paragraphs)


def splitters(language: str) -> Iterator[tuple[str, Split]]:
    """Yield the splitters that are installed."""
    from translume.text.sentences import sentences_of

    yield "rules", lambda text: sentences_of(text, language)
    try:
        import sentencex

        yield "sentencex", lambda text: sentencex.segment(language, text)
    except ImportError:
        print("sentencex is not installed", file=sys.stderr)
    try:
        import pysbd

        segmenter = pysbd.Segmenter(language=language, clean=False, char_span=True)
        yield "pysbd", lambda text: pieces(text, [each.start for each in segmenter.segment(text)])
    except ImportError:
        print("pysbd is not installed", file=sys.stderr)


def pieces(text: str, begins: Iterable[int]) -> list[str]:
    """Return a text cut at places."""
    places = sorted({0, *begins, len(text)})
    return [text[begin:end] for begin, end in pairwise(places)]


def main() -> None:
    """Print the error rates by language, or the sentences of a language that are split wrongly."""
    options = argparse.ArgumentParser()
    options.add_argument("--unseen", action="store_true", help="Print the rates of the unseen half too.")
    options.add_argument("--show", metavar="LANGUAGE", help="Print the seen sentences that are split wrongly.")
    options.add_argument("--by", default="rules", help="The splitter whose errors --show prints.")
    options.add_argument("--with", dest="folder", help="A folder with other splitters: pip install --target FOLDER.")
    given = options.parse_args()
    sys.path += [given.folder] * bool(given.folder)
    if given.show:
        split = dict(splitters(given.show))[given.by]
        for paragraph in paragraphs_of(given.show, seen=True):
            for sentence in paragraph.wrong(split(paragraph.text)):
                print(sentence)
        return
    for seen in (True, False) if given.unseen else (True,):
        rates: dict[str, list[float]] = {}
        for language in LANGUAGES:
            for name, split in splitters(language):
                rates.setdefault(name, []).append(error_rate(paragraphs_of(language, seen=seen), split))
        print(f"{'seen' if seen else 'unseen':>10}", *(f"{each:>5}" for each in LANGUAGES), " mean")
        for name, every in rates.items():
            print(f"{name:>10}", *(f"{100 * rate:5.1f}" for rate in (*every, sum(every) / len(every))))


if __name__ == "__main__":
    main()
