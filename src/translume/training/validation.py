"""Validation: nats per token and the task's metrics on the validation set."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from translume.checkpoint import Checkpoint, LanguageModelCheckpoint
from translume.config import Config, Direction
from translume.data.batch import Batch
from translume.data.buckets import BucketPlan
from translume.data.corpus import TokenizedCorpus, texts_of
from translume.data.plan import BatchPlan
from translume.evaluation import SegmentMetric, measure, metric_from
from translume.evaluation.classification import accuracy_of, macro_f1_of
from translume.heads.token_statistics import spread_evenly
from translume.model import Transformer
from translume.model.classifier import Classifier, Network
from translume.text import Labels, Tokenizer
from translume.training.group import Group
from translume.training.resume import ModelDescription
from translume.translator import Generator, Translator
from translume.translator.classifier import LABEL_THRESHOLD
from translume.translator.device_searcher import DeviceSearcher

_AT_ONCE = 128
"""Number of sentences translated between two checks of the stop function."""

CLEARLY_BETTER = 0.01
"""Share by which the best weights must beat the mean of the last ones to be the model instead."""

Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """The metrics of a task by name.

    margin: lead, in points, that the best of many validations may owe to chance; 0 for means over tokens.
    reached_limit: number of targets that ended at their length limit.
    """

    values: Mapping[str, float]
    margin: float = 0.0
    reached_limit: int = 0


Metrics = Callable[[Stop], TaskMetrics | None]
"""A function that measures the current weights, or returns None soon after its stop function returns true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of weights on the validation set.

    nll: nats per target token.  metrics: those of the task by name.  task_margin: `TaskMetrics.margin`.
    reached_limit: number of targets that ended at their length limit, of those generated for `metrics`.
    """

    nll: float
    metrics: Mapping[str, float]
    task_margin: float = 0.0
    reached_limit: int = 0

    def value(self, metric: str) -> float:
        """Return the value of a metric, or the nll."""
        return self.nll if metric == "nll" else self.metrics[metric]

    def margin(self, metric: str) -> float:
        """Return the lead over these weights that may be due to chance.

        It is 1 % of the value, and at least `task_margin` for the metrics of the task.
        """
        return max(CLEARLY_BETTER * abs(self.value(metric)), 0.0 if metric == "nll" else self.task_margin)


def margin_of_texts(texts: int) -> float:
    """Return the lead in points that may be due to chance on a metric in per cent of generated texts.

    These are two standard errors of a share of one half. In ten of twelve runs of recipes/tasks.md whose best weights
    led by less, the mean was better on the test set.
    """
    return 100 / math.sqrt(max(1, texts))


def margin_of_labels(texts: int) -> float:
    """Return the lead in points that may be due to chance on the accuracy of labels: what three texts contribute.

    It is less than for generated texts, since classifiers that overfit lose accuracy as well.
    """
    return 300 / max(1, texts)


def better(larger: bool, value: float, best: float | None) -> bool:
    """Return whether a value is better than the best so far; NaN never is.  larger: whether larger is better."""
    if best is None:
        return value == value
    return value > best if larger else value < best


def improves(larger: bool, metric: str, quality: Quality, best: Quality | None) -> bool:
    """Return whether a validation is better than the best so far by `metric`, or by nll if the metric is the same.

    Metrics of generated targets are often 0, or hardly more, in the first validations, while nll already falls. They
    are the same if they are printed alike, with two decimals.
    """
    value, other = quality.value(metric), None if best is None else best.value(metric)
    if best is not None and metric != "nll" and f"{value:.2f}" == f"{other:.2f}":
        return better(False, quality.nll, best.nll)
    return better(larger, value, other)


def clearly_better(larger: bool, best: float, mean: Quality, metric: str) -> bool:
    """Return whether the best validation beats that of the mean of weights by more than chance, or that is NaN.

    The best is the largest of many values measured on a small set, so that it looks better than it is.
    """
    value, margin = mean.value(metric), mean.margin(metric)
    return value != value or better(larger, best, value + margin if larger else value - margin)


def measured_by(config: Config, corpus: TokenizedCorpus) -> str:
    """Return a digest of everything except the weights that a value of `training.metric` depends on."""
    parts = [corpus.digest, *map(repr, corpus.weights)]
    if config.training.metric != "nll":
        parts += [str(config.training.validation_sentences), config.decoding.model_dump_json()]
        parts += [config.scoring.model_dump_json(exclude={"metrics"})]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """Measures weights on the validation set in fp32, with a network of its own.

    task_metrics: measures the task's metrics with `model`; None if `training.metric` needs none.
    group: the processes that share the batches; all measure the same weights.
    keeps_memory: whether the network keeps its memory between two measurements.
    """

    model: Network
    corpus: TokenizedCorpus
    max_tokens: int
    device: torch.device
    task_metrics: Metrics | None
    group: Group
    keeps_memory: bool = True

    def __post_init__(self) -> None:
        self._allocate(False)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of the parameters of the model, tied ones once."""
        return {name: parameter.shape for name, parameter in self.model.named_parameters()}

    @property
    def parameters(self) -> int:
        """The number of parameters of the model, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def measure(self, weights: Mapping[str, Tensor], stop: Stop) -> Quality | None:
        """Measure weights; None soon after `stop` returns true."""
        self._allocate(True)
        try:
            load_weights(self.model, weights)
            return self._measured(stop)
        finally:
            self._allocate(False)

    def _allocate(self, wanted: bool) -> None:
        """Give memory to the parameters, or free it, unless they keep it."""
        if not self.keeps_memory:
            for parameter in self.model.parameters():
                parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size() if wanted else 0)

    def _measured(self, stop: Stop) -> Quality | None:
        self.model.eval()
        sums, tokens, stopped = list[Tensor](), 0, False
        # Validation keeps pairs that training drops as too long; such a pair becomes a batch of its own.
        kind = BatchPlan if self.device.type == "cpu" else BucketPlan  # a GPU is slow at every new shape
        plan = kind(self.corpus, max_tokens=max(self.max_tokens, self.corpus.longest + 1), seed=0, epoch=0)
        for index in range(self.group.rank, len(plan), self.group.size):
            if stopped := stop():
                break
            batch = plan.batch(index).to(self.device)
            sums.append(nll_of(self.model, batch))
            tokens += batch.tokens
        total = sum(torch.stack(sums).tolist()) if sums else 0.0
        nats, counts, ends = zip(*self.group.numbers([total, tokens, stopped]), strict=True)
        if any(ends):
            return None
        measured = self.task_metrics(stop) if self.task_metrics else TaskMetrics(values={})
        (ends,) = zip(*self.group.numbers([measured is None]), strict=True)
        if measured is None or any(ends):
            return None
        nll = sum(nats) / max(1, sum(counts))
        return Quality(
            nll=nll, metrics=measured.values, task_margin=measured.margin, reached_limit=measured.reached_limit
        )


def nll_of(model: Network, batch: Batch) -> Tensor:
    """Return −Σ log p of a batch in nats [], or the objective without smoothing for a head without −log p."""
    with torch.no_grad():
        loss = model.loss(
            batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask, tokens=batch.tokens
        )
    return loss.objective if loss.nll is None else loss.nll


def load_weights(model: Network, values: Mapping[str, Tensor]) -> None:
    """Copy weights by name into a model, keeping its dtype and device. Raises KeyError for an unknown name."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


def translation_metrics(
    model: ModelDescription, corpus: TokenizedCorpus, network: Transformer, device: torch.device, group: Group
) -> Metrics | None:
    """Return a function that measures `training.metric` on translations of validation sentences; None for the nll.

    With several directions, the metric is the mean of those of the directions, which are named "bleu en→de".
    Sources and references are read again from their files, translated with [decoding] and measured with [evaluation].
    A model that reads context translates the first sentences, since it needs those before them; another spread ones.
    Raises SettingsError or DataError for invalid settings in [decoding] or [evaluation], whatever the metric.
    """
    metric, evaluation = model.config.training.metric, model.config.scoring
    for name in (*evaluation.names, *((metric,) if metric != "nll" else ())):
        computed = metric_from(name, evaluation)
        if name == metric and group.leads and isinstance(computed, SegmentMetric):
            computed.definition()  # loads its model, so that errors come before the training
    assert isinstance(model.target, Tokenizer)
    searcher = DeviceSearcher(network) if device.type == "cuda" else None
    translator = Translator(
        Checkpoint(
            config=model.config,
            model=network,
            source_tokenizer=model.source,
            target_tokenizer=model.target,
            lengths=model.lengths,
        ),
        engine=searcher,
    )

    # No temperature is fitted before training ends.
    decoding = model.config.decoding.model_copy(update={"calibrated": False})
    count = model.config.training.validation_sentences
    chosen_pairs = range(corpus.pairs)[: count or None] if corpus.context.used else spread(corpus.pairs, count)
    groups = _by_direction(corpus, chosen_pairs)
    several = len(groups) > 1
    parts = []
    for direction, numbers in groups.items():
        own = decoding
        if several or (direction.target and translator.directions.several):  # validation pairs may be of one direction
            own = decoding.model_copy(update={"from_": direction.source, "to": direction.target})
        translator.check(own)
        settings = model.config.evaluation.of_language(direction.target).of_training(metric)
        parts.append((str(direction), own, settings, numbers))
    if metric == "nll":
        return None
    texts = [texts_of(corpus, numbers) for *_, numbers in parts]

    def translate(stop: Stop) -> TaskMetrics | None:
        values, limited = {}, 0
        for (name, own, settings, numbers), (sources, references) in zip(parts, texts, strict=True):
            hashes = corpus.document_hashes if corpus.context.used else None
            documents = None if hashes is None else hashes[list(numbers)].tolist()
            # All ranks translate whole documents, in one part.
            rank, size, step = (group.rank, group.size, _AT_ONCE) if documents is None else (0, 1, len(sources))
            share, stopped = sources[rank::size], False
            outputs: list[tuple[str, bool]] = []
            for begin in range(0, len(share), step):
                if stopped := stop():
                    break
                own_share = translator.translate_all(share[begin : begin + step], settings=own, documents=documents)
                outputs += [(each.text, each.reached_limit) for each in own_share]
            if searcher is not None:
                searcher.release_memory()  # which the next updates may need
            shares = _shares(group, None if stopped else outputs)
            if shares is None:
                return None
            translations: list[tuple[str, bool]] = [("", False)] * len(sources)
            for place, each in enumerate(shares[:size]):
                translations[place::size] = each
            chosen = settings.model_copy(update={"metrics": (metric,)})
            value, own_texts = 0.0, [text for text, _ in translations]
            with group.together():
                if group.leads:  # alone, since a learned metric takes much memory
                    value = measure(own_texts, references, chosen, sources=sources).scores[0].value
            values[f"{metric} {name}"] = group.numbers([value])[0][0]
            limited += sum(reached for _, reached in translations)
        mean = {metric: fmean(values.values())}
        count = sum(len(references) for _, references in texts)
        return TaskMetrics(
            values={**mean, **values} if several else mean, margin=margin_of_texts(count), reached_limit=limited
        )

    return translate


def _shares(group: Group, own: list[Any] | None) -> list[list[Any]] | None:
    """Return the lists of all ranks; None if any rank has None."""
    if group.alone:
        return None if own is None else [own]
    shares = [json.loads(text) for text in group.texts(json.dumps(own))]
    return None if None in shares else shares


def _by_direction(corpus: TokenizedCorpus, numbers: Sequence[int]) -> dict[Direction, list[int]]:
    """Return the numbers of pairs by the direction of their files, directions in the order of the files."""
    groups: dict[Direction, list[int]] = {origin.direction: [] for origin in corpus.origins}
    places = np.searchsorted(corpus.first, numbers, side="right") - 1
    for number, place in zip(numbers, places.tolist(), strict=True):
        groups[corpus.origins[place].direction].append(number)
    return {direction: own for direction, own in groups.items() if own}


def spread(count: int, wanted: int) -> Sequence[int]:
    """Return `wanted` numbers below `count`, evenly spread; all of them if `wanted` is 0 or at least `count`."""
    return spread_evenly(count, wanted or count)


def perplexity_metrics(
    model: ModelDescription, corpus: TokenizedCorpus, network: Transformer, device: torch.device, group: Group
) -> Metrics | None:
    """Return a function that measures the perplexity of validation documents; None if `training.metric` is the nll.

    Documents are read in windows that overlap, unlike the blocks on which the nll is measured.
    `training.validation_sentences` is the number of documents. Every rank reads all of them.
    """
    metric = model.config.training.metric
    if metric == "nll":
        return None
    assert isinstance(model.target, Tokenizer)
    generator = Generator(
        LanguageModelCheckpoint(
            config=model.config, model=network, source_tokenizer=model.source, target_tokenizer=model.target
        )
    )
    stride = generator.choose_stride(model.config.evaluation.stride)
    _, documents = texts_of(corpus, spread(corpus.pairs, model.config.training.validation_sentences))

    def measure(stop: Stop) -> TaskMetrics | None:
        if stop():
            return None
        return TaskMetrics(values={metric: getattr(generator.perplexity(documents, stride=stride), metric)})

    return measure


def classification_metrics(
    model: ModelDescription, corpus: TokenizedCorpus, network: Classifier, device: torch.device, group: Group
) -> Metrics:
    """Return a function that measures accuracy and macro-F1, in per cent, on all of `corpus`."""
    longest = int(corpus.source_lengths.max(initial=0)) + 1
    plan = BatchPlan(corpus, max_tokens=max(model.config.training.batch_tokens, longest), seed=0, epoch=0)
    labels = corpus.target_tokenizer
    assert isinstance(labels, Labels)

    def classify(stop: Stop) -> TaskMetrics | None:
        own: list[tuple[list[int], list[int]]] = []
        stopped = False
        for index in range(group.rank, len(plan), group.size):
            if stopped := stop():
                break
            batch = plan.batch(index).to(device)
            with torch.no_grad():
                logs = network.belief(batch.source, batch.source_mask).log_probs()
            wanted = batch.labels[:, 0]
            if labels.several:
                gold = [row.nonzero()[:, 0].tolist() for row in wanted.cpu()]
                assigned = [row.nonzero()[:, 0].tolist() for row in (logs.exp() > LABEL_THRESHOLD).cpu()]
            else:
                gold, assigned = ([[each] for each in ids.tolist()] for ids in (wanted, logs.argmax(-1)))
            own += zip(gold, assigned, strict=True)
        shares = _shares(group, None if stopped else own)
        if shares is None:
            return None
        gold_sets, assigned_sets = ([set(pair[side]) for share in shares for pair in share] for side in (0, 1))
        values = {"accuracy": accuracy_of(gold_sets, assigned_sets), "macro_f1": macro_f1_of(gold_sets, assigned_sets)}
        return TaskMetrics(values=values, margin=margin_of_labels(len(gold_sets)))

    return classify
