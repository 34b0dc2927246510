"""Tokenizers of imported models: files of the `tokenizers` library, and SentencePiece models."""

import base64
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final, Self
from unicodedata import category

from tokenizers import Encoding, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from translume.errors import SettingsError, needed_by
from translume.text.specials import BYTES, SpecialIds

SPACE: Final = "▁"
"""The character for a space in pieces. SentencePiece reads one in a text as a space."""
CODE = re.compile(r">>.*?<<", re.DOTALL)
"""The target language at the beginning of a source, as multilingual Marian models expect it."""
HOSTILE = (
    "", " ", "\t a\u3000\u2028b\x1c ", "</s><s> <pad><unk>▁<0x41>", "☃☃☃ \x00\u200d\ufffd", "ΑΣ ΣΑΣ. Σ", "İıẞ ﬁ",
    "e\u0301 \u1100\u1161 \u0f43", "12 345,6%%!!", "我喜欢 한국어 ไทย", "👩\u200d👩\u200d👧", "a" * 99,
    "\u1100\u1161\u11a8ｶﾞ ～½…", "x \u00a0 y▁▁ z▁ ",
)  # fmt: skip
"""Texts on which two tokenizers must agree: special tokens as text, white space, rare characters, long words."""
LINES, LONGEST, RULES = 10_000, 23, 1000
"""Number of random lines of pieces on which the library must agree with SentencePiece, their maximum length, and the
maximum number of rules of several characters that are tried."""

NORMAL, CONTROL, USER_DEFINED, _BYTE = 1, 3, 4, 6
"""Types of pieces: a control piece is never found in a text."""
_UNIGRAM, _BPE = 1, 2
CACHE_SIZE, MAX_CACHED = 200_000, 48
"""Maximum number of words whose pieces are cached, and of characters in such a word."""
FOREIGN: Final = "\ufff0"
"""A character that Unicode reserves as a control character, so that no text has it and it is a grapheme of its own.

It begins the pieces of the library that no text is encoded to, since this side's SentencePiece model lacks them, and
keeps marks apart while rules are applied to single characters.
"""
UNKNOWN_PIECE: Final = FOREIGN + "?"
"""The library's piece for unknown characters."""
_LENGTHS = ("truncation", "padding")
"""Parts of tokenizer.json that change lengths."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which cannot be encoded."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


class LibraryIds:
    """Encodes texts with a tokenizer of the library, whose special tokens are never matched in a text."""

    def __init__(self, document: Mapping[str, Any], size: int) -> None:
        """document: the object in the library's tokenizer.json.  size: number of ids; those without a piece are unused.

        Raises ValueError for a document that the library or this class cannot read.
        """
        self.document = {**document, **dict.fromkeys(_LENGTHS)}
        self._library = read_library({**self.document, "post_processor": None})
        self._library.encode_special_tokens = True
        self._add_cuts(self._library, exact=False)
        decoder = self.document.get("decoder") or {}
        self._steps = {step.get("type") for step in (decoder, *decoder.get("decoders", ()))}
        self._metaspace = "Metaspace" in self._steps
        added = self._library.get_added_tokens_decoder()
        names = {id_: piece for piece, id_ in self._library.get_vocab(with_added_tokens=True).items()}
        names |= {id_: token.content for id_, token in added.items()}
        if not names or max(names) >= size:
            raise ValueError(f"ids of the vocabulary are not below {size}")
        self.pieces = tuple(names.get(id_) or f"<unused {id_}>" for id_ in range(size))
        self._silent = {*range(size)} - names.keys() | {id_ for id_, token in added.items() if token.special}
        self._normaliser = self._library.normalizer
        with library_errors():  # the library panics on some texts with some normalisers
            changed = any(self.encode(self.normalise(text)) != self.encode(text) for text in HOSTILE if text.strip())
        if changed:
            self._normaliser, self._metaspace = None, False  # a normalised text would be read otherwise

    def _add_cuts(self, library: LibraryTokenizer, added: Iterable[str] = (), *, exact: bool) -> None:
        """Cut special tokens in a text, since a unigram model, or one that looks up words, would match them.

        added: special tokens beside those that are pieces of the model.  exact: see `special_cuts`.
        """
        model = self.document["model"]
        if model["type"] == "BPE" and not model.get("ignore_merges"):
            return
        tokens = {token.content: token.special for token in self._library.get_added_tokens_decoder().values()}
        pieces = [*dict(model["vocab"])]
        typed = [*(piece for piece in pieces if tokens.get(piece)), *added]
        matched = [piece for piece in pieces if piece not in tokens and piece[:1] != FOREIGN]
        if cuts := special_cuts(typed, matched, exact=exact):
            before = [] if library.pre_tokenizer is None else [library.pre_tokenizer]
            cut = pre_tokenizers.Split(Regex("|".join(cuts)), "isolated")
            library.pre_tokenizer = pre_tokenizers.Sequence([*before, cut])

    def without_specials(self) -> LibraryTokenizer:
        """Return the tokenizer with its special tokens as pieces that no text is encoded to.

        Raises SettingsError if it cannot have them.
        """
        document = json.loads(json.dumps(self.document))
        model, vocabulary = document["model"], document["model"]["vocab"]
        special = [token for token in document["added_tokens"] if token["special"]]
        document["added_tokens"] = [token for token in document["added_tokens"] if not token["special"]]
        names: list[str] = []
        if isinstance(vocabulary, dict):
            vocabulary |= {token["content"]: token["id"] for token in special}
        else:
            missing = [token for token in special if token["id"] >= len(vocabulary)]
            if [token["id"] for token in missing] != list(range(len(vocabulary), len(vocabulary) + len(missing))):
                raise SettingsError(f"tokenizer: the library's {model['type']} needs a piece for each id")
            names = [token["content"] for token in missing]
            vocabulary += [[name, 0.0] for name in names]
        library = read_library(document)
        self._add_cuts(library, names, exact=True)
        return library

    def last_steps(self) -> list[decoders.Decoder]:
        """Return the library's steps from pieces to a text."""
        if self._steps & {"Metaspace"}:
            fallback = [decoders.ByteFallback()] if "ByteFallback" in self._steps else []
            return [decoders.Replace(SPACE, " "), *fallback, decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        # Without a decoder, the library puts a space between pieces.
        return [self._library.decoder or decoders.WordPiece(FOREIGN, cleanup=False)]

    def decoder(self, specials: SpecialIds, dropped: Set[int], unknown: str) -> Callable[[Iterable[int]], str]:
        """Return the function from ids to their text, with `unknown` for unknown characters.

        dropped: ids that add nothing, beside those of special tokens.
        """
        names: list[str | None] = [*self.pieces]
        for id_ in self._silent | specials.marks | dropped:
            names[id_] = None
        if specials.unk is not None and specials.unk != specials.eos:  # Whisper's EOS, which stands for no text
            names[specials.unk] = unknown
        join = self._joined
        return lambda ids: join([name for id_ in ids if (name := names[id_]) is not None])

    def _joined(self, pieces: Sequence[str]) -> str:
        decoder = self._library.decoder
        return " ".join(pieces) if decoder is None else str(decoder.decode(pieces))

    def spellings(self, specials: SpecialIds, dropped: Set[int], unknown: bytes) -> list[bytes]:
        """Return what each id adds to a decoded text in which others precede and follow it."""
        spelling = self._spelling()
        result = [spelling(piece) for piece in self.pieces]
        for id_ in self._silent | specials.marks | dropped:
            result[id_] = b""
        if specials.unk is not None and specials.unk != specials.eos:
            result[specials.unk] = unknown
        return result

    def _spelling(self) -> Callable[[str], bytes]:
        if "ByteLevel" in self._steps:
            letters = _byte_letters()
            return lambda piece: bytes(map(letters.get, piece)) if letters.keys() >= set(piece) else piece.encode()  # type: ignore[arg-type]
        bytes_of = {piece: bytes([byte]) for byte, piece in enumerate(BYTES)} if "ByteFallback" in self._steps else {}
        if self._metaspace:
            return lambda piece: bytes_of.get(piece) or piece.replace(SPACE, " ").encode()
        after = len(self._joined(["A", "A"])) - 1  # "A", perhaps with a space before it
        return lambda piece: bytes_of.get(piece) or self._joined(["A", piece, "A"])[1:-after].encode()

    def normalise(self, text: str) -> str:
        """Return the text as the model reads it."""
        text = encodable(text)
        if self._normaliser is not None:
            text = self._normaliser.normalize_str(text)
        return text.replace(SPACE, " ").removeprefix(" ") if self._metaspace else text

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
        return self._library.encode(encodable(text), add_special_tokens=False)


@contextmanager
def library_errors() -> Iterator[None]:
    """Raise ValueError for what the library cannot read, for which it raises the plain class."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the library cannot read it: {error}") from None


def read_library(document: Mapping[str, Any]) -> LibraryTokenizer:
    """Return the library's tokenizer of the object in a tokenizer.json. Raises ValueError if it cannot be read."""
    with library_errors():
        return LibraryTokenizer.from_str(json.dumps(document))


def special_cuts(special: Iterable[str], pieces: Iterable[str], *, exact: bool) -> list[str]:
    """Return regular expressions of the places where special tokens that a user types are cut, so that they stay text.

    A token is cut where no piece continues, beside a known character if possible, since a cut run of unknown ones has
    more ids. exact: raise SettingsError for a token of which every cut could go through a piece. Otherwise it is cut
    before its last character: it stays text, perhaps with other pieces than its characters would have without the cut.
    """
    pieces = list(pieces)
    known = set().union(*pieces)
    joined = {pair for piece in pieces for pair in pairwise(piece)}
    cuts = []
    for name in special:
        places = [place for place, pair in enumerate(pairwise(name), 1) if pair not in joined]
        places.sort(key=lambda place, name=name: known.isdisjoint(name[place - 1 : place + 1]))  # type: ignore[misc]
        if not places and (exact or len(name) == 1):
            raise SettingsError(f"tokenizer: the library would match the special token {name!r} in a text")
        place = places[0] if places else len(name) - 1
        cuts.append(f"(?<={re.escape(name[:place])})(?={re.escape(name[place:])})")
    return cuts


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter in pieces of byte-level BPE (Radford et al. 2019).

    Printable bytes of Latin-1 stand for themselves, the others for the characters from 256 on.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieces:
    """A SentencePiece model, unigram or byte-pair encoding (Kudo and Richardson 2018).

    content: of its file.  library: its model and the rules of its normaliser, without those for spaces, in a
    tokenizer.json of the library; None if some texts got other pieces, so that the package `sentencepiece` segments.
    fallback: whether unknown characters become the bytes of their UTF-8.
    codes: whether `>>…<<` at the beginning of a text is one token, as in Marian's multilingual models.
    """

    content: bytes
    library: Mapping[str, Any] | None
    fallback: bool
    codes: bool = True

    @classmethod
    def from_proto(cls, proto: Any, *, codes: bool = True) -> Self:
        """Build from the message of a file. Raises ValueError or RuntimeError for a damaged one."""
        return cls(
            content=proto.SerializeToString(),
            library=_same_in_library(proto),
            fallback=proto.trainer_spec.byte_fallback,
            codes=codes,
        )

    @property
    def proto(self) -> Any:
        """The message of the file. Raises SettingsError if `sentencepiece` is not installed."""
        return read_proto(self.content)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        content = base64.b64encode(self.content).decode()
        return {"content": content, "library": self.library, "fallback": self.fallback, "codes": self.codes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned, here or in release 0.1.0.

        Raises ValueError, KeyError or TypeError for anything else, SettingsError if `sentencepiece` is not installed.
        """
        if "scores" in values:
            return cls._from_first_format(values)
        return cls(
            content=base64.b64decode(values["content"], validate=True),
            library=values["library"],
            fallback=values["fallback"] is True,
            codes=values["codes"] is True,
        )

    @classmethod
    def _from_first_format(cls, values: Mapping[str, Any]) -> Self:
        """Read the scores of pieces with spaces, and the rules of the normaliser, as release 0.1.0 stored them."""
        scores = {str(piece): float(score) for piece, score in values["scores"].items()}
        rules = {str(before): str(after) for before, after in values["rules"].items()}
        if not scores or "" in scores or "" in rules:
            raise ValueError("a piece or a rule of SentencePiece is empty")
        charsmap = b""
        if rules:
            normaliser = package().SentencePieceNormalizer(norm_map=list(rules.items()))
            charsmap = read_proto(normaliser.serialized_model_proto()).normalizer_spec.precompiled_charsmap
        fallback, merges = values.get("fallback") is True, values.get("merges") is True
        proto = build_proto(scores, charsmap, fallback=fallback, merges=merges)
        return cls.from_proto(proto, codes=values.get("codes", True) is True)

    def segmenter(self) -> Callable[[str], list[str]]:
        """Return the function from a text to its pieces, which join to the normalised text; unknown ones as they are.

        Raises ValueError for a damaged model, SettingsError if `sentencepiece` is needed and not installed.
        """
        return _peer(self.proto) if self.library is None else _library_segmenter(read_library(self.library))


def package() -> Any:
    """Return the package `sentencepiece`. Raises SettingsError if it is not installed."""
    with needed_by("tokenizer"):
        import sentencepiece
        import sentencepiece.sentencepiece_model_pb2
    sentencepiece.SetMinLogLevel(2)
    return sentencepiece


def read_proto(content: bytes) -> Any:
    """Return the message in an undamaged SentencePiece file. Raises SettingsError as `package`."""
    return package().sentencepiece_model_pb2.ModelProto.FromString(content)


def scores_of(proto: Any) -> dict[str, float]:
    """Return the scores of the pieces that segment text: log-probabilities in nats, or numbers that order merges."""
    return {each.piece: each.score for each in proto.pieces if each.type == NORMAL}


def build_proto(scores: Mapping[str, float], charsmap: bytes, *, fallback: bool, merges: bool = False) -> Any:
    """Return the message of a SentencePiece file with these pieces, whose spaces may be written as spaces."""
    proto = read_proto(b"")
    kinds = {"<unk>": 2, "<s>": CONTROL, "</s>": CONTROL} | (dict.fromkeys(BYTES, _BYTE) if fallback else {})
    for piece, kind in kinds.items():
        proto.pieces.add(piece=piece, score=0.0, type=kind)
    for piece, score in scores.items():
        proto.pieces.add(piece=piece.replace(" ", SPACE), score=score, type=NORMAL)
    proto.trainer_spec.model_type = _BPE if merges else _UNIGRAM
    proto.trainer_spec.byte_fallback = fallback
    proto.normalizer_spec.precompiled_charsmap = charsmap
    return proto


def _peer(proto: Any) -> Callable[[str], list[str]]:
    """Return SentencePiece's segmentation, in which unknown characters stay as they are."""
    message = type(proto).FromString(proto.SerializeToString())
    message.trainer_spec.byte_fallback = False
    for piece in message.pieces:
        piece.type = CONTROL if piece.type == _BYTE else piece.type
    processor = package().SentencePieceProcessor(model_proto=message.SerializeToString())
    return lambda text: processor.encode(text, out_type=str)


def _library_segmenter(library: LibraryTokenizer) -> Callable[[str], list[str]]:
    """Return the library's segmentation. Words are segmented one by one and cached if no piece crosses their ends."""
    normaliser, model, known = library.normalizer, library.model, library.get_vocab()
    by_word = SPACE in known and not any(SPACE in piece[1:] for piece in known)
    cut = re.compile(f"{SPACE}[^{SPACE}]*" if by_word else r"(?s:.+)").findall

    def segment(word: str) -> list[str]:
        tokens = model.tokenize(word)
        pieces = [token.value for token in tokens]
        if UNKNOWN_PIECE in pieces:  # byte-pair encoding does not say what is unknown
            letters = word.encode()
            pieces = [letters[slice(*token.offsets)].decode() for token in tokens]
        return pieces

    cached = lru_cache(CACHE_SIZE)(segment)

    def segment_all(text: str) -> list[str]:
        if normaliser is not None:
            text = normaliser.normalize_str(text)
        text = SPACE.join(filter(None, text.split(" "))).rstrip(SPACE)  # as `library_spaces`, in a fifth of the time
        words = cut(SPACE + text) if text else []
        return [piece for word in words for piece in (cached(word) if len(word) <= MAX_CACHED else segment(word))]

    return segment_all


def _same_in_library(proto: Any) -> dict[str, Any] | None:
    """Return a tokenizer.json with SentencePiece's pieces for all texts tried, or None if some differ."""
    segment, texts = _peer(proto), _texts(proto)
    wanted = [segment(text) for text in texts]
    library = LibraryTokenizer(_library_model(proto))
    for rules in _library_rules(proto.normalizer_spec.precompiled_charsmap):
        if rules:
            library.normalizer = normalizers.Sequence(rules)
        document: dict[str, Any] = json.loads(library.to_str())
        ours = _library_segmenter(read_library(document))  # as it will be read: the last bits of scores may change
        if all(ours(text) == pieces for text, pieces in zip(texts, wanted, strict=True)):
            return document
    return None


def _texts(proto: Any) -> list[str]:
    """Return hostile texts, rules of the normaliser within words, and random lines of pieces."""
    draw, known = random.Random(1), [*scores_of(proto)]
    lines = ("".join(draw.choices(known, k=draw.randrange(1, LONGEST))) for _ in range(LINES))
    several = _long_rules(proto.normalizer_spec.precompiled_charsmap)
    rules = draw.sample(several, min(RULES, len(several)))
    return [*HOSTILE, *(f"a{rule} b" for rule in rules), *(line.replace(SPACE, " ") for line in lines)]


@lru_cache(1)  # it takes half a second, and a model's source and target have the same normaliser
def _long_rules(charsmap: bytes) -> list[str]:
    """Return what the rules of a normaliser replace, if it has several characters."""
    if not charsmap:
        return []
    model = build_proto({}, charsmap, fallback=False)
    normaliser = package().SentencePieceNormalizer(model_proto=model.SerializeToString())
    # Releases of Unicode differ in characters that are younger than Python's tables.
    return [rule for rule, _ in normaliser.decompile() if len(rule) > 1 and "Cn" not in map(category, rule)]


def _library_rules(charsmap: bytes) -> Iterable[list[normalizers.Normalizer]]:
    """Yield steps of the library that may apply the rules of a normaliser as SentencePiece does.

    SentencePiece applies the longest rule at each place, the library one rule to each grapheme. For rules that are
    Unicode's, it is the same to compose characters before and after rules that are applied to single characters.
    """
    if not charsmap:
        yield []
        return
    with library_errors():
        rules = normalizers.Precompiled(charsmap)
    apart = normalizers.Replace(Regex(r"(?<=[\s\S])(?=[\p{M}ﾞﾟ])"), FOREIGN)
    yield [normalizers.NFC(), apart, rules, normalizers.Replace(FOREIGN, ""), normalizers.NFC()]
    yield [rules]


def library_spaces() -> list[normalizers.Normalizer]:
    """Return the steps that collapse spaces, strip both ends, mark the first word and escape spaces."""
    replaced = {" {2,}": " ", r"\A ": "", f"[ {SPACE}]+\\z": "", " ": SPACE, r"\A(?=[\s\S])": SPACE}
    return [normalizers.Replace(Regex(pattern), replacement) for pattern, replacement in replaced.items()]


def _library_model(proto: Any) -> models.Model:
    scores = scores_of(proto)
    if proto.trainer_spec.model_type != _BPE:
        return models.Unigram([(UNKNOWN_PIECE, 0.0), *scores.items()], unk_id=0)
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(scores, key=lambda piece: -scores[piece])
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    ids = {piece: id_ for id_, piece in enumerate((UNKNOWN_PIECE, *scores))}
    return models.BPE(ids, merges, unk_token=UNKNOWN_PIECE, fuse_unk=True)


class SentenceIds:
    """Encodes texts: segments them with SentencePiece's model, and looks the pieces up in a vocabulary."""

    def __init__(
        self, sentences: SentencePieces, pieces: Sequence[str], specials: SpecialIds, silent: Set[int] = frozenset()
    ) -> None:
        """silent: ids that no text is encoded to.  Raises as `SentencePieces.segmenter`."""
        assert specials.unk is not None  # checked where the vocabulary is read
        special = {specials.unk} | specials.marks | silent
        self._unknown = specials.unk
        self._ids = {piece.replace(" ", SPACE): id_ for id_, piece in enumerate(pieces) if id_ not in special}
        self._codes = {piece: id_ for piece, id_ in self._ids.items() if CODE.fullmatch(piece)}
        self._reads_codes = sentences.codes
        self._bytes = [self._ids.pop(byte, self._unknown) for byte in BYTES] if sentences.fallback else []
        self._segment = sentences.segmenter()

    def normalise(self, text: str) -> str:
        """Return the text as the model reads it: rules applied, runs of spaces collapsed, no space at either end."""
        code, pieces = self._pieces(text)
        return code + "".join(pieces).replace(SPACE, " ").strip()

    def encode(self, text: str) -> list[int]:
        """Return the ids of the normalised text, without EOS. A language code at its beginning is one token."""
        code, pieces = self._pieces(text)
        ids = [*map(self._ids.get, pieces)]
        known = [id_ for id_ in ids if id_ is not None]
        if not code and len(known) == len(ids):
            return known
        return [id_ for _, unit in self._units(code, pieces) for id_ in unit]

    def without_mark(self, text: str) -> str:
        """Return a text that was spelt without the mark of its first word, and without spaces at the end."""
        return text.strip()

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of `normalise(text)` that each id of `encode(text)` stands for."""
        code, pieces = self._pieces(text)
        units, last = self._units(code, pieces), len(self.normalise(text))
        ends = accumulate((len(unit) for unit, _ in units), initial=0)
        # The first piece after a code begins with a space that is not in the text.
        places = [min(end - (end > len(code)), last) for end in ends]
        return [span for (_, ids), span in zip(units, pairwise(places), strict=True) for _ in ids]

    def _units(self, code: str, pieces: Sequence[str]) -> list[tuple[str, list[int]]]:
        """Return a code and pieces with their ids. An unknown character that becomes bytes is a piece."""
        units = [(code, [self._codes.get(code, self._unknown)])] if code else []
        for piece in pieces:
            if (id_ := self._ids.get(piece)) is not None or not self._bytes:
                units.append((piece, [self._unknown if id_ is None else id_]))
            else:
                units += [(each, [self._bytes[byte] for byte in each.encode()]) for each in piece]
        return units

    def _pieces(self, text: str) -> tuple[str, list[str]]:
        """Return the code at the beginning of a text, or an empty one, and the pieces of the text after it."""
        text = encodable(text)
        match = CODE.match(text) if self._reads_codes else None
        return (match.group(), self._segment(text[match.end() :])) if match else ("", self._segment(text))
