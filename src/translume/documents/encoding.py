"""Detection of the encoding of text files, and encoding of other text in the same way."""

import codecs
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from translume.errors import DocumentError, needed_by
from translume.text.sentences import iso_code

_META: Final = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_XML: Final = re.compile(rb"""\A\s{0,9}<\?xml[^>]{0,200}?encoding\s{0,9}=\s{0,9}["']([A-Za-z0-9._:-]{1,40})["']""")
SAMPLED: Final = 60_000
"""Bytes from which the encoding of a text is guessed."""
TOLERANCE: Final = 0.1
"""How much less probable the encoding of a known language may be, as charset-normalizer counts it."""
_USUAL: Final = {
    **{"gb18030": "zh", "cp932": "ja", "cp949": "ko", "cp874": "th", "cp1258": "vi", "cp1254": "tr az", "cp1253": "el"},
    **{"cp1251": "ru uk be bg sr mk", "cp1250": "pl cs sk hu sl hr ro bs sq", "cp1255": "he yi", "cp1256": "ar fa ur"},
    "cp1257": "et lv lt",
}
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BROWSER_ALIASES: Final = {
    "iso8859-1": "cp1252", "latin_1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
    "gb2312": "gbk", "shift_jis": "cp932", "euc_kr": "cp949",
}  # fmt: skip
_PAGE_ENCODINGS: Final = frozenset(
    {
        *("utf-8", "koi8-r", "koi8-u", "mac-roman", "cp866", "cp1252", "ascii"),
        *("gbk", "gb2312", "gb18030", "big5", "euc_jp", "shift_jis", "euc_kr"),
        *(f"cp125{number}" for number in range(9)),
        *(f"iso8859-{number}" for number in range(1, 17)),
    }
)
"""Encodings that browsers accept in pages (encoding.spec.whatwg.org), by Python's names."""
PRESCANNED = 1024
"""Bytes that are searched for <meta charset>, as in browsers."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The text of a file with its encoding.  mark: the byte order mark."""

    text: str
    encoding: str
    mark: bytes = b""

    @classmethod
    def from_bytes(cls, data: bytes) -> "EncodedText":
        """Decode text by its byte order mark, or as UTF-8; DocumentError if that fails."""
        mark, encoding = _byte_order(data)
        return cls(_decoded(data, encoding or "utf-8", len(mark)), encoding or "utf-8", mark)

    @classmethod
    def declared(cls, data: bytes, pattern: re.Pattern[bytes]) -> "EncodedText":
        """Decode text by its byte order mark, by the known encoding whose name a pattern finds in it, or as UTF-8."""
        declaration = None if _byte_order(data)[0] else pattern.search(data)
        try:
            encoding = codecs.lookup(declaration[1].decode("ascii")).name if declaration else ""
        except LookupError:
            encoding = ""
        return cls(_decoded(data, encoding, 0), encoding) if encoding in _PAGE_ENCODINGS else cls.from_bytes(data)

    @classmethod
    def from_html(cls, data: bytes) -> "EncodedText":
        """Decode HTML as browsers do.

        That is by a byte order mark, by <meta charset> or an XML declaration, as UTF-8, and else as Windows-1252.
        """
        if _byte_order(data)[0]:
            return cls.from_bytes(data)
        declared = _META.search(data, 0, PRESCANNED) or _XML.search(data, 0, PRESCANNED)
        encoding = _known(declared[1].decode("ascii")) if declared else ""
        try:
            return cls(data.decode(encoding or "utf-8"), encoding or "utf-8")
        except UnicodeDecodeError:
            return cls(_decoded(data, encoding or "cp1252", 0), encoding or "cp1252")

    @classmethod
    def from_xml(cls, data: bytes) -> "EncodedText":
        """Decode XML by its byte order mark or declaration, else as UTF-8; DocumentError if that fails."""
        return cls.declared(data, _XML)

    def encode(self, text: str, errors: str = "strict") -> bytes:
        """Encode another text in the same way."""
        return self.mark + text.encode(self.encoding, errors)


def _byte_order(data: bytes) -> tuple[bytes, str]:
    """Return the byte order mark of a text and its encoding; empty without one."""
    return next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), (b"", ""))


def in_utf_8(data: bytes, language: str = "", encoding: str = "") -> tuple[bytes, str]:
    """Return a text in UTF-8 or with a byte order mark, and the name of the encoding it had; empty if it is unchanged.

    language: of the text, a code.  encoding: empty to detect it. A text without a fitting one is returned as it is.
    """
    if encoding:
        return _decoded(data, encoding, 0).encode(), encoding
    mark, _ = _byte_order(data)
    try:
        data.decode()
    except UnicodeDecodeError:
        encoding = "" if mark else _guess(data, language)
    return (data.decode(encoding).encode() if encoding else data), encoding


def _guess(data: bytes, language: str) -> str:
    """Return the most probable encoding of a text that is not UTF-8, by its letters; empty if there is none.

    Of nearly equally probable ones it is that of Windows for the language.
    """
    with needed_by("text that is not UTF-8"):
        import charset_normalizer
    usual = next((name for name, codes in _USUAL.items() if iso_code(language) in codes.split()), "cp1252")
    matches = [] if b"\0" in data[:SAMPLED] else [*charset_normalizer.from_bytes(data[:SAMPLED], enable_fallback=False)]
    best = matches[0].chaos + (TOLERANCE if language else 0.0) if matches else 0.0
    near = [match for match in matches if match.chaos <= best]
    likely: list[str] = [name for match in near for name in (match.encoding, *match.could_be_from_charset)]
    for name in (usual if usual in (_BROWSER_ALIASES.get(each, each) for each in likely) else "", *likely):
        with suppress(UnicodeDecodeError, LookupError):
            if name and data.decode(name):
                return name
    return ""


def _decoded(data: bytes, encoding: str, offset: int) -> str:
    try:
        return data[offset:].decode(encoding)
    except UnicodeDecodeError as error:
        raise DocumentError(f"it is not {encoding} text at byte {offset + error.start}") from None


def _known(name: str) -> str:
    """Return Python's name of an encoding that pages can have; empty for any other."""
    try:
        encoding = codecs.lookup(name).name
    except LookupError:
        return ""
    return _BROWSER_ALIASES.get(encoding, encoding) if encoding in _PAGE_ENCODINGS else ""
