"""The registry of metrics, and the evaluation of translations against references."""

import math
from collections.abc import Callable, Mapping, Sequence

from translume.config import DecodingSettings, Direction, EvaluationSettings
from translume.config.languages import NO_DIRECTION
from translume.errors import DataError, SettingsError, nearest, suggest_keywords
from translume.evaluation.error_rates import character_error_rate, exact_match, phone_error_rate, word_error_rate
from translume.evaluation.overlap import rouge1, rouge2, rouge_l, squad_exact, squad_f1
from translume.evaluation.sacrebleu_metrics import bleu, chrf, ter
from translume.evaluation.sari import sari
from translume.evaluation.scores import Metric, References, Score, Scores, known
from translume.translator import Translator

METRICS: Mapping[str, Callable[[EvaluationSettings], Metric]] = {
    "bleu": bleu,
    "chrf": chrf,
    "ter": ter,
    "exact_match": exact_match,
    "wer": word_error_rate,
    "per": phone_error_rate,
    "cer": character_error_rate,
    "rouge1": rouge1,
    "rouge2": rouge2,
    "rougeL": rouge_l,
    "squad_f1": squad_f1,
    "squad_exact": squad_exact,
    "sari": sari,
}
"""Metrics by the name used in settings. A new metric is one module and one line here."""


def metric_from(name: str, settings: EvaluationSettings) -> Metric:
    """Create a metric by name; raise SettingsError with the nearest known name for an unknown one."""
    if name not in METRICS:
        raise SettingsError(f"evaluation.metrics: found '{name}'{nearest(name, METRICS)}")
    return METRICS[name](settings)


@suggest_keywords
def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    settings: EvaluationSettings | None = None,
    *,
    other_references: References = (),
    decoding: DecodingSettings | None = None,
    nll: bool = False,
) -> Scores:
    """Translate `sources` and score the translations by each metric of `settings` (default: the model's settings).

    other_references: further lists of references, each as long as `sources`; None where a source has
    fewer.  decoding: replaces the model's settings.
    nll: also measure −log p per token of `references`, in nats, and the perplexity.
    Raises DataError if the lists are empty or differ in length.
    """
    if not hasattr(translator, "translate_all"):  # such as a path or a classifier
        found = type(translator).__name__
        raise TypeError(f"translator: found {found}, expected a Translator; call load_translator(folder)")
    chosen = decoding or translator.config.decoding
    direction = translator.direction(to=chosen.to, from_=chosen.from_)
    settings = (settings or translator.config.scoring).of_language(direction.target)
    all_references = [references, *other_references]
    check_lengths({"sources": sources}, all_references)
    check_metrics(settings)
    translations = [str(each) for each in translator.translate_all(sources, settings=decoding)]
    scores = measure(translations, references, settings, other_references=other_references, sources=sources).scores
    if nll:
        scores += forced_scores(translator, sources, references, direction)
    return Scores(scores=scores, translations=tuple(translations))


def measure(
    translations: Sequence[str],
    references: Sequence[str | None],
    settings: EvaluationSettings,
    *,
    other_references: References = (),
    sources: Sequence[str] = (),
) -> Scores:
    """Score existing translations; see `evaluate`.  sources: for metrics that compare with them, such as SARI."""
    all_references = [references, *other_references]
    check_lengths({"translations": translations, **({"sources": sources} if sources else {})}, all_references)
    scores = []
    for name in settings.names:
        metric = metric_from(name, settings)
        scores.append(metric.score(metric.count(translations, all_references, sources).sum(0)))
    return Scores(scores=tuple(scores), translations=tuple(translations))


def forced_scores(
    translator: Translator, sources: Sequence[str], references: Sequence[str], direction: Direction = NO_DIRECTION
) -> tuple[Score, Score]:
    """Return −log p per reference token in nats, end marks included, and the perplexity.

    direction: of a translator with several; by default that of its [decoding].
    """
    check_lengths({"sources": sources}, [references])
    total, tokens = 0.0, 0
    for score in translator.score_all(
        zip(sources, references, strict=True), to=direction.target or None, from_=direction.source or None
    ):
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
    """Raise SettingsError for metrics that cannot be measured, before anything is translated."""
    for name in settings.names:
        metric_from(name, settings)


def check_lengths(texts: dict[str, Sequence[str]], references: Sequence[Sequence[str | None]]) -> None:
    """Raise DataError unless all lists have the same length, which is at least one."""
    lists: dict[str, Sequence[str | None]] = {**texts, "references": references[0]}
    lists |= {f"references {number}": more for number, more in enumerate(references[1:], start=2)}
    for name, found in lists.items():
        if isinstance(found, str):
            raise SettingsError(f"evaluate: {name} is one text, expected a list of texts")
    (first, texts_found), *others = lists.items()
    for name, found in others:
        if len(found) != len(texts_found):
            raise DataError(f"evaluate: {len(texts_found):,} {first} but {len(found):,} {name}, expected equally many")
    if not texts_found:
        raise DataError("evaluate: found no sentences, expected at least one")
    for number, each in enumerate(zip(*references, strict=True), start=1):
        if not known(each):
            raise DataError(f"evaluate: sentence {number:,} has no reference, expected at least one")
