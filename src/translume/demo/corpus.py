"""A parallel corpus generated offline: sentence templates filled with names, dates, numbers and money from CLDR."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random

from translume.atomic import make_folder
from translume.errors import DataError, SettingsError, nearest

PARTS = ("train", "valid", "test")

Sentences = tuple[tuple[str, str], ...]
"""Pairs of a source and its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCorpus:
    """Training, validation and test pairs. No sentence occurs twice, on either side."""

    source_language: str
    target_language: str
    train: Sentences
    valid: Sentences
    test: Sentences

    def write(self, folder: Path) -> None:
        """Write `train.en`, `train.zh`, …; files that already hold the same bytes are not written."""
        try:
            make_folder(folder)
            for part in PARTS:
                pairs: Sentences = getattr(self, part)
                for side, language in enumerate((self.source_language, self.target_language)):
                    text = "".join(f"{pair[side]}\n" for pair in pairs).encode()
                    path = folder / f"{part}.{language}"
                    if not path.exists() or path.read_bytes() != text:
                        path.write_bytes(text)
        except OSError as error:
            raise DataError(f"{error.filename or folder}: cannot be written: {error.strerror}") from None


def make_corpus(
    source_language: str, target_language: str, *, pairs: int = 40_000, held_out: int = 1000, seed: int = 1
) -> DemoCorpus:
    """Generate `pairs` training pairs, and `held_out` pairs each for validation and test.

    The result depends on the seed alone. Each source has exactly one target and each target exactly one source, so a
    perfect model reaches 100 %. Raises SettingsError for a language without phrases, or for too many pairs.
    """
    from translume.demo.slots import draw

    languages = (source_language, target_language)
    random = Random(f"{seed} {source_language} {target_language}")
    phrases = [tuple(phrase[language] for language in languages) for phrase in read_phrases(languages)]
    slots = [sorted({match[1] for match in SLOT.finditer(source)}) for source, _ in phrases]
    wanted = pairs + 2 * held_out
    made: list[tuple[str, str]] = []
    seen: tuple[set[str], set[str]] = (set(), set())
    for _ in range(20 * wanted):
        if len(made) == wanted:
            break
        index = random.randrange(len(phrases))
        values = draw(slots[index], random)
        source, target = (fill(phrases[index][side], values, languages[side]) for side in (0, 1))
        if source not in seen[0] and target not in seen[1]:
            seen[0].add(source)
            seen[1].add(target)
            made.append((source, target))
    if len(made) < wanted:
        raise SettingsError(f"--pairs {pairs}: the demo's phrases make at most {max(0, len(made) - 2 * held_out)}")
    # Shuffle: phrases with few fillings run out early and would all land in the held-out parts.
    random.shuffle(made)
    test, valid, train = made[:held_out], made[held_out : 2 * held_out], made[2 * held_out :]
    return DemoCorpus(
        source_language=source_language,
        target_language=target_language,
        train=tuple(train),
        valid=tuple(valid),
        test=tuple(test),
    )


SLOT = re.compile(r"\{(\w+)(:\w+)?\}")
VOWEL = re.compile(r"[aeiouàâäéèêëîïôöûü]", re.IGNORECASE)
SOUNDS_I = re.compile(r"h?[ií]", re.IGNORECASE)


def fill(phrase: str, values: dict[str, tuple[str | int | float, ...]], language: str) -> str:
    """Fill the slots of a phrase in one language, with elision in French and "e" for "y" before an i in Spanish.

    `{language:le}` is the value with the French article.
    """
    from translume.demo.slots import format_value

    text = ""
    end = 0
    for match in SLOT.finditer(phrase):
        text += phrase[end : match.start()]
        end = match.end()
        value = format_value(values[match[1]], language)
        if match[2] == ":le":
            text += "le "
        if language == "fr" and VOWEL.match(value) and text.endswith((" de ", " que ", " le ", " la ")):
            text = f"{text[:-2]}'"
        if language == "es" and SOUNDS_I.match(value) and text.endswith(" y "):
            text = f"{text[:-2]}e "
        text += value
    return text + phrase[end:]


@cache
def _all_phrases() -> tuple[dict[str, str], ...]:
    text = (files("translume.demo") / "phrases.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["phrase"])


def phrase_languages() -> tuple[str, ...]:
    """Return the codes of the languages that have phrases."""
    return tuple(_all_phrases()[0])


def read_phrases(languages: Iterable[str]) -> tuple[dict[str, str], ...]:
    """Return all phrases; raise SettingsError for a language without phrases."""
    known = phrase_languages()
    for language in languages:
        if language not in known:
            raise SettingsError(f"--languages: the demo has no phrases in '{language}'{nearest(language, known)}")
    return _all_phrases()
