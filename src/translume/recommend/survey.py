"""What two parallel files look like: how many pairs, how long, in which scripts. `init` chooses by it."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

UNSPACED = {"han", "hiragana", "katakana", "thai", "lao", "khmer", "myanmar"}
"""Scripts written without spaces between words, by the first word of their letters' Unicode names."""

_NAMES = {"cjk": "han"}
_READ_CLOSELY = 200_000
"""Sentences whose characters are counted; of the others, only their number."""
_RARE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a corpus.

    script: of most letters, such as "latin" or "han".  characters: distinct ones that occur at least five times.
    words: mean number of words between spaces.  length: mean number of characters.
    cased, tokenized: whether capitals occur, and whether punctuation stands apart.
    """

    language: str
    script: str
    characters: int
    words: float
    length: float
    cased: bool
    tokenized: bool

    @property
    def unspaced(self) -> bool:
        """Whether words are not parted by spaces."""
        return self.script in UNSPACED

    @property
    def short(self) -> bool:
        """Whether lines are single words or little more, rather than sentences."""
        return self.words <= 3 and self.length <= (8 if self.unspaced else 24)


def survey(texts: Iterable[str], language: str) -> Side:
    """Look at the sentences of one side; the first 200,000 closely."""
    counts: Counter[str] = Counter()
    sentences = words = apart = ended = 0
    for text in texts:
        sentences += 1
        if sentences > _READ_CLOSELY:
            break
        counts.update(text)
        words += len(text.split())
        if text.rstrip()[-1:] in (".", "?", "!"):
            ended += 1
            apart += text.rstrip()[-2:-1] == " "
    read = min(sentences, _READ_CLOSELY) or 1
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        if character.isalpha():
            scripts[script_of(character)] += count
    found = scripts.most_common(1)[0][0] if scripts else ""
    if {"hiragana", "katakana"} & set(scripts) and found == "han":
        found = "hiragana"
    return Side(
        language=language or {"han": "zh", "hiragana": "ja", "hangul": "ko", "thai": "th"}.get(found, ""),
        script=found,
        characters=sum(count >= _RARE for count in counts.values()),
        words=words / read,
        length=counts.total() / read,
        cased=any(character.isupper() for character in counts),
        tokenized=ended > 0 and apart / ended > 0.5,
    )


def script_of(character: str) -> str:
    """The script of a letter as its Unicode name begins: "latin", "cyrillic", "han", …"""
    name = unicodedata.name(character, "unknown").split()[0].lower()
    return _NAMES.get(name, name)


def language_of(path: Path) -> str:
    """The language code a file's name ends in ("train.en.gz": "en"); empty where there is none."""
    name = path.name
    for packed in (".gz", ".zst"):
        name = name.removesuffix(packed)
    _, dot, suffix = name.rpartition(".")
    code = suffix.replace("_", "-").split("-")[0]
    is_code = 2 <= len(code) <= 3 and code.isascii() and code.isalpha() and code.islower()
    return suffix if dot and is_code and code not in ("txt", "tok", "raw", "bpe", "tsv", "src", "tgt", "trg") else ""


def languages_of(path: Path) -> tuple[str, str]:
    """The language codes that the name of one file with both sides holds ("train.en-de.tsv"); empty ones where none."""
    for part in reversed(path.name.split(".")[1:]):
        codes = part.split("-")
        if len(codes) == 2 and all(language_of(Path(f"train.{code}")) for code in codes):
            return codes[0], codes[1]
    return "", ""
