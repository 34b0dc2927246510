"""SentencePiece's normaliser and segmentation as parts of a tokenizer.json of the `tokenizers` library."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Set
from functools import cache, lru_cache
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from translume.errors import SettingsError
from translume.text.charsmap import write_charsmap
from translume.text.segmentation import ranges
from translume.text.sentencepiece import CODE, SPACE, SentencePieces
from translume.text.specials import BYTES
from translume.text.tokenizer import Tokenizer
from translume.text.typed_specials import typed_specials

BETWEEN, INSIDE, NO_CODE, NO_PIECE = "\ufff0", "\ufff1", "\ufff2", "\ufff3"
"""Characters that no text contains after the first step, since they are replaced by the last one, an unknown character.

Between two matches of rules, between the characters of one, for a language code that is not in the vocabulary, and for
unknown characters. Unicode reserves them as control characters, which combine with no other character.
"""
_PRIVATE = 0x10E000
"""The first of the characters that stand for others while rules are applied."""
_ANY = r"[\s\S]"
_JAVASCRIPT = (
    r"[\x01-\x08\v\x0e-\x1f\x7f\x8f\x9f\t\n\f\r\xa0\u1680\u2000-\u200f\u2028\u2029\u202f\u205f\u2581\u3000\ufeff\ufffd]"
)
"""The characters that transformers.js deletes or makes spaces in a `Precompiled` step, whatever its rules are."""
_MANY_RULES, _MOST_RULES = 1000, 100
"""Number of rules of several characters from which they are taken to be Unicode's normalisation, and the largest number
of such rules that are not.
"""


def sentence_normaliser(tokenizer: Tokenizer) -> normalizers.Normalizer:
    """Return the library's steps from a text to the string that SentencePiece segments."""
    sentences = tokenizer.vocabulary.sentences
    assert sentences is not None
    reserved = f"{BETWEEN}{INSIDE}{NO_CODE}"
    steps: list[normalizers.Normalizer] = [_replace(f"[{reserved}]", NO_PIECE)]
    codes = {chr(_PRIVATE + number): code for number, code in enumerate(_codes(tokenizer))}
    begin = r"\A"
    if sentences.codes:
        steps += [_replace(rf"\A{re.escape(code)}", private) for private, code in codes.items()]
        steps.append(_replace(rf"\A{CODE.pattern.replace('.', _ANY)}", NO_CODE))
        first = f"[{NO_CODE}{''.join(codes)}]"
        begin = rf"(?:\A(?!{first})|(?<=\A{first}))"
    steps += rule_steps(tuple(sentences.rules.items()))
    steps += [
        _replace(" {2,}", " "),
        _replace(f"{begin} ", ""),
        _replace(f"[ {SPACE}]+\\z", ""),
        normalizers.Replace(" ", SPACE),
        _replace(f"{begin}(?={_ANY})", SPACE),
    ]
    if foreign := _foreign(tokenizer):
        known = sorted({ord(piece) for piece in _spaced(_matched(tokenizer)) if len(piece) == 1} | {*map(ord, codes)})
        other = f"[^{NO_CODE}{library_ranges(known)}]"
        words = "|".join(map(re.escape, foreign))
        steps.append(_replace(f"(?<!{other})(?!(?:{words})(?!{other})){other}+", NO_PIECE))
    steps += [normalizers.Replace(private, code) for private, code in codes.items()]
    typed, _ = _typed(tokenizer)
    return normalizers.Sequence([*steps, *(_replace(pattern, NO_PIECE) for pattern in typed)])


def sentence_splits(tokenizer: Tokenizer) -> pre_tokenizers.PreTokenizer | None:
    """Return the steps that cut a normalised text: language codes, and special tokens that a user types."""
    sentences = tokenizer.vocabulary.sentences
    assert sentences is not None
    patterns = []
    if sentences.codes:
        patterns.append(rf"\A(?:{'|'.join(map(re.escape, [*_codes(tokenizer), NO_CODE]))})")
    patterns += _typed(tokenizer)[1]
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in patterns]
    return pre_tokenizers.Sequence(splits) if splits else None


def sentence_model(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the library's model as JSON. Raises SettingsError naming what it cannot express."""
    vocabulary = tokenizer.vocabulary
    sentences, unk = vocabulary.sentences, vocabulary.specials.unk
    assert sentences is not None
    names = sentence_names(tokenizer)
    matched = _matched(tokenizer)
    if outside := sentences.scores.keys() - matched.keys():
        raise SettingsError(
            f"tokenizer: the library needs an id for each piece of SentencePiece, {min(outside)!r} has none"
        )
    characters = {piece for piece in matched if len(piece) == 1}
    for piece in matched if sentences.merges or _foreign(tokenizer) else ():
        if not characters.issuperset(piece):
            raise SettingsError(f"tokenizer: the library needs an id for each character of the piece {piece!r}")
    if not sentences.merges:
        scores = {id_: sentences.scores[piece] for piece, id_ in matched.items()}
        scored = [[name, scores.get(id_, 0.0)] for id_, name in enumerate(names)]
        return {"type": "Unigram", "unk_id": unk, "vocab": scored, "byte_fallback": sentences.fallback}
    if _codes(tokenizer):
        raise SettingsError("tokenizer: the library cannot express language codes with byte-pair encoding")
    if foreign := _foreign(tokenizer):
        raise SettingsError(f"tokenizer: the library cannot express {foreign[0]!r}, which SentencePiece does not know")
    merges = [
        (names[matched[piece[:cut]]], names[matched[piece[cut:]]])
        for piece in sorted(matched, key=lambda piece: -sentences.scores[piece])
        for cut in range(1, len(piece))
        if piece[:cut] in matched and piece[cut:] in matched
    ]
    return {
        "type": "BPE",
        "vocab": {name: id_ for id_, name in enumerate(names)},
        "merges": merges,
        "unk_token": None if unk is None else names[unk],
        "fuse_unk": True,
        "byte_fallback": sentences.fallback,
    }


def sentence_names(tokenizer: Tokenizer) -> list[str]:
    """Return the pieces in order of ids, with SentencePiece's spaces.

    Those that are no special tokens and that this side's SentencePiece model lacks begin with a character that no text
    contains.
    """
    vocabulary = tokenizer.vocabulary
    ids = vocabulary.specials
    kept = {ids.pad, ids.bos, ids.eos, ids.unk, *vocabulary.dropped, *_matched(tokenizer).values()}
    kept |= {*_codes(tokenizer).values(), *_bytes(tokenizer)}
    foreign = set(_foreign(tokenizer))
    return [
        ("" if id_ in kept or piece in foreign else BETWEEN) + piece.replace(" ", SPACE)
        for id_, piece in enumerate(vocabulary.pieces)
    ]


def _foreign(tokenizer: Tokenizer) -> list[str]:
    """Return the pieces that stand for unknown characters of SentencePiece, if these are the whole of such a run."""
    vocabulary, matched = tokenizer.vocabulary, _matched(tokenizer)
    ids = vocabulary.specials
    special = {ids.pad, ids.bos, ids.eos, ids.unk, *vocabulary.dropped, *_codes(tokenizer).values()}
    known = set().union(*matched)
    if vocabulary.sentences is not None and vocabulary.sentences.fallback:
        return []
    return [
        piece
        for id_, piece in enumerate(vocabulary.pieces)
        if piece not in matched and id_ not in special and known.isdisjoint(piece)
    ]


def _spaced(pieces: Iterable[str]) -> Iterable[str]:
    return (piece.replace(" ", SPACE) for piece in pieces)


def sentence_decoders(spaces: str) -> list[decoders.Decoder]:
    """Return the library's last steps from pieces to a text.  spaces: white space, as the inside of a character set."""
    return [
        decoders.Replace(BETWEEN, ""),
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Replace(Regex(rf"\A[{spaces}]+|[{spaces}]+\z"), ""),
    ]


def sentence_score(sentences: SentencePieces, pieces: Iterable[str]) -> float:
    """Return the sum of the scores of the pieces of a segmentation; unknown ones count nothing."""
    return sum(sentences.scores.get(piece, 0.0) for piece in pieces)


def _matched(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the pieces that texts are encoded to."""
    vocabulary = tokenizer.vocabulary
    assert vocabulary.sentences is not None
    ids = vocabulary.specials
    special = {ids.pad, ids.bos, ids.eos, ids.unk, *vocabulary.dropped}
    scores = vocabulary.sentences.scores
    return {piece: id_ for id_, piece in enumerate(vocabulary.pieces) if piece in scores and id_ not in special}


def _codes(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the codes of languages that are one token at the beginning of a text."""
    vocabulary = tokenizer.vocabulary
    if vocabulary.sentences is None or not vocabulary.sentences.codes:
        return {}
    return {piece: id_ for id_, piece in enumerate(vocabulary.pieces) if CODE.fullmatch(piece)}


def _typed(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return regular expressions of the places where a typed special token is changed, and where it is cut.

    A unigram model of the library matches every piece of its vocabulary. A character that is in no piece is replaced by
    another one, or the text is cut where no piece continues. Neither changes the ids of the text.
    """
    vocabulary, matched = tokenizer.vocabulary, _matched(tokenizer)
    assert vocabulary.sentences is not None
    if vocabulary.sentences.merges:
        return [], []
    names, codes = sentence_names(tokenizer), set(_codes(tokenizer).values())
    used, foreign = set(matched.values()), set(_foreign(tokenizer))
    special = [name for id_, name in enumerate(names) if id_ not in used and name not in foreign and name[0] != BETWEEN]
    replace = not vocabulary.sentences.fallback
    return typed_specials(special, {names[id_] for id_ in codes}, [names[id_] for id_ in used], replace=replace)


def _bytes(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of pieces for bytes."""
    vocabulary = tokenizer.vocabulary
    if vocabulary.sentences is None or not vocabulary.sentences.fallback:
        return []
    return [vocabulary.pieces.index(piece) for piece in BYTES]


@lru_cache(maxsize=2)
def rule_steps(rules: tuple[tuple[str, str], ...]) -> list[normalizers.Normalizer]:
    """Return the library's steps that apply the longest matching rule at every position of a text.

    First a character is put after each match, so that matches stay apart. Then single characters are replaced by the
    `Precompiled` step, and the others by Unicode's NFKC, which most rules of SentencePiece are. Raises SettingsError if
    too many rules of several characters are neither.
    """
    if not rules:
        return []
    table = dict(rules)
    nfkc = normalizers.NFKC()
    composed = sum(len(given) > 1 for given in table) > _MANY_RULES
    singles, back = {given: put for given, put in rules if len(given) == 1}, {}
    if composed:
        singles = {given: put for given, put in singles.items() if nfkc.normalize_str(given) != put}
        kept = (_not_normal() | {*re.findall(_JAVASCRIPT, "".join(map(chr, range(0x10000))))}) - table.keys()
        back = {chr(_PRIVATE + 0x800 + number): each for number, each in enumerate(sorted(kept))}
    begin = _replace(_ends(table, composed=composed), BETWEEN)
    main = [
        _replace(f"(?<=[^{BETWEEN}])(?=[^{BETWEEN}])", INSIDE),
        *(normalizers.Replace(each, private) for private, each in back.items()),
        normalizers.Precompiled(write_charsmap(singles)),
        normalizers.Replace(INSIDE, ""),
        *([nfkc] if composed else []),
        normalizers.Replace(BETWEEN, ""),
    ]
    apply = normalizers.Sequence([begin, *main])
    wrong = [
        given
        for given, put in rules
        if len(given) > 1 and not (composed and _is_hangul(put)) and apply.normalize_str(given) != put
    ]
    if len(wrong) > _MOST_RULES:
        raise SettingsError(f"tokenizer: the library cannot replace {wrong[0]!r} by {table[wrong[0]]!r}")
    rest = {chr(_PRIVATE + 0x1000 + number): given for number, given in enumerate(wrong)}
    return [
        begin,
        *(_replace(f"(?<![^{BETWEEN}]){re.escape(given)}(?={BETWEEN})", private) for private, given in rest.items()),
        *main,
        *(normalizers.Replace(private, table[given]) for private, given in rest.items()),
        *(normalizers.Replace(private, each) for private, each in back.items()),
    ]


@cache
def _not_normal() -> frozenset[str]:
    """Return the characters that NFKC changes."""
    return frozenset(
        each
        for each in map(chr, (*range(0xD800), *range(0xE000, 0x30000)))
        if not unicodedata.is_normalized("NFKC", each)
    )


def _ends(rules: Mapping[str, str], *, composed: bool) -> str:
    """Return a regular expression of the places after each longest match of a rule, or character without a rule.

    No match ends where the characters before and after belong to one rule. That decides it if no rule begins with a
    character that continues another one. Otherwise, and unless the rules are Unicode's, matches are found one after the
    other by `\\K`, which JavaScript does not have.
    """
    many = [given for given in rules if len(given) > 1]
    if not many:
        return f"(?<={_ANY})"
    followers = set().union(*(given[1:] for given in many))
    if not composed and not followers.isdisjoint(given[0] for given in many):
        longest = "|".join(re.escape(given) for given in sorted(many, key=len, reverse=True))
        return rf"(?>{longest}|{_ANY})\K"
    syllables = _syllables({given for given in many if _is_hangul(rules[given])})
    firsts: dict[tuple[str, str], set[str]] = {}
    for given in many:
        if not (syllables and _is_hangul(rules[given])):
            for cut in range(1, len(given)):
                firsts.setdefault((given[1:cut], given[cut:]), set()).add(given[0])
    inside = [
        f"(?={re.escape(after)})(?<={_letters(letters)}{re.escape(before)})"
        for (before, after), letters in firsts.items()
    ]
    if syllables:
        first, middle, last = syllables
        inside += [f"(?={middle})(?<={first})", f"(?={last})(?<={first}{middle})"]
    return f"(?<={_ANY})(?!(?={_letters(followers)})(?:{'|'.join(inside)}))"


def _syllables(rules: Set[str]) -> list[str]:
    """Return regular expressions of the letters that rules join to Hangul; none if there are other rules among them."""
    first, middle, last = ({rule[place] for rule in rules if len(rule) == 3} for place in range(3))
    if not rules or len(rules) != len(first) * len(middle) * (len(last) + 1) or {rule[0] for rule in rules} - first:
        return []
    return [_letters(first), _letters(middle), _letters(last)]


def _is_hangul(text: str) -> bool:
    return len(text) == 1 and "가" <= text <= "힣"


def _letters(letters: Set[str]) -> str:
    return f"[{library_ranges(sorted(map(ord, letters)))}]"


def library_ranges(codes: Iterable[int]) -> str:
    """Return code points as the inside of a character set for the library's engine."""
    return re.sub(r"\\U([0-9a-f]{8})", lambda found: f"\\x{{{int(found.group(1), 16):x}}}", ranges(list(codes)))


def _replace(pattern: str, put: str) -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), put)
