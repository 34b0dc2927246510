"""The registry of metrics, the evaluation of translations against references, and the comparison of two systems."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from translume.config import DecodingSettings, Direction, EvaluationSettings
from translume.config.evaluation import METRICS
from translume.config.languages import NO_DIRECTION
from translume.data.scripts import mostly_in
from translume.errors import DataError, SettingsError, check_known, needed_by, suggest_keywords
from translume.evaluation.scores import Comparison, Metric, References, Score, Scores, Test, known
from translume.evaluation.segment_metrics import SegmentMetric
from translume.evaluation.significance import SEED, compare_counts
from translume.notebook import with_bar
from translume.parts import find
from translume.translator import Perplexity, Translator

UNSPACED = {"korean": "ko", "thai": "th", "lao": "lo", "khmer": "km", "burmese": "my", "tibetan": "bo"}
"""Languages with a tokenizer of their own, by script, beside Chinese and Japanese."""
SURVEYED = 1000
"""Number of references from which the tokenizer is chosen if no language is known."""
PERPLEXITY_SCORES = (
    ("perplexity", "perplexity", "token", 2),
    ("word_perplexity", "perplexity", "word", 2),
    ("bits_per_byte", "bits", "byte", 4),
    ("nats_per_character", "nats", "character", 4),
)
"""Attribute of `Perplexity`, title, unit, of which "units" counts, and decimal places of each score."""


def metric_from(name: str, settings: EvaluationSettings) -> Metric:
    """Create a metric by name; raise SettingsError with the nearest known name for an unknown one."""
    check_known("evaluation.metrics", name, METRICS)
    metric: Metric = find("metric", name)(settings)
    return metric


def metrics_from(settings: EvaluationSettings, progress: Callable[[int, int], object] | None = None) -> list[Metric]:
    """Create the metrics of settings.  progress: see `measure`."""
    metrics = [metric_from(name, settings) for name in settings.names]
    for metric in metrics:
        if isinstance(metric, SegmentMetric):
            metric.progress = progress
    return metrics


@suggest_keywords
@needed_by("translume.evaluate")
def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    settings: EvaluationSettings | None = None,
    *,
    other_references: References = (),
    decoding: DecodingSettings | None = None,
    nll: bool = False,
    documents: Iterable[Hashable] | None = None,
) -> Scores:
    """Translate `sources` and score the translations by each metric of `settings` (default: the model's settings).

    other_references: further lists of references, each as long as `sources`; None where a source has
    fewer.  decoding: replaces the model's settings.
    nll: also measure −log p per token of `references`, in nats, and the perplexity.
    documents: as in `Translator.translate_all`.
    Raises DataError if the lists are empty or differ in length.
    """
    if not hasattr(translator, "translate_all"):  # such as a path or a classifier
        kind = type(translator).__name__
        raise TypeError(f"translator: found {kind}, expected a Translator; call translume.load(folder)")
    chosen = decoding or translator.config.decoding
    direction = translator.direction(to=chosen.to, from_=chosen.from_)
    settings = (settings or translator.config.scoring).of_language(direction.target)
    all_references = [references, *other_references]
    check_lengths({"sources": sources}, all_references)
    check_metrics(settings)
    documents = documents if documents is None else list(documents)  # read twice
    results = translator.translate_all(sources, settings=decoding, documents=documents)
    translations = [str(each) for each in with_bar(results, "translated", total=len(sources))]
    scores = measure(translations, references, settings, other_references=other_references, sources=sources).scores
    if nll:
        named = True if documents is None else documents
        scores += forced_scores(translator, sources, references, direction, documents=named)
    return Scores(scores=scores, translations=tuple(translations))


def measure(
    translations: Sequence[str],
    references: Sequence[str | None],
    settings: EvaluationSettings,
    *,
    other_references: References = (),
    sources: Sequence[str] = (),
    progress: Callable[[int, int], object] | None = None,
) -> Scores:
    """Score existing translations; see `evaluate`.  sources: for metrics that compare with them, such as SARI.

    references: may all be None if no metric reads any.  progress: called with the number of rows that a learned metric
    has rated, and of all that it rates: texts with a reference each that are not rated yet in this process.
    """
    all_references = [references, *other_references]
    metrics = metrics_from(of_texts(settings, references), progress)
    needed = not all(isinstance(metric, SegmentMetric) and not metric.reads_references for metric in metrics)
    texts = {"translations": translations, **({"sources": sources} if sources else {})}
    check_lengths(texts, all_references, needed=needed)
    scores = (metric.score(metric.count(translations, all_references, sources).sum(0)) for metric in metrics)
    return Scores(scores=tuple(scores), translations=tuple(translations))


def document_bleu(
    translations: Sequence[str], references: References, documents: Sequence[Hashable], settings: EvaluationSettings
) -> Score:
    """Return d-BLEU (Liu et al. 2020): BLEU of documents, whose sentences are joined by spaces.

    references: lists of them, of which the first that a sentence has is used.
    documents: a value for each sentence, the same for consecutive ones of a document.
    """
    targets = [next(iter(known(choices))) for choices in zip(*references, strict=True)]
    texts, wanted = list[str](), list[str]()
    for _, group in groupby(zip(documents, translations, targets, strict=True), key=lambda each: each[0]):
        _, translated, target_texts = zip(*group, strict=True)
        texts.append(" ".join(translated).strip())
        wanted.append(" ".join(target_texts).strip())
    # A glossary is a metric of its own.
    (score,) = measure(texts, wanted, settings.model_copy(update={"metrics": ("bleu",), "glossary": ""})).scores
    return replace(score, name="d_bleu", title="d-BLEU", signature=f"{score.signature}|documents:{len(texts)}")


def of_texts(settings: EvaluationSettings, references: Sequence[str | None]) -> EvaluationSettings:
    """Return settings with tokenize = "auto" replaced by the tokenizer for most letters of the first references."""
    text = "".join(known(references[:SURVEYED]))
    if settings.tokenize != "auto" or mostly_in("latin", [text])[0]:
        return settings.of_language("en")
    if mostly_in("japanese", [text])[0]:
        kana = sum("\u3041" <= character <= "\u30ff" for character in text)
        return settings.of_language("ja" if 20 * kana > len(text) else "zh")
    codes = (code for script, code in UNSPACED.items() if mostly_in(script, [text])[0])
    return settings.of_language(next(codes, "en"))


def forced_scores(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    direction: Direction = NO_DIRECTION,
    *,
    documents: Iterable[Hashable] | bool = False,
) -> tuple[Score, Score]:
    """Return −log p per reference token in nats, EOS included, and the perplexity.

    direction: of a translator with several; by default that of its [decoding].  documents: as in `score_all`.
    """
    check_lengths({"sources": sources}, [references])
    total, tokens = 0.0, 0
    to, from_ = direction.target or None, direction.source or None
    pairs = zip(sources, references, strict=True)
    for score in translator.score_all(pairs, documents=documents, to=to, from_=from_):
        total -= score.log_prob
        tokens += len(score.tokens)
    value = total / tokens
    signature = f"unit:nats|per:token|eos:yes|tokens:{tokens}"
    perplexity = math.exp(value) if value < 700 else math.inf
    return (
        Score(name="nll", title="nll", value=value, signature=signature),
        Score(name="perplexity", title="perplexity", value=perplexity, signature=f"per:token|eos:yes|tokens:{tokens}"),
    )


def check_metrics(settings: EvaluationSettings) -> None:
    """Raise TranslumeError for metrics that cannot be measured, before anything is translated."""
    for metric in metrics_from(settings):
        if isinstance(metric, SegmentMetric):
            metric.definition()  # which loads its model


def check_lengths(texts: dict[str, Sequence[str]], references: References, *, needed: bool = True) -> None:
    """Raise DataError unless all lists have the same length, which is at least one.

    needed: whether each text needs a reference.
    """
    lists: dict[str, Sequence[str | None]] = {**texts, "references": references[0]}
    lists |= {f"references {number}": more for number, more in enumerate(references[1:], start=2)}
    for name, values in lists.items():
        if isinstance(values, str):
            raise SettingsError(f"evaluate: {name} is one text, expected a list of texts")
    (first, sentences), *others = lists.items()
    for name, values in others:
        if len(values) != len(sentences):
            raise DataError(f"evaluate: {len(sentences):,} {first} but {len(values):,} {name}, expected equally many")
    if not sentences:
        raise DataError("evaluate: found no sentences, expected at least one")
    for number, choices in enumerate(zip(*references, strict=True), start=1):
        if needed and not known(choices):
            raise DataError(f"evaluate: sentence {number:,} has no reference, expected at least one")


def perplexity_scores(perplexity: Perplexity) -> tuple[Score, ...]:
    """Return the figures as scores with signatures.

    unit: the divisor: tokens and EOS; words of the raw text, separated by white space; bytes in UTF-8 or
    characters of the raw text.  end:yes: EOS is also predicted.
    """
    return tuple(
        Score(
            name=name,
            title=title,
            value=getattr(perplexity, name),
            signature=f"unit:{unit}|units:{getattr(perplexity, f'{unit}s')}|documents:{perplexity.documents}|end:yes"
            f"|context:{perplexity.context}|stride:{perplexity.stride}",
            digits=digits,
        )
        for name, title, unit, digits in PERPLEXITY_SCORES
    )


@suggest_keywords
@needed_by("translume.compare")
def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str | None],
    settings: EvaluationSettings,
    *,
    other_references: References = (),
    sources: Sequence[str] = (),
    samples: int | None = None,
    seed: int = SEED,
    test: Test = "bootstrap",
) -> tuple[Comparison, ...]:
    """Compare two systems' translations of the same sentences by each metric of `settings`.

    The p-value is that of sacreBLEU's paired bootstrap test: the fraction of resamples whose absolute difference, minus
    the mean of these differences, is at least the observed difference. It is 1 for identical translations.
    test: "randomisation" for approximate randomisation instead; see `randomise`.  samples: 1,000 and 10,000 by default.
    Raises DataError if the lists differ in length.
    """
    if samples is not None and samples < 1:
        raise SettingsError(f"compare: found {samples} samples, expected at least 1")
    all_references = [references, *other_references]
    for texts in (first, second):
        check_lengths({"translations": texts, **({"sources": sources} if sources else {})}, all_references)
    comparisons = []
    for metric in metrics_from(of_texts(settings, references)):
        counts = [metric.count(texts, all_references, sources) for texts in (first, second)]
        comparisons.append(compare_counts(metric, counts, samples=samples, seed=seed, test=test))
    return tuple(comparisons)
