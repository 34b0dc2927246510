"""Rules that cut a text into words, before the merges of an imported tokenizer, and that join words to a text."""

import re
from collections.abc import Sequence
from unicodedata import category

from translume.errors import needed_by

_TOKEN = re.compile(r"[\S\x1c-\x1f]+\n?")
"""A run without white space, and the end of a line after it."""
_DASH = "@-@"
"""Moses writes a dash within a word so; without its marks, it joins its neighbours."""


class WordRules:
    """Words are what is between white space."""

    def __init__(self, *, lowercase: bool) -> None:
        self._lowercase = lowercase

    def words(self, text: str) -> list[str]:
        """Return the words of a text."""
        return (text.lower() if self._lowercase else text).split()

    def joined(self, spelt: str) -> str:
        """Return the text of words with a space after each."""
        return spelt.removesuffix(" ")

    def beginning(self, spelt: str) -> str:
        """Return a text that `joined` of any continuation begins with, which may go on with the last word."""
        return self.joined(spelt)

    def places(self, spelt: str) -> Sequence[int]:
        """Return for each place [0, …, len(spelt)] between characters of `spelt` that in `joined(spelt)`."""
        return range(len(spelt) + 1)


class Blenderbot(WordRules):
    """The rules of BlenderBot-small: `.,!?()'` are words of their own, and so is the end of a line, `__newln__`."""

    def words(self, text: str) -> list[str]:
        words: list[str] = []
        for token in _TOKEN.findall(text):
            spaced = re.sub("([.,!?()])", r" \1", token).replace("'", " ' ")
            lines = re.sub(r"[ \n]{2,}", " ", spaced).replace("\n", " __newln__")
            words += [word.lower() for word in lines.split(" ") if word]  # one by one: how a sigma ends depends on it
        return words


class Moses(WordRules):
    """The scripts of Moses (Koehn et al. 2007) for a language, as FSMT uses them; `sacremoses` runs them."""

    def __init__(self, language: str, *, lowercase: bool) -> None:
        """Raises SettingsError if `sacremoses` is not installed."""
        super().__init__(lowercase=lowercase)
        with needed_by("tokenizer"):
            from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
        self._language = language
        self._normaliser = MosesPunctNormalizer(lang=language, pre_replace_unicode_punct=True)
        self._tokenizer, self._detokenizer = MosesTokenizer(lang=language), MosesDetokenizer(lang=language)

    def words(self, text: str) -> list[str]:
        text = self._normaliser.normalize(text.lower() if self._lowercase else text)
        text = "".join(character for character in text if category(character)[0] != "C")
        return list(self._tokenizer.tokenize(text, aggressive_dash_splits=True))

    def joined(self, spelt: str) -> str:
        return str(self._detokenizer.detokenize(spelt.split()))

    def beginning(self, spelt: str) -> str:
        words = spelt.split()
        if self._language == "cs" or not words:  # in Czech, what is joined depends on the last words
            return ""
        return self.joined(" ".join(words[: max(0, len(words) - 1 - _DASH.startswith(words[-1]))]))

    def places(self, spelt: str) -> list[int]:
        joined, places, end = self.joined(spelt), list[int](), 0
        for word in re.finditer(r"\S+", spelt):
            surface = "-" if word[0] == _DASH else str(self._detokenizer.unescape_xml(word[0]))
            if (begin := joined.find(surface, end)) < 0:
                begin, surface = end, ""
            places += [end] * (word.start() - len(places))
            places += [begin + min(number, len(surface)) for number in range(len(word[0]))]
            end = begin + len(surface)
        return places + [end] * (len(spelt) + 1 - len(places))
