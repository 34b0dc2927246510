"""Propose settings for texts: measure what the table in init.toml asks for; manifests.py does so for other sources."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from translume.config import DataSettings, ModelSettings
from translume.config.evaluation import tokenizer_of
from translume.data.pairs import Pair, read_pairs
from translume.errors import DataError
from translume.experiments import Choice, Proposal
from translume.experiments.columns import language_of, languages_of, languages_of_columns
from translume.experiments.manifests import propose_for_manifest
from translume.experiments.survey import (
    FEW_TEXTS,
    SENTENCE_ENDS,
    Documents,
    Labelled,
    Side,
    copied_share,
    survey,
    survey_documents,
    survey_labelled,
)
from translume.experiments.table import FEW_PAIRS, SPARE, choose, limits, rows_for

TOKENS_PER_PIECE = 2
"""Tokens of a word, a digit or a sign with small vocabularies, estimated high: 1.0 for Multi30k, 2.0 for SciTLDR."""
FEW_SUMMARIES = 60_000
"""Up to this many pairs, capitals cost summaries more than they are worth; see docs/init.md."""
MAX_SEGMENTS = 128
"""The largest `model.segments` proposed; sentences after these share the last embedding."""
UNEVEN, TEMPERATURE = 2, 2.0
"""Ratio of the largest corpus to the smallest from which small corpora are read more often, and by which
`data.sampling_temperature`; Arivazhagan et al. (2019) use 5 for ratios above 1,000."""
MIN_WORDS, MAX_WORDS, SPECIALS = 200, 30_000, 4
"""Limits of the vocabulary of texts with labels, and its special tokens."""
EPOCHS, MIN_UPDATES, MAX_UPDATES = 20, 800, 2000
"""Updates for texts with labels. Every text is read at least twice, whatever the limit."""
MAX_CHARACTERS, LITTLE_TEXT = 200, 3_000_000
"""Up to so many distinct characters, in texts of up to so many in all, the tokens of documents are characters."""


def propose_for_pairs(data: DataSettings, count: int) -> Proposal:
    """Return the proposal for `count` pairs, of texts or of a source and its text, read from the files in `data`."""
    if data.source.reader:
        return propose_for_manifest(data, count)
    if data.train:
        languages = languages_of_columns(data.columns)
        languages = languages if any(languages) else languages_of(Path(data.train[0]))
    else:
        languages = language_of(Path(data.train_source[0])), language_of(Path(data.train_target[0]))
    source = survey((pair.source for pair in read_pairs(data, "train")), languages[0])
    target = survey((pair.target for pair in read_pairs(data, "train")), languages[1])
    target = replace(target, copied=copied_share(read_pairs(data, "train")))
    if target.copies and not data.train and source.language != target.language:  # ".cs" of C# is the code of Czech
        source, target = replace(source, language=""), replace(target, language="")
    named = {"source_language": source.language, "target_language": target.language}
    choices = choose_pairs(count, source, target, data.template.count(ModelSettings().segment_separator) + 1, named)
    return Proposal(choices=choices, description=f", {_scripts(source)} to {_scripts(target)}")


def _scripts(side: Side) -> str:
    return side.script or "no letters"


def token_kinds(source: Side, target: Side) -> tuple[str, str]:
    """Return the kinds of tokens of both sides: "word" for symbols, "character" for single words, else "bpe".

    Symbols that repeat words of a text of many different words, such as the state of a dialogue, are "bpe" as the text
    is, since only tokens that both sides have can be copied.
    """
    if target.symbols and not (target.copies and not source.few_words and target.script in source.scripts):
        return "character" if source.short and source.words < 2 else "word" if source.few_words else "bpe", "word"
    return ("character", "character") if source.short and target.short else ("bpe", "bpe")


def choose_pairs(
    pairs: int, source: Side, target: Side, parts: int = 1, extra_facts: Mapping[str, object] | None = None
) -> tuple[Choice, ...]:
    """Return the settings for surveyed sides, without files, in the order in which they are printed.

    parts: number of parts of a source, between which its template has the segment separator.
    extra_facts: for the rows of the recipe, which win over those of the survey.
    """
    kind, target_kind = token_kinds(source, target)
    symbols = target_kind == "word"
    sounds, forms = symbols and kind == "character", target_kind == "character"
    formal = target.symbols and not sounds
    copying = target.copies and not target.symbols and (kind, target_kind) == ("bpe", "bpe")
    # Tags of inflection are Latin letters beside a lemma of any script. Logical forms repeat names of questions.
    shared = target.script in source.scripts | {source.script}
    shared = shared and (not target.symbols or (target.copies and kind == target_kind))
    turns = bool(source.separator) and parts == 1 and formal and target.copies
    words = symbols and kind == "word"
    stories = turns and source.separator in SENTENCE_ENDS and words and target.words <= 2
    summaries = copying and target.script == "latin" and 3 * target.words <= source.words
    language = "none" if target.tokenized else tokenizer_of(target.language)
    unspaced = source.unspaced or target.unspaced
    characters = max(source.characters, target.characters)
    special = {"stories": stories, "sounds": sounds, "forms": forms, "formal": formal, "copying": copying}
    kinds = [*[name for name, applies in special.items() if applies][:1], "text"]
    row = next(row for row in rows_for(kinds, pairs) if row["vocabulary"] != "-")
    vocabulary = (row["more"] if shared else {}).get("shared_vocabulary", row["vocabulary"])
    if symbols:
        tokens = {"word": source.types, "character": source.characters, "bpe": vocabulary}[kind]
        tokens = tokens + target.types if shared else max(tokens, target.types)
        size = math.ceil((tokens * 1.25 + 8) / 100) * 100
    else:
        size = max(vocabulary + characters * unspaced, math.ceil(1.25 * characters) + 256)
        size = math.ceil(size / 500) * 500
    longest = max(_longest(source, kind), _longest(target, target_kind))
    facts = {
        **special,
        **limits(longest, 2 * round(source.words) if summaries else None),
        "text": True, "pairs": pairs, "many": pairs > FEW_PAIRS, "beam": 5, "kind": kind, "symbols": symbols,
        "words": words, "size": size, "wide": size > vocabulary, "characters": characters, "shared": shared,
        "turns": turns, "target_symbols": target.symbols, "exact": target.short or target.symbols,
        "summaries": summaries, "few_summaries": summaries and target.cased and pairs <= FEW_SUMMARIES,
        "unspaced": target.unspaced, "copies": target.copies,
        "parts": parts if parts > 1 else None, "source_types": source.types,
        "target_types": target.types, "target_cased": target.cased,
        "lower": shared and not symbols and target.symbols and source.cased and not target.cased,
        "scripts": f"{_scripts(source)} and {_scripts(target)}", "separator": source.separator,
        "segments": min(MAX_SEGMENTS, 1 << (source.parts - 1).bit_length()),
        "translation": bool(source.language and target.language) and source.language != target.language,
        "running_text": not (target.symbols or forms or summaries), "tokenized": target.tokenized,
        "zh": language == "zh", "char": language == "char" or (language == "13a" and target.unspaced),
    }  # fmt: skip
    return choose(kinds, pairs, facts | dict(extra_facts or {}))


def _longest(side: Side, kind: str) -> int:
    """Return the estimated number of tokens that 99.9 % of the texts do not exceed."""
    if kind == "word":
        return side.longest_words
    return side.longest_characters if kind == "character" or side.unspaced else TOKENS_PER_PIECE * side.longest_pieces


def propose_for_corpora(data: DataSettings, counts: Iterable[int]) -> Proposal:
    """Return the proposal for the corpora of `data`, which have these numbers of pairs.

    All languages share a vocabulary, and tags tell the model the languages of a pair.
    """
    sizes = list(counts)
    smallest, largest = min(sizes), max(sizes)
    first = data.corpus[0]
    sides = [
        replace(survey((getattr(pair, side) for pair in _alternating(data)), language), recurring=0.0)  # no symbols
        for side, language in (("source", first.source_language), ("target", first.target_language))
    ]
    temperature = TEMPERATURE if largest > UNEVEN * smallest else None
    facts = {"corpora": True, "temperature": temperature, "smallest": smallest, "largest": largest}
    directions = dict.fromkeys(f"{each.source_language} to {each.target_language}" for each in data.corpus)
    choices = choose_pairs(sum(sizes), sides[0], sides[1], extra_facts=facts)
    return Proposal(choices=choices, description=f", {', '.join(directions)}")


def _alternating(data: DataSettings) -> Iterator[Pair]:
    """Yield a pair of each corpus in turn, so that a survey of the first pairs reads all of them."""
    rest = [iter(read_pairs(data.of_corpus(each), "train")) for each in data.corpus]
    while rest:
        for pairs in list(rest):
            if (pair := next(pairs, None)) is None:
                rest.remove(pairs)
            else:
                yield pair


def propose_for_labels(data: DataSettings, count: int) -> Proposal:
    """Return the proposal for `count` texts with labels, read from the files in `data`.

    Raises DataError if there are fewer than two labels, or too many for the number of texts.
    """
    file = (*data.train_source, *data.train)[0]
    side = survey((pair.source for pair in read_pairs(data, "train")), language_of(Path(file)))
    labelled = survey_labelled(read_pairs(data, "train"), unspaced=side.unspaced)
    if labelled.labels < 2 or (count >= FEW_TEXTS and labelled.labels * 2 > count):
        hint = "; --columns TEXT,LABEL names the columns" if data.train else ""
        raise DataError(
            f"{(*data.train_target, *data.train)[0]}: found {labelled.labels:,} different labels for {count:,} texts, "
            f"expected at least 2, and many texts for each{hint}"
        )
    lone = f"{file}:1: no other text has the label '{labelled.lone}'; if this is a header, remove the line"
    choices = choose_class(side, labelled, {"source_language": side.language})
    description = f" with {labelled.labels:,} labels, {_scripts(side)}"
    return Proposal(choices=choices, description=description, notes=(lone,) if labelled.lone else ())


def choose_class(side: Side, labelled: Labelled, extra_facts: Mapping[str, object] | None = None) -> tuple[Choice, ...]:
    """Return the settings for surveyed texts, without files, in the order in which they are printed.

    extra_facts: for the rows of the recipe, which win over those of the survey.
    """
    tokens = labelled.texts * max(1.0, labelled.units)
    once = math.ceil(tokens / next(rows_for(["labels"], tokens))["max_tokens"])
    updates = math.ceil(min(max(EPOCHS * once, MIN_UPDATES), max(MAX_UPDATES, 2 * once)) / 100) * 100
    every = max(50, round(updates / 120) * 10)
    facts = {
        "labels": True, "kind": "character" if side.unspaced else "word", "cased": side.cased, "updates": updates,
        "units": "characters" if side.unspaced else "words", "warmup_updates": every, "every": every,
        "save_every": every, "size": min(MAX_WORDS, max(MIN_WORDS, labelled.recurring + SPECIALS)),
    }  # fmt: skip
    positions = limits(max(labelled.longest, 128 - SPARE))
    positions["max_positions"] = SPARE + positions["limit"]
    return choose(["labels"], tokens, positions | facts | dict(extra_facts or {}))


def propose_for_documents(data: DataSettings, count: int) -> Proposal:
    """Return the proposal for `count` lines of text, read from the files in `data`. Raises DataError for blank ones."""
    documents = survey_documents(pair.target for pair in read_pairs(data, "train"))
    if documents.blank == documents.lines:
        raise DataError(f"{data.train[0]}: found no text, expected documents")
    note = "--valid FILE names validation text; without it, documents end at blank lines and some are held out"
    size = f"{documents.lines:,} line{'s' * (documents.lines != 1)}, {documents.characters:,} characters"
    choices = choose_language_model(documents, validated=bool(data.valid))
    notes = (note,) if documents.running and not data.valid else ()
    return Proposal(choices=choices, description="", notes=notes, size=size)


def choose_language_model(documents: Documents, *, validated: bool) -> tuple[Choice, ...]:
    """Return the settings for surveyed lines, without files, in the order in which they are printed.

    validated: whether there is a validation file.
    """
    characters = documents.distinct <= MAX_CHARACTERS and documents.characters <= LITTLE_TEXT
    facts = {
        "documents": True, "running": documents.running, "validated": validated, "characters": characters,
        "count": documents.characters, "distinct": documents.distinct, "kind": "character" if characters else "bpe",
        "size": max(8, documents.distinct + SPECIALS) if characters else None,
    }  # fmt: skip
    return choose(["documents"], documents.characters, facts)
