"""Translations against references."""

import math
from collections.abc import Sequence

from translume.config import DecodingSettings, EvaluationSettings
from translume.errors import DataError, SettingsError
from translume.evaluation.registry import metric_from
from translume.evaluation.values import Score, Scores
from translume.translator import Translator


def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    settings: EvaluationSettings | None = None,
    *,
    other_references: Sequence[Sequence[str]] = (),
    decoding: DecodingSettings | None = None,
    nll: bool = False,
) -> Scores:
    """How good a translator's translations of `sources` are, by each metric of `settings` (the model's own if None).

    other_references: further ones, each list as long as `sources`.  decoding: instead of the model's own.
    nll: also measure −log p per token of `references`, in nats, and its perplexity.
    Raises DataError where there is nothing to measure or the lists are not of one length.
    """
    if not hasattr(translator, "translate_all"):  # a path, or a classifier
        raise TypeError(f"evaluate wants a Translator, found {type(translator).__name__}; load gives one of a folder")
    settings = (settings or translator.config.evaluation).of_language(translator.config.data.target_language)
    all_references = [references, *other_references]
    check_lengths({"sources": sources}, all_references)
    for name in settings.metrics:
        metric_from(name, settings)
    translations = [str(each) for each in translator.translate_all(sources, settings=decoding)]
    scores = measure(translations, references, settings, other_references=other_references).scores
    if nll:
        scores += forced_scores(translator, sources, references)
    return Scores(scores=scores, translations=tuple(translations))


def measure(
    translations: Sequence[str],
    references: Sequence[str],
    settings: EvaluationSettings,
    *,
    other_references: Sequence[Sequence[str]] = (),
) -> Scores:
    """How good translations are that stand already; see `evaluate`."""
    all_references = [references, *other_references]
    check_lengths({"translations": translations}, all_references)
    scores = []
    for name in settings.metrics:
        metric = metric_from(name, settings)
        scores.append(metric.score(metric.count(translations, all_references).sum(0)))
    return Scores(scores=tuple(scores), translations=tuple(translations))


def forced_scores(translator: Translator, sources: Sequence[str], references: Sequence[str]) -> tuple[Score, Score]:
    """−log p of the references per token, end marks counted, in nats, and e to that power."""
    check_lengths({"sources": sources}, [references])
    total, tokens = 0.0, 0
    for score in translator.score_all(zip(sources, references, strict=True)):
        total -= score.log_prob
        tokens += len(score.tokens)
    value = total / tokens
    signature = f"unit:nats|per:token|eos:yes|tokens:{tokens}"
    perplexity = math.exp(value) if value < 700 else math.inf
    return (
        Score(name="nll", title="nll", value=value, signature=signature),
        Score(name="perplexity", title="perplexity", value=perplexity, signature=f"per:token|eos:yes|tokens:{tokens}"),
    )


def check_lengths(texts: dict[str, Sequence[str]], references: Sequence[Sequence[str]]) -> None:
    """Raise DataError unless there are equally many of everything, and at least one."""
    lists = {**texts, "references": references[0]}
    lists |= {f"references {number}": more for number, more in enumerate(references[1:], start=2)}
    for name, found in lists.items():
        if isinstance(found, str):
            raise SettingsError(f"evaluate: {name} is one text, wanted a list of texts")
    (first, texts_found), *others = lists.items()
    for name, found in others:
        if len(found) != len(texts_found):
            raise DataError(f"evaluate: {len(texts_found):,} {first} but {len(found):,} {name}, wanted equally many")
    if not texts_found:
        raise DataError("evaluate: found no sentences, wanted at least one")
