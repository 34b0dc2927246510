"""Tokenizers of imported models that the `tokenizers` library runs from their own tokenizer.json.

Every text has the ids that it has in transformers, except that special tokens are never matched in text.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tokenizers import Encoding, Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from translume.errors import SettingsError
from translume.text.specials import SpecialIds
from translume.text.typed_specials import typed_specials

SPACE = "▁"
_LEFT_OUT = ("post_processor", "truncation", "padding")
"""Parts of tokenizer.json that add special tokens or change lengths."""


class LibraryIds:
    """Encodes texts with a tokenizer of the library."""

    def __init__(self, document: Mapping[str, Any], size: int) -> None:
        """document: the object in the library's tokenizer.json.  size: number of ids; those without a piece are unused.

        Raises ValueError for a document that the library or this class cannot read.
        """
        self.document = {**document, **dict.fromkeys(_LEFT_OUT)}
        try:
            self._library = LibraryTokenizer.from_str(json.dumps(self.document))
        except BaseException as error:
            if type(error) is not Exception:  # the library raises the plain class
                raise
            raise ValueError(f"the library cannot read it: {error}") from None
        self._library.encode_special_tokens = True
        if cuts := self._special_cuts(exact=False):
            before = [] if self._library.pre_tokenizer is None else [self._library.pre_tokenizer]
            self._library.pre_tokenizer = pre_tokenizers.Sequence([*before, *cuts])
        self._normaliser = self._library.normalizer
        decoder = self.document.get("decoder") or {}
        self._steps = [decoder, *decoder.get("decoders", ())]
        self._metaspace = any(step.get("type") == "Metaspace" for step in self._steps)
        ids = self._library.get_vocab(with_added_tokens=True)
        if sorted(ids.values()) != list(range(len(ids))) or len(ids) > size:
            raise ValueError(f"ids of the vocabulary are not 0, 1, 2, … below {size}")
        self.pieces = (*sorted(ids, key=ids.__getitem__), *(f"<unused {number}>" for number in range(len(ids), size)))

    def _special_cuts(self, added: Iterable[str] = (), *, exact: bool = True) -> list[pre_tokenizers.PreTokenizer]:
        """Return the steps that cut special tokens in a text, since a unigram model would match them.

        added: special tokens beside those that are pieces of the model.  exact: see `typed_specials`.
        """
        model = self.document["model"]
        if model.get("type") != "Unigram":
            return []
        special = {token.content for token in self._library.get_added_tokens_decoder().values() if token.special}
        vocabulary = [piece for piece, _ in model["vocab"]]
        matched = [piece for piece in vocabulary if piece not in special]
        typed = [*(piece for piece in vocabulary if piece in special), *added]
        cuts = typed_specials(typed, (), matched, replace=False, exact=exact)[1]
        return [pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts]

    def without_specials(self) -> LibraryTokenizer:
        """Return the tokenizer with its special tokens as pieces that no text is encoded to.

        Raises SettingsError if it cannot have them.
        """
        document: dict[str, Any] = json.loads(self._library.to_str())
        model, vocabulary = document["model"], document["model"]["vocab"]
        special = [token for token in document["added_tokens"] if token["special"]]
        document["added_tokens"] = [token for token in document["added_tokens"] if not token["special"]]
        cuts = []
        if isinstance(vocabulary, dict):
            vocabulary |= {token["content"]: token["id"] for token in special}
        else:
            rest = [token for token in special if token["id"] >= len(vocabulary)]
            if [token["id"] for token in rest] != list(range(len(vocabulary), len(vocabulary) + len(rest))):
                raise SettingsError(f"tokenizer: the library's {model['type']} needs a piece for each id")
            names = [token["content"] for token in rest]
            cuts = self._special_cuts(names)
            vocabulary += [[name, 0.0] for name in names]
        library = LibraryTokenizer.from_str(json.dumps(document))
        if cuts:
            before = [] if library.pre_tokenizer is None else [library.pre_tokenizer]
            library.pre_tokenizer = pre_tokenizers.Sequence([*before, *cuts])
        return library

    def last_steps(self) -> list[decoders.Decoder]:
        """Return the library's steps from pieces to a text."""
        kinds = {step.get("type") for step in self._steps}
        if "ByteLevel" in kinds:
            return [decoders.ByteLevel()]
        return [
            decoders.Replace(SPACE, " "),
            *([decoders.ByteFallback()] if "ByteFallback" in kinds else []),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]

    def spellings(self, specials: SpecialIds, unknown: bytes) -> list[bytes]:
        """Return what each id adds to a decoded text. Raises ValueError for a decoder that is not known."""
        spelling = self._spelling()
        added = self._library.get_added_tokens_decoder()
        result = [spelling(piece) for piece in self.pieces[: self._library.get_vocab_size()]]
        for id_, token in added.items():
            result[id_] = b"" if token.special else token.content.encode()
        result += [b""] * (len(self.pieces) - len(result))
        for id_ in (specials.pad, specials.bos, specials.eos):
            result[id_] = b""
        if specials.unk is not None and specials.unk != specials.eos:  # Whisper's end mark, which stands for no text
            result[specials.unk] = unknown
        return result

    def _spelling(self) -> Callable[[str], bytes]:
        kinds = {step.get("type") for step in self._steps}
        if "ByteLevel" in kinds:
            letters = _byte_letters()
            return lambda piece: bytes(letters[letter] for letter in piece if letter in letters)
        if not self._metaspace:
            raise ValueError(f"decoder: found {sorted(map(str, kinds))}, expected ByteLevel or Metaspace")
        bytes_of = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)} if "ByteFallback" in kinds else {}
        return lambda piece: bytes_of.get(piece) or piece.replace(SPACE, " ").encode()

    def normalise(self, text: str) -> str:
        """Return the text as the model reads it."""
        text = _encodable(text)
        if self._normaliser is not None:
            text = self._normaliser.normalize_str(text)
        return text.replace(SPACE, " ").removeprefix(" ") if self._metaspace else text

    def without_mark(self, text: str) -> str:
        """Return a text that was spelt without the mark of its first word."""
        return text.removeprefix(" ") if self._metaspace else text

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text, without special tokens."""
        return list(self._encoding(text).ids)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of `normalise(text)` that each id of `encode(text)` stands for."""
        normalised = self.normalise(text)
        offsets = self._encoding(normalised).offsets
        missing = len(self._encoding(text)) - len(offsets)  # a text of spaces has ids, but is normalised to nothing
        return [*offsets, *[(len(normalised), len(normalised))] * missing]

    def _encoding(self, text: str) -> Encoding:
        return self._library.encode(_encodable(text), add_special_tokens=False)


def _encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which cannot be encoded."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter in pieces of byte-level BPE (Radford et al. 2019).

    Printable bytes of Latin-1 stand for themselves, the others for the characters from 256 on.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(rest)}
