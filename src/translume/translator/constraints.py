"""Constraints on targets: phrases, terminology, placeholders, and the rules that [decoding] sets."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Self

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.data.lines import read_lines
from translume.decoding import (
    BannedPhrases,
    BeamSearch,
    EndTokens,
    ForbidFirst,
    ForbidTokens,
    Greedy,
    MinimumLength,
    NoRepeatNgram,
    OnlyTokens,
    RepetitionPenalty,
    Rule,
    SearchError,
    Spellings,
    Strategy,
    TextPrefix,
    TimesInPairs,
)
from translume.errors import DataError, SettingsError, refused
from translume.lazy import Tensor, torch
from translume.parts import find
from translume.text import Tokenizer
from translume.text.segmentation import UNSPACED, character_class
from translume.text.specials import SECONDS_PER_TIME

if TYPE_CHECKING:
    from translume.decoding import Boundaries, ConstrainedBeam, Phrase

SHOWN = 20
"""Maximum number of characters of a text shown in an error."""

Stamp = tuple[int, int]
"""A file's modification time in nanoseconds and its size: a cache key, so that a changed file is read again."""


def build_rules(tokenizer: Tokenizer, begins: Sequence[bool], settings: DecodingSettings) -> list[Rule]:
    """The rules that [decoding] sets for a search of sentences.  tokenizer: of the target.

    begins: whether each sentence begins with `decoding.prefix`; it may be spelled with other tokens than the
    tokenizer's.
    Raises SettingsError for text that the tokenizer cannot spell, and DataError for a file that cannot be read.
    """
    specials = tokenizer.specials
    _refuse_unknown(tokenizer, settings)
    never = {*specials.outside_text, *settings.suppress} - {specials.eos, *settings.ends}
    rules: list[Rule] = [ForbidTokens(tuple(sorted(never)))]
    if settings.suppress_first:
        rules.append(ForbidFirst(settings.suppress_first))
    if settings.min_length:
        rules.append(MinimumLength(settings.min_length))
    if settings.ends and set(settings.ends) != {specials.eos}:
        rules.append(EndTokens(settings.ends, settings.min_length))
    only = _vocabulary(tokenizer, settings.vocabulary)
    if only is not None:
        rules.append(only)
    if settings.no_repeat_ngram:
        rules.append(NoRepeatNgram(settings.no_repeat_ngram))
    if settings.repetition_penalty != 1.0:
        rules.append(RepetitionPenalty(settings.repetition_penalty))
    phrases = tuple(_phrases(tokenizer, settings.ban))
    if phrases:
        rules.append(_banned(tokenizer, phrases))
    text = tokenizer.spelling(settings.prefix)
    rules += [find("rule", name)(settings, tokenizer) for name in settings.rules]
    if text:
        spellings = _spellings(tokenizer, only and only.ids)
        _refuse_unspelled(spellings, text, "decoding.vocabulary" if only else "the target's vocabulary")
        if any(begins):
            rules.append(TextPrefix(spellings, text, begins))
    return rules


def times_rule(tokenizer: Tokenizer, latest: float) -> TimesInPairs:
    """The rule for times of segments.

    latest: time in a window at which the first segment may begin, in seconds; 0: any.
    """
    tokens = tokenizer.vocabulary.speech_tokens()
    last = tokens.first_time + round(latest / SECONDS_PER_TIME) if latest else None
    return TimesInPairs(first=tokens.first_time, untimed=tokens.untimed, latest=last)


def _refuse_unknown(tokenizer: Tokenizer, settings: DecodingSettings) -> None:
    """Raise SettingsError for ids that the vocabulary does not have."""
    for name in ("suppress", "suppress_first", "ends"):
        for found in getattr(settings, name):
            if found >= len(tokenizer):
                raise SettingsError(f"decoding.{name}: found {found:,}, expected an id below {len(tokenizer):,}")


def check_rules(tokenizer: Tokenizer, settings: DecodingSettings) -> None:
    """Raise the errors of `build_rules` before any text is read."""
    build_rules(tokenizer, (), settings)


def explain_search_error(error: SearchError, checkpoint: Checkpoint, settings: DecodingSettings) -> SearchError:
    """The error, with a hint if the head may give probability zero to every token that the rules allow."""
    if checkpoint.model.head.full_support or not (settings.prefix or settings.vocabulary):
        return error
    why = "decoding.prefix" if settings.prefix else "decoding.vocabulary"
    kind = checkpoint.config.model.head.kind
    reason = f"{error.reason}; model.head.kind = '{kind}' holds most tokens for impossible, those of {why} perhaps"
    return SearchError(reason, sentence=error.sentence, token=error.token)


def word_character(character: str) -> bool:
    """Whether a character is a letter, digit or combining mark. Characters of scripts without spaces are not."""
    return character_class(character) in ("letter", "digit", "mark")


def _refuse_unspelled(spellings: Spellings, text: bytes, wanted: str) -> None:
    reached = spellings.reach(text)
    if reached < len(text):
        before = text[:reached].decode(errors="ignore")
        found = text[len(before.encode()) :].decode()[:SHOWN]
        after = f" after {before.lstrip()[-SHOWN:]!r}" if before.strip() else ""
        raise SettingsError(f"decoding.prefix: found {found!r}{after}, expected text that tokens of {wanted} spell")


def _phrases(tokenizer: Tokenizer, entries: Sequence[str]) -> list[str]:
    """The distinct banned phrases as the tokenizer normalises them, with one space between words."""
    texts: list[str] = []
    for entry in entries:
        if entry.startswith("@") and not entry.startswith("@@"):
            texts += [line for line in _lines_of(entry[1:]) if line.strip()]
        else:
            texts.append(entry[1:] if entry.startswith("@@") else entry)
    phrases = dict.fromkeys(" ".join(tokenizer.normalise(text).split()) for text in texts)
    if "" in phrases:
        raise SettingsError("decoding.ban: found a text without a word, expected a word or a phrase")
    for phrase in phrases:
        if "\ufffd" in phrase:
            raise SettingsError(
                f"decoding.ban: found {phrase[:SHOWN]!r}, expected text; U+FFFD is what cannot be read as text"
            )
    return list(phrases)


def _lines_of(path: str) -> list[str]:
    try:
        return list(read_lines(path))
    except DataError as error:
        raise DataError(f"decoding.ban: {error}") from None


def _vocabulary(tokenizer: Tokenizer, path: str) -> OnlyTokens | None:
    """The tokens of the texts in a file; None if no file is named."""
    return _only(tokenizer, path, _stamp_of(path, "decoding.vocabulary")) if path else None


def _stamp_of(path: str, setting: str) -> Stamp:
    with refused(f"{setting}: {path}", "cannot be read"):
        state = Path(path).stat()
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=4)
def _only(tokenizer: Tokenizer, path: str, stamp: Stamp) -> OnlyTokens:
    shown = {piece: id_ for id_, piece in enumerate(tokenizer.pieces())}
    specials = tokenizer.specials
    ids: set[int] = set()
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        allowed = {shown[line]} if line in shown else set()
        spelled = set(tokenizer.encode(line))
        allowed |= spelled if specials.unk not in spelled else set()
        if not allowed:
            raise SettingsError(f"{path}:{number}: found {line[:SHOWN]!r}, expected text of the target's tokens")
        ids |= allowed
    ids -= specials.marks | {specials.unk}
    if not ids:
        raise SettingsError(f"decoding.vocabulary: {path} allows no token, expected a word or a token a line")
    return OnlyTokens(ids)


@lru_cache(maxsize=4)
def _banned(tokenizer: Tokenizer, phrases: tuple[str, ...]) -> BannedPhrases:
    return BannedPhrases(tokenizer.spellings, phrases, word_character)


@lru_cache(maxsize=4)
def _spellings(tokenizer: Tokenizer, ids: tuple[int, ...] | None) -> Spellings:
    """The tokens that may spell a prefix: all but the unknown token, or those of `ids` if a vocabulary is named."""
    allowed = set(range(len(tokenizer)) if ids is None else ids) - {tokenizer.specials.unk}
    return Spellings([each if id_ in allowed else b"" for id_, each in enumerate(tokenizer.spellings)])


STRATEGIES = ("beam", "greedy")
"""The strategies that support constraints."""
_UNSPACED = "一のก"
"""Characters of scripts without spaces between words, one of each that vocabularies may have."""
_SPACED = ("character", "byte")
"""Kinds of tokenizers in which a space is a token of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A target must contain any of `texts`, as whole words; `phrases` are their tokens.

    The texts are as the target's tokenizer normalises them, with one space between words.
    """

    texts: tuple[str, ...]
    phrases: tuple["Phrase", ...]

    @property
    def name(self) -> str:
        """How warnings name the constraint."""
        return " or ".join(map(repr, self.texts))

    def met_by(self, text: str, times: int) -> bool:
        """Whether a target contains one of the texts at least `times` times without overlap."""
        end = count = 0
        for last, first in sorted(place[::-1] for each in self.texts for place in places(each, text)):
            if first >= end:
                end, count = last, count + 1
        return count >= times


def build_constraint(texts: Sequence[str], tokenizer: Tokenizer) -> Constraint | None:
    """The constraint that any of `texts` meets; None if the target's tokenizer can write none of them."""
    normalised = dict.fromkeys(" ".join(tokenizer.normalise(text).split()) for text in texts)
    written = [text for text in normalised if text and tokenizer.decode(tokenizer.encode(text)) == text]
    unknown = tokenizer.specials.unk
    written = [text for text in written if unknown is None or unknown not in tokenizer.encode(text)]
    if not written:
        return None
    phrases = [phrase for text in written for phrase in (*phrases_of(text, tokenizer), *_attached(text, tokenizer))]
    return Constraint(texts=tuple(written), phrases=tuple(dict.fromkeys(phrases)))


def _attached(text: str, tokenizer: Tokenizer) -> Iterator["Phrase"]:
    """Yield the tokens of a text that begins with a sign, such as a full stop, behind a word without a space."""
    before, ids = tokenizer.encode("a"), tokenizer.encode(f"a{text}")
    if not word_character(text[0]) and ids[: len(before)] == before and len(ids) > len(before):
        yield replace(phrases_of(text, tokenizer)[0], ids=tuple(ids[len(before) :]))


def phrases_of(text: str, tokenizer: Tokenizer) -> list["Phrase"]:
    """The tokens of a text as whole words: "mannschaft" does not contain "mann".

    If the vocabulary has a script without spaces, also those behind one of its characters, which may differ.
    """
    from translume.decoding import Phrase

    apart = boundaries(tokenizer).space is not None or tokenizer.settings.kind not in _SPACED
    spelled = [tuple(tokenizer.encode(text))]
    for character in _UNSPACED:
        alone, behind = tokenizer.encode(character), tokenizer.encode(character + text)
        if len(alone) == 1 and behind[:1] == alone and tokenizer.decode(behind) == character + text:
            spelled.append(tuple(behind[1:]))
    return [
        Phrase(ids, apart_before=apart and word_character(text[0]), apart_after=apart and word_character(text[-1]))
        for ids in dict.fromkeys(spelled)
    ]


@lru_cache(maxsize=8)
def boundaries(tokenizer: Tokenizer) -> "Boundaries":
    """The tokens at which words begin and end; a byte of a longer character may be part of a word."""
    from translume.decoding import Boundaries

    spellings, specials = tokenizer.spellings, tokenizer.specials
    silent = specials.marks | {id_ for id_, each in enumerate(spellings) if not each}
    begins = [id_ in silent or _parts(each, 0) for id_, each in enumerate(spellings)]
    ends = [id_ in silent or _parts(each, -1) for id_, each in enumerate(spellings)]
    space = None
    if tokenizer.settings.kind in _SPACED:
        space = spellings.index(b" ") if b" " in spellings else None
    if specials.unk is not None:
        begins[specials.unk], ends[specials.unk] = spellings[specials.unk].startswith(b" "), False
    return Boundaries(begins=torch.tensor(begins), ends=torch.tensor(ends), space=space)


def _parts(spelling: bytes, place: int) -> bool:
    """Whether a token's first (place 0) or last (−1) character is not part of a word."""
    try:
        return not word_character(spelling.decode()[place])
    except UnicodeDecodeError:
        # Han characters begin with these bytes in UTF-8. Other bytes say nothing about the character.
        return place == 0 and 0xE4 <= spelling[0] <= 0xE9


def places(phrase: str, text: str) -> list[tuple[int, int]]:
    """The places of a phrase in a text as whole words, without overlap: first character, and the one after the last."""
    found_places, start = [], 0
    while (begin := text.find(phrase, start)) >= 0:
        end = begin + len(phrase)
        goes_on = (begin and word_character(text[begin - 1]) and word_character(phrase[0])) or (
            end < len(text) and word_character(text[end]) and word_character(phrase[-1])
        )
        if not goes_on:
            found_places.append((begin, end))
        start = begin + 1 if goes_on else end
    return found_places


def constraint_cost(constraints: Sequence[Constraint], tokenizer: Tokenizer) -> int:
    """The number of tokens that is enough to meet all constraints."""
    if not constraints:
        return 0
    begins = boundaries(tokenizer).begins
    return sum(
        min(len(each.ids) + (each.apart_before and not bool(begins[each.ids[0]])) for each in constraint.phrases)
        for constraint in constraints
    )


def constrained_beam_width(cost: int, settings: DecodingSettings) -> int:
    """The beam width for constraints of `cost` tokens: the usual one, doubled until each bank has a place.

    It depends on the sentence alone, so that the other sentences of a batch change nothing.
    """
    width = 1 if settings.strategy == "greedy" else settings.beam
    while cost and width <= cost:
        width *= 2
    return width


def constrained_beam(
    strategy: Strategy, wanted: Sequence[Sequence[Constraint]], tokenizer: Tokenizer, limits: Tensor, width: int
) -> "ConstrainedBeam":
    """A constrained beam search in place of `strategy`, beam or greedy.  wanted: the constraints of each sentence."""
    from translume.decoding import Boundaries, ConstrainedBeam, Constraints

    if isinstance(strategy, Greedy):
        beam = BeamSearch(width=width, length_penalty=strategy.length_penalty, coverage=strategy.coverage)
    elif isinstance(strategy, BeamSearch):
        beam = replace(strategy, width=width, patience=strategy.patience * strategy.width / width)
    else:
        raise SettingsError(_refusal(type(strategy).__name__))
    apart = boundaries(tokenizer)
    apart = Boundaries(begins=apart.begins.to(limits.device), ends=apart.ends.to(limits.device), space=apart.space)
    constraints = Constraints.from_phrases([[each.phrases for each in every] for every in wanted], apart)
    return ConstrainedBeam(beam=beam, constraints=constraints, limits=limits, eos=tokenizer.specials.eos)


def refuse_constraints(settings: DecodingSettings) -> None:
    """Raise SettingsError if the strategy of [decoding] does not support constraints."""
    if settings.strategy not in STRATEGIES:
        raise SettingsError(_refusal(settings.strategy))


def _refusal(name: str) -> str:
    wanted = " or ".join(f"'{each}'" for each in STRATEGIES)
    return f"decoding.strategy: found '{name}' with constraints, expected {wanted}"


def unmet_constraints(text: str, constraints: Sequence[Constraint]) -> list[Constraint]:
    """The constraints that a target does not meet. A constraint given n times must be met n times."""
    return [each for each, times in Counter(constraints).items() if not each.met_by(text, times)]


Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A source term in words, and the constraint that any of its translations meets; None if none can be written."""

    source: Words
    targets: tuple[str, ...]
    constraint: Constraint | None


@dataclass(frozen=True, slots=True)
class Terminology:
    """Terms by their first word, the longest first."""

    terms: Mapping[str, Sequence[Term]]

    def found_in(self, text: str) -> Iterator[Term]:
        """Yield each term in a normalised source once, in order of place; a term inside a longer one does not count."""
        words, place, seen = words_of(text), 0, set()
        while place < len(words):
            here = self.terms.get(words[place], ())
            term = next((each for each in here if words[place : place + len(each.source)] == each.source), None)
            if term is not None and term.source not in seen:
                seen.add(term.source)
                yield term
            place += len(term.source) if term is not None else 1

    @classmethod
    def read(cls, path: str, source: Tokenizer, target: Tokenizer) -> "Terminology":
        """Read a file with a source term, a tab and its translation in each line.

        Lines with the same source term are alternatives; blank lines are skipped. Raises DataError with the number of a
        wrong line.
        """
        return _read(path, _stamp_of(path, "decoding.terminology"), source, target)

    @classmethod
    def from_pairs(cls, pairs: Mapping[Words, Sequence[str]], target: Tokenizer | None) -> Self:
        """The terms from a mapping of source terms to translations.  target: None for terms without constraints."""
        terms = defaultdict(list)
        for source, targets in sorted(pairs.items(), key=lambda pair: -len(pair[0])):
            constraint = None if target is None else build_constraint(targets, target)
            terms[source[0]].append(Term(source=source, targets=tuple(targets), constraint=constraint))
        return cls(terms)


def words_of(text: str) -> Words:
    """Split a text into words, and all other characters except white space into one item each."""
    words: list[str] = []
    for inside, characters in groupby(text, word_character):
        run = "".join(characters)
        words += [run] if inside else [each for each in run if not each.isspace()]
    return tuple(words)


@lru_cache(maxsize=4)
def _read(path: str, stamp: Stamp, source: Tokenizer, target: Tokenizer) -> Terminology:
    return Terminology.from_pairs(read_terms(path, source.normalise, target.normalise), target)


def read_terms(path: str, source: Callable[[str], str], target: Callable[[str], str] = str) -> dict[Words, list[str]]:
    """The source terms in words, and the translations, in a file, as for `Terminology.read`; both normalised."""
    pairs: dict[Words, list[str]] = defaultdict(list)
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 2:
            found = f"found {len(fields)} field{'s' if len(fields) > 1 else ''}"
            raise DataError(f"{path}:{number}: {found}, expected 2 separated by a tab: a source term and a target term")
        words = words_of(source(fields[0]))
        for side, text in (("source", words), ("target", target(fields[1]).strip())):
            if not text:
                raise DataError(f"{path}:{number}: found a {side} term without a word, expected a word or a phrase")
        pairs[words].append(fields[1])
    return pairs


_ATTACHED = "".join(f"{chr(low)}-{chr(high)}" for low, high in (*UNSPACED, (0xAC00, 0xD7A3)))
"""Letters that may stand beside a number which is a word of its own: 有4,909个, 4,909명."""
_WORD = rf"[^\W{_ATTACHED}]"
_VARIABLE = (
    r"[$#%]?\{\{?+\s*+[\w.]*+(?:[:!][^{}\s]*+)?\s*+\}\}?"
    r"|%(?:\(\w+\)|\d+\$)?[-+0#]*+\d*+(?:\.\d+)?[hlqz]*+[@diufgexXsc](?![^\W\d_])"
)
_TAG = r"</?(?:[A-Za-z][\w:-]*(?:\s[^<>]*)?|\d+)/?>"
PATTERNS = {
    "tag": f"{_TAG}|{_VARIABLE}",
    "variable": _VARIABLE,
    "url": r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]]",
    "email": r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]++@[A-Za-z0-9-]++(?:\.[A-Za-z0-9-]++)++",
    "mention": r"(?<![A-Za-z0-9._%+/-])@[A-Za-z0-9_]++(?:[.-][A-Za-z0-9_]++)*+",
    "hashtag": r"(?<![A-Za-z0-9_&/])#(?=\w*[^\W\d])\w++",
    "number": rf"(?<!{_WORD})(?<![.,])\d+(?:[.,:/-]\d+)*(?!{_WORD}|[.,:/-]\d)",
}
"""Patterns of placeholders: `<b>` and `</0>`; `{name}`, `%s` and `%1$s`, which are tags too; addresses from http:// or
www.; those of mail; `@name`; `#tag`; numbers with separators."""


def placeholders_of(text: str, kinds: Sequence[str]) -> list[str]:
    """The placeholders of the given kinds in a text, in order, with repetitions; none lies within another.

    Numbers count as they are written: 1,000 is not 1.000. Do not use the kind "number" if the target language writes
    numbers in another way.
    """
    places: dict[int, int] = {}
    taken = bytearray(len(text))
    for kind, pattern in PATTERNS.items():
        if kind not in kinds:
            continue
        for match in re.finditer(pattern, text):
            if not any(taken[match.start() : match.end()]):
                places[match.start()] = match.end()
                taken[match.start() : match.end()] = b"\1" * (match.end() - match.start())
    return [text[begin:end] for begin, end in sorted(places.items())]


def lost_placeholders(wanted: Sequence[str], target: str) -> list[str]:
    """The placeholders of `wanted` that the target lacks or has too few times, each once, in order.

    A placeholder is counted as `placeholders_of` reads it, or where it is no part of a word or a number: 150 and 5.5 do
    not contain the number 5.
    """
    counts, present = Counter(wanted), Counter(placeholders_of(target, tuple(PATTERNS)))
    return [text for text, count in counts.items() if max(present[text], _count(text, target)) < count]


def _count(text: str, target: str) -> int:
    before = rf"(?<!{_WORD})(?<![.,])" if text[0].isalnum() else ""
    # A full stop after a number ends the sentence, unless a digit follows.
    after = rf"(?!{_WORD}|[.,:/-]\d)" if text[-1].isalnum() else ""
    if text[0] == "%":  # a digit may follow, as in _VARIABLE
        after = rf"(?!(?!\d){_WORD})"
    return len(re.findall(before + re.escape(text) + after, target))
