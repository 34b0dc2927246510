"""Metrics of what a model translates in the middle of a run."""

from collections.abc import Callable, Mapping, Sequence

from translume.checkpoint import Checkpoint
from translume.data import TokenizedCorpus
from translume.heads.token_statistics import spread_evenly
from translume.model import Transformer
from translume.text import Tokenizer
from translume.training.store import Model
from translume.translator import Translator

_AT_ONCE = 128
"""Sentences translated between two looks at whether to stop."""


def decoder_of(
    model: Model, corpus: TokenizedCorpus, transformer: Transformer
) -> Callable[[Callable[[], bool]], Mapping[str, float] | None] | None:
    """A function that measures `training.metric` on the validation sentences; None where that is the nll.

    Raises SettingsError, or DataError, where [decoding] or [evaluation] ask for what cannot be, whatever the metric.
    The texts are those of the files, not their tokens; they are translated as [decoding] says and measured as
    [evaluation] says; None soon after the function it is given turns true.
    """
    from translume.evaluation import measure, metric_from  # here, since it brings sacreBLEU along

    metric, evaluation = model.config.training.metric, model.config.scoring
    for name in (*evaluation.metrics, *((metric,) if metric != "nll" else ())):
        metric_from(name, evaluation)
    assert isinstance(model.target, Tokenizer)
    translator = Translator(
        Checkpoint(config=model.config, model=transformer, source_tokenizer=model.source, target_tokenizer=model.target)
    )

    # No temperature is fitted before the weights stand.
    decoding = model.config.decoding.model_copy(update={"calibrated": False})
    translator.check(decoding)
    if metric == "nll":
        return None
    settings = evaluation.model_copy(update={"metrics": (metric,)})
    numbers = spread(corpus.pairs, model.config.training.validation_sentences)
    sources, references = texts_of(corpus, numbers)

    def decode(stop: Callable[[], bool]) -> Mapping[str, float] | None:
        found: list[str] = []
        for begin in range(0, len(sources), _AT_ONCE):
            if stop():
                return None
            part = sources[begin : begin + _AT_ONCE]
            found += [str(translation) for translation in translator.translate_all(part, settings=decoding)]
        return {metric: measure(found, references, settings).scores[0].value}

    return decode


def spread(count: int, wanted: int) -> Sequence[int]:
    """`wanted` numbers below `count`, evenly spread; all of them if `wanted` is 0 or not less."""
    return spread_evenly(count, wanted or count)


def texts_of(corpus: TokenizedCorpus, numbers: Sequence[int]) -> tuple[list[str], list[str]]:
    """Sources and references of some pairs of a corpus, read again from its files; numbers ascend."""
    sources: list[str] = []
    references: list[str] = []
    for origin, first, end in zip(corpus.origins, corpus.first, corpus.first[1:], strict=False):
        wanted = {int(corpus.line_numbers[number]) for number in numbers if first <= number < end}
        if not wanted:
            continue
        for pair in origin.read():
            if pair.line in wanted:
                sources.append(pair.source)
                references.append(pair.target)
    return sources, references
