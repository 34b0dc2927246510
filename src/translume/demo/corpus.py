"""A parallel corpus made offline: sentence templates of our own, filled with CLDR's names, dates, numbers and money."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random

from translume.errors import DataError, SettingsError, nearest

PARTS = ("train", "valid", "test")

Sentences = tuple[tuple[str, str], ...]
"""Pairs of a source and its one target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCorpus:
    """Three parts that share no sentence, on either side; within all of them no sentence stands twice."""

    source_language: str
    target_language: str
    train: Sentences
    valid: Sentences
    test: Sentences

    def write(self, folder: Path) -> None:
        """Write `train.en`, `train.zh`, … ; a file that already holds the same bytes is left as it is."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
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
    """`pairs` pairs for training, and `held_out` more for each of validation and test; the same for the same seed.

    A source has exactly one target and a target exactly one source, so a perfect model is right every time.
    Raises SettingsError for a language without phrases, or for more pairs than the phrases can make.
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
        raise SettingsError(f"--pairs {pairs}: the demo's phrases make {max(0, len(made) - 2 * held_out)} at most")
    # Shuffled, or phrases with few fillings, which are used up early, would all be held out.
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
    """The phrase with its slots said in the language; French elides, Spanish says "e" for "y" before an i.

    `{language:le}` is the value with the French article.
    """
    from translume.demo.slots import say

    text = ""
    end = 0
    for match in SLOT.finditer(phrase):
        text += phrase[end : match.start()]
        end = match.end()
        value = say(values[match[1]], language)
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
    """Codes of the languages that every phrase is written in."""
    return tuple(_all_phrases()[0])


def read_phrases(languages: Iterable[str]) -> tuple[dict[str, str], ...]:
    """All phrases; raises SettingsError for a language they are not written in."""
    known = phrase_languages()
    for language in languages:
        if language not in known:
            raise SettingsError(f"--languages: the demo has no phrases in '{language}'{nearest(language, known)}")
    return _all_phrases()
