"""Split texts into sentences by rules for 12 languages, and sentences that are too long into parts."""

import re
import unicodedata
from bisect import bisect
from typing import Final

from translume.text.segmentation import UNSPACED_CHARACTER
from translume.text.sentence_rules import rules_of

_LINE = re.compile(r"\s*[^\r\n]+[\r\n\s]*|\s+")
ALIASES: Final = {"in": "id", "iw": "he", "no": "nb", "pb": "pt-br", "zt": "zh-hant"}
"""Other codes of languages: of LibreTranslate, and withdrawn ones."""


_CLOSING = "\"'”’“‘»«›‹)\\]"
_CJK_CLOSING = "”’」』）】》〉"
_CJK = "\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af\uff66-\uff9f"
_END = re.compile(
    # The look-behind begins each run of marks once, so that a megabyte of full stops takes linear time.
    rf"(?<![.!?…؟])(?P<mark>[.!?…؟\u037e]++|(?<=[Ͱ-Ͽἀ-῿]);)"
    rf"(?P<closing>(?:[{_CLOSING}]|[ \u00a0\u202f]»(?![^\s.,;:!?]))*+)(?=\s)"
    rf"|(?P<full>[。！？｡।॥۔။។։።፧]++|(?<=[{_CJK}])[!?]++(?=[{_CJK}{_CJK_CLOSING}])|……(?=[{_CJK_CLOSING}]))"
    rf"(?P<brackets>[\"'’»›)\]{_CJK_CLOSING}]*+)"
    r"|(?<!\s)(?=\s*\n)"
)
_CJK_OPENING = "「『“（《〈【"
_COLONS = ("：", ":", "，", ",")
_THEN = re.compile("然后|然後|就|便|的|时|時|后|後|说完|說完")
"""What follows a quotation after a colon if its sentence goes on."""
_PUNCTUATION = frozenset(",;:،؛.…")
_STOP = re.compile(r"[.…]+\Z")
_DANDA = re.compile("[।॥]")
_SPACE = re.compile(r"\s*")
_OPENING = re.compile(r"[\s\"'“”„‘’«»‹›¿¡(\[{\-–—―「『（]*+(?:(?<=['’‘])[snt] )?")
_OPENED = re.compile("[(\\[{\"'“„«‹‘’]")
_AMOUNT = re.compile(r".*\d\Z|[IVXLC]+\Z")
_MULTIPLES = frozenset(["tys.", "mln", "mld", "тыс.", "млн", "млрд", "млрд.", "Mio.", "Mrd."])
_ENDINGS = ("str", ".-ing", ".-kfm")
_NEXT_WORD = re.compile(r"[^\W\d_]*")
_ITEM = re.compile(r"\s*[(\[]?(?:\d{1,3}(?:\.\d{1,3})*|[^\W\d_]|[ivx]{1,4}|[IVXLC]{1,4})\Z")
"""The number of an item of a list: "1.", "2.1.", "b."."""
_DOTTED = re.compile(r"[^\W\d_]{1,2}(?:\.-?[^\W\d_]{1,3})+\Z")
"""Short parts between full stops: "U.S", "p.m", "S.p.A", "v.Chr"."""
_ROMAN_OR_DIGIT = re.compile(r"\d|[IVXLC]+\b")
_SHORT = re.compile(r"[^\W\d_aeiouyäöüáéíóúàèìòùâêîôûåæøąęаеёиоуыэюяії]{2,5}", re.IGNORECASE)
_END_OF_LIST = re.compile(r"и\s+(?:др|пр|т\. ?[дп])\Z")
_BRACKETS = re.compile("「[^「」]{,300}」|『[^『』]{,300}』|“[^“”]{,300}”|（[^（）]{,300}）|《[^《》]{,300}》")
_PARTICLE = re.compile(
    "[,，、；：;:。]|[とっを](?!ても|ころ|うと)|の(?!ち)|は(?!い|や)|が(?!っ)|に|で(?!も|は)|も(?!う|し|っ)|や(?!が)"
    "|だ(?!が|か)|な(?!ぜ|に|ん)|しか(?!し)|から|まで"
)  # fmt: skip
"""What a Japanese sentence goes on with after a quotation, and marks that no sentence begins with."""


def iso_code(code: str) -> str:
    """Return the ISO 639-1 code in a code such as zh-Hans."""
    short = code.lower().replace("_", "-").partition("-")[0]
    return ALIASES.get(short, short).partition("-")[0]


def sentences_of(line: str, language: str = "") -> list[str]:
    """Split a line into sentences, each with the white space after it; concatenated they are the line.

    language: a code; with an empty or unknown one, the rules of all languages together.  A blank line is one sentence.

    A sentence ends after . ! ? … before white space, unless a lower-case letter follows (in a line that has others) or
    a full stop belongs to an abbreviation, an initial, an ordinal or the number of an item; after 。！？। anywhere,
    unless its sentence goes on after the quotation that it ends; and at the end of a line.
    Closing quotes and brackets belong to it.  The time is linear in the length of the line.
    """
    whole = _Line(line, iso_code(language))
    sentences = []
    start = 0
    for mark in _END.finditer(line):
        end = mark.end()
        after = _end_of(_SPACE, line, end)
        if start < end and after < len(line) and not whole.goes_on(start, mark, after):
            sentences.append(line[start:after])
            start = after
    return [*sentences, line[start:]]


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Return the end of a match that begins at a place; the place if there is none."""
    match = pattern.match(text, place)
    return match.end() if match else place


class _Line:
    """A line, and what is known of all of it."""

    def __init__(self, text: str, code: str) -> None:
        self.text, self.rules = text, rules_of(code)
        self.cased = text != text.lower()
        self.stops = not _DANDA.search(text)
        """Whether full stops end sentences: not where Devanagari's own mark does."""
        spans = [each.span() for each in _BRACKETS.finditer(text)]
        self.opened, self.closed = [begin for begin, _ in spans], [end for _, end in spans]

    def goes_on(self, start: int, match: re.Match[str], after: int) -> bool:
        """Whether a sentence goes on after a mark.  start: of the sentence.  after: of what follows."""
        text, mark, end = self.text, match["mark"], match.end()
        if match["full"]:
            return self._encloses(start, end) or (bool(match["brackets"]) and self._quoted(start, end, after))
        if not mark or "\n" in text[end:after]:
            return False
        ahead = after if text[after].isalpha() else _end_of(_OPENING, text, after)
        follows = text[ahead : ahead + 1]
        if follows in _PUNCTUATION or (self.cased and follows.islower()):
            return True
        if match["closing"]:
            return ahead == after and bool(self.rules.says.match(text, after))
        if not _STOP.match(mark):
            return False
        if mark != ".":
            return follows.isalpha() and follows.lower() == follows.upper()
        return not self.stops or self._abbreviated(start, match.end("mark") - 1, ahead)

    def _encloses(self, start: int, end: int) -> bool:
        """Whether a quotation that is part of a sentence goes on after a mark."""
        number = bisect(self.opened, end - 1) - 1
        if number < 0 or self.closed[number] <= end:
            return False
        begin, last = self.opened[number], self.closed[number]
        return begin > start or bool(_PARTICLE.match(self.text, last))

    def _quoted(self, start: int, end: int, after: int) -> bool:
        """Whether a sentence goes on after a quotation that ends with a mark."""
        if self.text[after] in _CJK_OPENING:
            return False
        if _PARTICLE.match(self.text, after):
            return True
        number = bisect(self.closed, end) - 1
        if number < 0 or self.closed[number] != end or self.opened[number] <= start:
            return bool(self.rules.says.match(self.text, after))
        before = self.text[max(start, self.opened[number] - 2) : self.opened[number]].rstrip()
        return not before.endswith(_COLONS) or bool(_THEN.match(self.text, after))

    def _abbreviated(self, start: int, end: int, ahead: int) -> bool:
        """Whether a full stop belongs to an abbreviation, a number or an initial.  end: its place."""
        text, rules = self.text, self.rules
        if end - start < 12 and _ITEM.match(text[start:end]):
            return True
        before = text[max(start, end - 24) : end].rsplit(None, 3)
        if not before or text[end - 1].isspace():
            return False
        word = _OPENED.split(before[-1])[-1]
        following = text[ahead : _end_of(_NEXT_WORD, text, ahead)]
        number = _ROMAN_OR_DIGIT.match(text, ahead)
        initial = len(following) == 1 and text[ahead + 1 : ahead + 2] == "."
        starts = following.lower() in rules.starts and not initial
        if word.isdecimal():
            return (
                len(word) <= 2 and not starts and (rules.ordinals or (number is not None and not number[0].isdecimal()))
            )
        name = word.lower()
        if name in rules.numbered and number and not starts:
            return True
        short = (len(word) == 1 and word.isalpha()) or (_SHORT.fullmatch(word) and word[1:].islower())
        if word in "IVX" and following[:1] > "Ͱ":
            return False  # a numeral before a word in another script: "Николае I."
        if short and len(before) > 1 and not number and word.islower():
            amount = before[-3 if before[-2] in _MULTIPLES and len(before) > 2 else -2]
            if _AMOUNT.match(amount):
                return False  # a unit: "5 km."
        if word in {"др", "пр", "д", "п"} and _END_OF_LIST.search(text, max(start, end - 8), end):
            return False
        known = name in rules.words
        if known or short or name.endswith(_ENDINGS) or _DOTTED.match(word):
            return not starts or (known and name in rules.titles)
        return False


def split_text(text: str, language: str = "") -> list[tuple[str, str]]:
    """Split a text into lines and these into sentences, each with the white space after it; joined they are the text.

    White space at the beginning of the text belongs to the first sentence.
    """
    parts = []
    for line in _LINE.findall(text):
        for sentence in sentences_of(line, language):
            words = sentence.rstrip()
            parts.append((words, sentence[len(words) :]))
    return parts


_CLAUSE = re.compile(r"[,;:.!?…،؛؟–—][\"'”’»›)\]]*+\s++|[、，；：。！？।][”’」』）】》]*+\s*+")
_SPACES = re.compile(r"\s+")
_LEADING_VOWELS = frozenset("เแโใไເແໂໃໄ")
"""Vowels of Thai and Lao that are written before their consonant."""


def parts_of(sentence: str, size: int) -> list[str]:
    """Cut a sentence into parts of at most `size` characters; concatenated they are the sentence.

    It is cut after the last mark in the second half of a part, else after the last space, else between two characters
    of a script without spaces, such as Thai.  A word of another script stays whole, however long it is.
    """
    parts, begin = [], 0
    while len(sentence) - begin > size:
        end = _cut(sentence, begin, begin + size)
        parts.append(sentence[begin:end])
        begin = end
    return [*parts, sentence[begin:]] if begin < len(sentence) else parts


def _cut(text: str, begin: int, limit: int) -> int:
    """Return where the part of a text ends that begins at a place: at most at `limit`, if it can."""
    for pattern, first in ((_CLAUSE, (begin + limit) // 2), (_SPACES, begin)):
        ends = [each.end() for each in pattern.finditer(text, first, limit)]
        if ends and begin < ends[-1]:
            return ends[-1]
    end = limit
    while end > begin and (
        unicodedata.category(text[end])[0] == "M" or text[end - 1] in _LEADING_VOWELS or text[end] == "ำ"
    ):
        end -= 1
    if end > begin and UNSPACED_CHARACTER.match(text, end - 1) and UNSPACED_CHARACTER.match(text, end):
        return end
    after = _SPACES.search(text, limit)
    return after.end() if after else len(text)
