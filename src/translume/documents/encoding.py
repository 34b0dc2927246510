"""Detection of the encoding of text files, and encoding of other text in the same way."""

import codecs
import re
from dataclasses import dataclass
from typing import Final

from translume.errors import DocumentError

_META: Final = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BROWSER_ALIASES: Final = {
    "iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "gb2312": "gbk",
    "shift_jis": "cp932", "euc_kr": "cp949",
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
        mark, encoding = next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), (b"", ""))
        return cls(_decoded(data, encoding or "utf-8", len(mark)), encoding or "utf-8", mark)

    @classmethod
    def from_html(cls, data: bytes) -> "EncodedText":
        """Decode HTML as browsers do: by a byte order mark, by <meta charset>, as UTF-8, and else as Windows-1252."""
        if any(data.startswith(mark) for mark, _ in _BYTE_ORDER_MARKS):
            return cls.from_bytes(data)
        found = _META.search(data, 0, PRESCANNED)
        encoding = _known(found[1].decode("ascii")) if found else ""
        try:
            return cls(data.decode(encoding or "utf-8"), encoding or "utf-8")
        except UnicodeDecodeError:
            return cls(_decoded(data, encoding or "cp1252", 0), encoding or "cp1252")

    def encode(self, text: str, errors: str = "strict") -> bytes:
        """Encode another text in the same way."""
        return self.mark + text.encode(self.encoding, errors)


def _decoded(data: bytes, encoding: str, offset: int) -> str:
    try:
        return data[offset:].decode(encoding)
    except UnicodeDecodeError as error:
        raise DocumentError(f"it is not {encoding} text at byte {offset + error.start}") from None


def _known(name: str) -> str:
    """Return Python's name of an encoding that pages can have; empty for any other."""
    try:
        found = codecs.lookup(name).name
    except LookupError:
        return ""
    return _BROWSER_ALIASES.get(found, found) if found in _PAGE_ENCODINGS else ""
