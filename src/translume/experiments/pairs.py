"""Propose settings for pairs of texts, in one language pair (the first table of docs/init.md) or several."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from translume.config import CleaningSettings, DataSettings, ModelSettings
from translume.config.evaluation import tokenizer_of
from translume.data.pairs import Pair, read_pairs
from translume.experiments import Choice, Proposal
from translume.experiments.manifests import propose_for_manifest
from translume.experiments.survey import (
    FEW_PAIRS,
    SENTENCE_ENDS,
    SPARE,
    Side,
    copied_share,
    language_of,
    languages_of,
    languages_of_columns,
    positions_for,
    survey,
)


@dataclass(frozen=True, slots=True)
class Size:
    """A row of the table: the model for at most `pairs` pairs.

    The sizes for 60,000 pairs are those of the Transformer-tiny published for Multi30k (29,000 pairs; width 128,
    feed-forward 256, 4+4 layers, 4 heads, dropout 0.3). Vocabulary sizes follow Mozilla's guide (30,000 lines: 1,000 to
    4,000; 500,000: 8,000; 4.5 million: 32,000).
    """

    pairs: float
    vocabulary: int
    width: int
    feed_forward: int
    encoder_layers: int
    decoder_layers: int
    attention_heads: int
    dropout: float
    updates: int
    max_tokens: int
    learning_rate: float
    warmup_updates: int


# pairs, vocabulary, width, feed-forward, layers, heads, dropout, updates, tokens, rate, warm-up
SIZES = (
    Size(5_000, 1_000, 128, 256, 2, 2, 4, 0.3, 2_000, 2048, 3e-3, 500),
    Size(15_000, 2_000, 128, 256, 3, 3, 4, 0.3, 5_000, 4096, 3e-3, 1_000),
    Size(60_000, 4_000, 128, 256, 4, 4, 4, 0.3, 10_000, 4096, 3e-3, 1_000),
    Size(300_000, 6_000, 256, 1024, 4, 4, 4, 0.2, 25_000, 4096, 1e-3, 2_000),
    Size(1_000_000, 8_000, 512, 1024, 5, 5, 8, 0.2, 50_000, 8192, 7e-4, 4_000),
    Size(3_000_000, 16_000, 512, 2048, 6, 6, 8, 0.1, 100_000, 12_288, 7e-4, 4_000),
    Size(20_000_000, 32_000, 512, 2048, 6, 6, 8, 0.1, 200_000, 24_576, 7e-4, 4_000),
    Size(math.inf, 32_000, 1024, 4096, 6, 6, 16, 0.1, 300_000, 24_576, 5e-4, 8_000),
)


FORMAL = Size(300_000, 0, 128, 256, 2, 2, 4, 0.1, 8_000, 2048, 1e-3, 300)
"""The model for up to 300,000 pairs of a formal language, whose vocabulary is its words: that of recipes/cogs.toml."""
STORIES = (
    Size(5_000, 0, 64, 256, 4, 1, 4, 0.1, 1_000, 2_000, 2e-3, 100),
    Size(math.inf, 0, 64, 256, 4, 1, 4, 0.0, 10_000, 6_000, 2e-3, 500),
)
"""The models for stories with questions, whose encoder reads sentences: those of recipes/babi.toml."""
LETTERS = (
    Size(5_000, 0, 128, 512, 3, 2, 4, 0.3, 6_000, 1024, 2e-3, 300),
    Size(60_000, 0, 128, 512, 3, 2, 4, 0.2, 8_000, 2048, 2e-3, 400),
)
"""The models for up to 60,000 pairs whose sources are letters.

They are those of recipes/g2p.toml, with updates between its and those of inflection.toml, and of g2p-eng-us.toml.
"""
COPYING = (
    Size(5_000, 3_000, 128, 512, 2, 2, 4, 0.3, 2_000, 4096, 1.5e-3, 300),
    Size(60_000, 4_000, 128, 512, 2, 2, 4, 0.2, 4_000, 4096, 1.5e-3, 300),
)
"""The models for up to 60,000 pairs of texts whose targets repeat words of their sources.

They are those of recipes/scitldr.toml and aeslc.toml, which those of code-java-cs.toml and e2e-nlg.toml resemble.
"""
COPIES = "targets repeat words of their sources"
TOKENS_PER_PIECE = 2
"""Tokens of a word, a digit or a sign with small vocabularies, estimated high: 1.0 for Multi30k, 2.0 for SciTLDR."""
MAX_SEGMENTS = 128
"""The largest `model.segments` proposed; sentences after these share the last embedding."""


UNEVEN = 2
"""Ratio of the largest corpus to the smallest from which small corpora are read more often."""
TEMPERATURE = 2.0
"""`data.sampling_temperature` for such corpora; Arivazhagan et al. (2019) use 5 for ratios above 1,000."""


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
    choices = (
        Choice("data.source_language", source.language),
        Choice("data.target_language", target.language),
        *choose(count, source, target, data.template.count(ModelSettings().segment_separator) + 1),
    )
    scripts = " to ".join(side.script or "no letters" for side in (source, target))
    return Proposal(choices=choices, description=f", {scripts}")


def choose(pairs: int, source: Side, target: Side, parts: int = 1) -> list[Choice]:
    """Return the settings for surveyed sides, without files and languages, in the order in which they are printed.

    parts: number of parts of a source, between which its template has the segment separator.
    """
    if parts > 1:  # the template has a separator of its own
        source = replace(source, separator="")
    size, recipe = next(size for size in SIZES if pairs <= size.pairs), _recipe(pairs, source, target)
    if recipe is not None:
        size = replace(recipe, vocabulary=recipe.vocabulary or size.vocabulary)
    return [
        *_limits(source, target),
        *_tokenizer(size, source, target, pairs),
        *_model(size, source, target, parts),
        *_training(size, source, target, early_end=pairs > FEW_PAIRS, cosine=recipe is not None),
        *_evaluation(source, target),
        *_decoding(source, target),
    ]


def _recipe(pairs: int, source: Side, target: Side) -> Size | None:
    """Return the model of a recipe for such data, if there is one. It is trained with a cosine schedule."""
    kinds = token_kinds(source, target)
    rows: tuple[Size, ...] = ()
    if kinds[0] == "character":
        rows = LETTERS
    elif is_story(source, target):
        rows = STORIES
    elif kinds[1] == "word" and pairs > SIZES[0].pairs:
        rows = (FORMAL,)
    elif repeats_text(source, target):
        rows = COPYING
    return next((row for row in rows if pairs <= row.pairs), None)


def token_kinds(source: Side, target: Side) -> tuple[str, str]:
    """Return the kinds of tokens of both sides: "word" for symbols, "character" for single words, else "bpe".

    Symbols that repeat words of a text of many different words, such as the state of a dialogue, are "bpe" as the text
    is, since only tokens that both sides have can be copied.
    """
    if target.symbols and not (target.copies and not source.few_words and target.script in source.scripts):
        return "character" if source.short and source.words < 2 else "word" if source.few_words else "bpe", "word"
    if source.short and target.short:
        return "character", "character"
    return "bpe", "bpe"


def is_formal(source: Side, target: Side) -> bool:
    """Return whether the target is a formal language: it has few symbols, and is not a pronunciation of letters.

    Rotary positions are far better for these and worse for pronunciations; recipes/tasks.md has figures.
    """
    return target.symbols and token_kinds(source, target)[0] != "character"


def has_turns(source: Side, target: Side) -> bool:
    """Return whether sources are sentences or turns that end in one sign, and targets say in symbols what they hold.

    These are stories with questions, and dialogues with their states.
    """
    return bool(source.separator) and is_formal(source, target) and target.copies


def is_story(source: Side, target: Side) -> bool:
    """Return whether sources are sentences of few different words, and targets answers of one or two of these words."""
    sentences = has_turns(source, target) and source.separator in SENTENCE_ENDS
    return sentences and token_kinds(source, target) == ("word", "word") and target.words <= 2


def repeats_text(source: Side, target: Side) -> bool:
    """Return whether targets are texts that repeat words of their sources: summaries, descriptions of data, code."""
    return target.copies and not target.symbols and token_kinds(source, target) == ("bpe", "bpe")


def is_summary(source: Side, target: Side) -> bool:
    """Return whether targets repeat their sources in at most a third of the words, in Latin letters, as ROUGE needs."""
    return repeats_text(source, target) and target.script == "latin" and 3 * target.words <= source.words


def _positions(source: Side, target: Side) -> int | None:
    """Return the positions that the longest texts need; None if the default limits do not drop them."""
    longest = max(map(_longest, (source, target), token_kinds(source, target)))
    if longest <= CleaningSettings().max_tokens:
        return None
    return positions_for(longest)


def _longest(side: Side, kind: str) -> int:
    """Return the estimated number of tokens that 99.9 % of the texts do not exceed."""
    if kind == "word":
        return side.longest_words
    return side.longest_characters if kind == "character" or side.unspaced else TOKENS_PER_PIECE * side.longest_pieces


def _limits(source: Side, target: Side) -> Iterable[Choice]:
    """Yield cleaning limits that fit the lengths of the data, if the defaults would drop pairs."""
    positions = _positions(source, target)
    if positions is None:
        return
    yield Choice("data.cleaning.max_tokens", positions - SPARE, why="for the length of these texts")
    if not (source.language and target.language) or source.language == target.language:
        turns = has_turns(source, target)
        why = "longer sources lose their beginning" if turns else "longer sources are cut"
        kept = "keep_last" if turns else "keep_first"
        yield Choice("data.cleaning.too_long", kept, why=f"{why}, and are counted")


def _tokenizer(size: Size, source: Side, target: Side, pairs: int) -> Iterable[Choice]:
    kinds = token_kinds(source, target)
    if kinds[1] == "word":
        yield from _symbols(kinds[0], size, source, target)
        return
    shared = shares_vocabulary(source, target)
    sides = [source, target]
    many = max(side.characters for side in sides)
    needed = size.vocabulary + (many if any(side.unspaced for side in sides) else 0)
    needed = max(needed, math.ceil(1.25 * many) + 256)
    rounded = math.ceil(needed / 500) * 500
    extra = f", and room for {many:,} characters" if rounded > size.vocabulary else ""
    why = "single words on both sides" if kinds[0] == "character" else f"for {pairs:,} pairs{extra}"
    yield Choice("tokenizer.kind", kinds[0])
    yield Choice("tokenizer.size", rounded, why=why)
    scripts = f"{source.script or 'no letters'} and {target.script or 'no letters'}"
    one = "one vocabulary for both sides" if shared else "a vocabulary for each side"
    yield Choice("tokenizer.shared", shared, why=f"{one}: {scripts}")
    if shared and target.symbols and source.cased and not target.cased:
        yield Choice("tokenizer.lowercase", True, why="targets have no capitals, so that words can be copied")


def _symbols(kind: str, size: Size, source: Side, target: Side) -> Iterable[Choice]:
    """Yield the settings for a target whose symbols are tokens."""
    why = f"{source.types:,} different words" if kind == "word" else "letters" if kind == "character" else ""
    many = {"word": source.types, "character": source.characters, "bpe": size.vocabulary}[kind]
    many = many + target.types if shares_vocabulary(source, target) else max(many, target.types)
    yield Choice("tokenizer.kind", kind, why=why)
    if kind != "word":
        yield Choice("tokenizer.target_kind", "word", why=f"{target.types:,} different symbols")
    room = math.ceil((many * 1.25 + 8) / 100) * 100
    yield Choice("tokenizer.size", room)
    shared = shares_vocabulary(source, target)
    yield Choice("tokenizer.shared", shared, why=COPIES if shared else "")
    if kind == "character":
        yield Choice("tokenizer.normalization", "nfd", why="accents and the parts of 한 are letters")
    yield Choice("tokenizer.unknown", "token", why="bytes are meaningless as symbols")


def shares_vocabulary(source: Side, target: Side) -> bool:
    """Return whether both sides have many tokens in common: the same kind, and the target's script in the source too.

    The tags of inflection are Latin letters beside a lemma of any script. Logical forms repeat names of questions.
    """
    kinds = token_kinds(source, target)
    if target.symbols and not (target.copies and kinds[0] == kinds[1]):
        return False
    return target.script in source.scripts | {source.script}


def _model(size: Size, source: Side, target: Side, parts: int) -> Iterable[Choice]:
    for name in ("width", "feed_forward", "encoder_layers", "decoder_layers", "attention_heads"):
        yield Choice(f"model.{name}", getattr(size, name))
    yield Choice("model.dropout", size.dropout, why="more for less data")
    if is_formal(source, target):
        yield Choice("model.positions", "rotary", why="sinusoidal ones lose count of brackets and commands")
    elif repeats_text(source, target):
        yield Choice("model.positions", "rotary", why="as in the recipes for such texts")
    positions = _positions(source, target)
    if positions is not None and positions > ModelSettings().max_positions:
        yield Choice("model.max_positions", positions, why="for the length of these texts")
    if parts > 1:
        yield Choice("model.segments", parts, why="the parts of the template have embeddings of their own")
    elif has_turns(source, target):
        count = min(MAX_SEGMENTS, 1 << (source.parts - 1).bit_length())
        yield Choice("model.segments", count, why="sentences or turns have embeddings of their own")
        yield Choice("model.segment_separator", source.separator, why="every source has it, most repeatedly")
        if is_story(source, target):
            yield Choice("model.segment_pooling", "sum", why="the encoder reads sentences, not words")
    shared = shares_vocabulary(source, target)
    if shared and token_kinds(source, target) == ("character", "character"):
        yield Choice("model.head.kind", "copy", why="forms repeat most letters of their sources")
    elif shared and target.copies and not is_story(source, target):
        yield Choice("model.head.kind", "copy", why=COPIES)
    tie = "all" if shared else "target"
    yield Choice("model.head.tie", tie, why="weights shared by embeddings and output")


def _training(size: Size, source: Side, target: Side, *, early_end: bool, cosine: bool) -> Iterable[Choice]:
    every = max(100, size.updates // 20)
    yield Choice("training.updates", size.updates)
    yield Choice("training.max_tokens", size.max_tokens, why="tokens in a batch; less if memory is short")
    yield Choice("training.learning_rate", size.learning_rate)
    if cosine:
        yield Choice("training.schedule", "cosine", why="the rate falls to zero at the last update")
    yield Choice("training.warmup_updates", size.warmup_updates)
    yield Choice("training.validate_every", every)
    yield Choice("training.save_every", every)
    why = "the model is the mean of the last 5 saved, unless the best is clearly better"
    yield Choice("training.average_last", 5, why=why)
    if early_end and not cosine:
        yield Choice("training.patience", 8, why="stop after 8 validations without improvement")
    if token_kinds(source, target) == ("word", "word"):
        yield Choice("training.label_smoothing", 0.0, why="a formal language, in which nothing is nearly right")
    if target.short or target.symbols:
        metric = "exact_match"
    elif is_summary(source, target):
        metric = "rougeL"
    else:
        metric = "chrf" if target.unspaced else "bleu"
    yield Choice("training.metric", metric)


def _evaluation(source: Side, target: Side) -> Iterable[Choice]:
    if target.symbols:
        phones = token_kinds(source, target)[0] == "character"
        why = "per counts wrong symbols; 100 - exact match is called WER for pronunciations" if phones else ""
        yield Choice("evaluation.metrics", ("exact_match", "per") if phones else ("exact_match",), why=why)
        return
    if token_kinds(source, target)[1] == "character":
        yield Choice("evaluation.metrics", ("exact_match", "cer"), why="cer counts wrong characters")
        return
    if is_summary(source, target):
        yield Choice("evaluation.metrics", ("rouge1", "rouge2", "rougeL"), why="for summaries")
        return
    tokenize = tokenizer_of(target.language)
    if tokenize == "13a" and target.unspaced:
        tokenize = "char"
    why = {"zh": "Chinese", "char": "no spaces between words", "13a": "sacreBLEU's default"}[tokenize]
    if target.tokenized:
        tokenize, why = "none", "these files are tokenized: spaces before punctuation"
    yield Choice("evaluation.metrics", ("bleu", "chrf"))
    yield Choice("evaluation.tokenize", tokenize, why=why)
    if not target.cased:
        yield Choice("evaluation.lowercase", False, why="the target has no capitals")


def _decoding(source: Side, target: Side) -> Iterable[Choice]:
    yield Choice("decoding.beam", 5, why="larger is slower and seldom better")
    if is_summary(source, target):
        yield Choice("decoding.no_repeat_ngram", 3, why="summaries do not repeat three tokens")


def propose_for_corpora(data: DataSettings, counts: Iterable[int]) -> Proposal:
    """Return the proposal for the corpora of `data`, which have these numbers of pairs.

    All languages share a vocabulary, and tags tell the model the languages of a pair.
    """
    sizes = list(counts)
    first = data.corpus[0]
    source = _of_texts(survey((pair.source for pair in _alternating(data)), first.source_language))
    target = _of_texts(survey((pair.target for pair in _alternating(data)), first.target_language))
    uneven = max(sizes) > UNEVEN * min(sizes)
    changed = {
        "tokenizer.shared": Choice("tokenizer.shared", True, why="one vocabulary for all languages"),
        "model.head.tie": Choice("model.head.tie", "all", why="weights shared by embeddings and output"),
    }
    choices = [
        changed.get(each.path, each)
        for each in choose(sum(sizes), source, target)
        if each.path != "evaluation.tokenize" or each.value == "none"  # "auto" knows the language of each direction
    ]
    tags = Choice("model.language_tags", "target", why="tags of both languages, which are special tokens")
    place = next(number for number, each in enumerate(choices) if each.path.startswith("model.head"))
    temperature = Choice(
        "data.sampling_temperature",
        TEMPERATURE,
        why=f"smaller corpora are read more often: {min(sizes):,} to {max(sizes):,} pairs",
    )
    found = [*([temperature] if uneven else []), *choices[:place], tags, *choices[place:]]
    directions = dict.fromkeys(f"{each.source_language} to {each.target_language}" for each in data.corpus)
    return Proposal(choices=tuple(found), description=f", {', '.join(directions)}")


def _alternating(data: DataSettings) -> Iterator[Pair]:
    """Yield a pair of each corpus in turn, so that a survey of the first pairs reads all of them."""
    rest = [iter(read_pairs(data.of_corpus(each), "train")) for each in data.corpus]
    while rest:
        for pairs in list(rest):
            if (pair := next(pairs, None)) is None:
                rest.remove(pairs)
            else:
                yield pair


def _of_texts(side: Side) -> Side:
    """Return the side as one of texts, whose words are not single tokens."""
    return replace(side, recurring=0.0)
