"""Properties that every part of a kind must have, for tests of parts from outside: `check_part("head", "my_head")`.

They are necessary, not sufficient: what a part computes is for tests of its own.
"""

import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from translume.belief import Logits
from translume.checkpoint import Checkpoint, build_model, save_model
from translume.config import Config, DecodingSettings, EvaluationSettings, ModelSettings, SourceKind, TrainingSettings
from translume.decoding import BeamSearch, Hypothesis, Rule, Strategy, search
from translume.documents import Format
from translume.evaluation import metric_from
from translume.interchange.export import export
from translume.model import LossOptions, Transformer
from translume.parts import find
from translume.sources.reader import FrameReader
from translume.tasks import Task, find_task
from translume.text import train_tokenizer
from translume.training.optimisation import learning_rate
from translume.training.other_optimizer import OtherOptimizer

WIDTH, VOCABULARY, UPDATES = 14, 11, 53
TEXTS = ("a house", "two cats", "bread", "a boat and a house")


def check_part(kind: str, name: str, *, sample: bytes = b"", settings: Mapping[str, Any] | None = None) -> None:
    """Raise AssertionError if a part lacks a property that every part of its kind must have.

    sample: the content of a file, for documents and sources.  settings: of a source, for which the sample is.
    Raises SettingsError for an unknown kind or name.
    """
    find(kind, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if kind == "document":
            _check_document(name, sample)
        elif kind == "source":
            _check_source(name, sample, settings or {})
        else:
            _CHECKS[kind](name)


def _model(**settings: Any) -> Transformer:
    """Return a small model in fp64, without dropout, with some settings."""
    small = {"width": WIDTH, "feed_forward": 17, "encoder_layers": 1, "decoder_layers": 2, "attention_heads": 7}
    chosen = ModelSettings(**{**small, "dropout": 0.0, "max_positions": 23, **settings})
    return build_model(chosen, VOCABULARY, VOCABULARY).double().eval()


def _batch() -> tuple[Tensor, ...]:
    """Return sources, their mask, targets, labels and the mask of these, of three rows."""
    rows, lengths = torch.arange(7), ((7, 2, 5), (5, 6, 1))
    ids = [torch.randint(1, VOCABULARY, (3, 7)) for _ in range(3)]
    source_mask, target_mask = (rows < torch.tensor(each)[:, None] for each in lengths)
    return ids[0], source_mask, ids[1], ids[2], target_mask


def _check_network(**settings: Any) -> None:
    """Check a model: tokens in turn as all at once, rows independent of each other, and a gradient for every weight."""
    model = _model(**settings)
    source, source_mask, target, labels, target_mask = _batch()
    with torch.no_grad():
        score = model.score(source, source_mask, target, labels, target_mask)
        state = model.start(source, source_mask)
        for place in range(5):
            belief, state = model.step(target[:, : place + 1], state)
            one = belief.log_prob_of(labels[:, place, None])[:, 0]
            there = target_mask[:, place]
            _equal(one[there], score[there, place], f"token {place} after the others, and in the whole target")
        for row in range(3):
            length, alone = int(source_mask[row].sum()), slice(row, row + 1)
            long = int(target_mask[row].sum())
            own = model.score(
                source[alone, :length], source_mask[alone, :length], target[alone, :long], labels[alone, :long],
                target_mask[alone, :long],
            )  # fmt: skip
            _equal(own[0], score[row, :long], f"row {row} alone, and in a batch")
    model.train()
    loss = model.loss(source, source_mask, target, labels, target_mask)
    loss.objective.backward()  # type: ignore[no-untyped-call]  # torch's has no types
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert bool(parameter.grad.isfinite().all()), f"the gradient of {name} is not finite"


def _check_head(name: str) -> None:
    tie = "none" if "tie" in find("head", name).model_fields else None
    head: dict[str, Any] = {"kind": name} | ({"tie": tie} if tie else {})
    _check_network(head=head)
    made = _model(head=head).head
    hidden, labels = torch.randn(13, WIDTH).double(), torch.randint(VOCABULARY, (13,))
    source = torch.randint(1, VOCABULARY, (13, 3))
    context = made.begin(source, source > 0, torch.randn(13, 3, WIDTH).double())
    loss, belief = made.loss(hidden, labels, context, LossOptions()), made.next_token(hidden, context)
    score = belief.log_prob_of(labels[:, None])[:, 0]
    assert loss.tokens == 13, f"counts {loss.tokens} labels of 13"
    _equal(made.score(hidden, labels, context), score, "score, and the log-probability of the distribution")
    if made.normalised:
        _equal(belief.log_probs().exp().sum(-1), torch.ones(13).double(), "probabilities, summed")
    if made.exact_loss and made.full_support:
        _equal(loss.objective, -score.sum(), "the loss, and the negative sum of scores")
    top = belief.topk(3)
    _equal(top.log_probs, belief.log_probs().gather(1, top.ids), "the best tokens")


def _check_objective(name: str) -> None:
    head, loss = _model().head, find("objective", name)(TrainingSettings(objective=name))
    if loss is None:
        return
    hidden, labels = torch.randn(13, WIDTH).double(), torch.randint(VOCABULARY, (13,))
    whole, *parts = (
        loss(head, hidden[part], labels[part], None, LossOptions()) for part in (slice(None), slice(5), slice(5, None))
    )
    _equal(whole.objective, sum(part.objective for part in parts), "the sum over labels, and over two parts of them")
    assert whole.tokens == 13, f"counts {whole.tokens} labels of 13"
    whole.objective.backward()


def _check_optimizer(name: str) -> None:
    settings = TrainingSettings(optimizer=name)
    if name in ("adam", "adamw", "muon"):
        return
    start = torch.randn(5, 3)

    def run(steps: range, weights: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        gradient = torch.zeros_like(weights)
        made = OtherOptimizer(settings, {"w": weights}, {"w": gradient}, {"w"})
        if state:
            made.load(state)
        for _ in steps:
            gradient.copy_(weights)  # that of |w|²/2
            made.step(0.01, 0.0, 1.0, lambda function, items: [function(each) for each in items])
        return weights, {key: each.clone() for key, each in made.state().items()}

    whole, _ = run(range(40), start.clone(), {})
    first, half = run(range(20), start.clone(), {})
    resumed, _ = run(range(20), first.clone(), half)
    assert float(whole.norm()) < float(start.norm()), "40 steps did not come nearer to the minimum of |w|²"
    _equal(resumed, whole, "a resumed run, and one without interruption")


def _check_schedule(name: str) -> None:
    settings = TrainingSettings(schedule=name, updates=UPDATES, warmup_updates=7)
    rates = [learning_rate(update, settings, WIDTH) for update in range(1, UPDATES + 1)]
    assert all(0 <= rate < math.inf for rate in rates), f"rates are not finite and positive: {rates}"
    assert any(rates), "all rates are zero"
    assert rates[::-1] == [learning_rate(update, settings, WIDTH) for update in range(UPDATES, 0, -1)], "it has a state"


class _Nothing:
    """The state of a search without a model."""

    def select(self, rows: Tensor) -> "_Nothing":
        return self


def _searched(strategy: Strategy, rules: tuple[Rule, ...], rows: int) -> list[list[Hypothesis]]:
    """Return the results for some equal sentences of a toy model, whose distribution depends on the last token."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))

    def step(prefix: Tensor, state: _Nothing) -> tuple[Logits, _Nothing]:
        return Logits(table[torch.as_tensor(prefix)[:, -1]]), state

    limits = torch.full((rows,), 9)
    return search(step, _Nothing(), bos=1, eos=2, strategy=strategy, limits=limits, rules=list(rules))


def _check_search(strategy: Callable[[int], Strategy], *rules: Rule) -> None:
    one, several = (_searched(strategy(rows), rules, rows) for rows in (1, 3))
    assert one[0] == several[0], "a sentence alone, and in a batch, has other results"
    assert one[0], "no hypothesis was returned"
    scores = [each.score for each in one[0]]
    assert scores == sorted(scores, reverse=True), f"hypotheses are not best first: {scores}"


def _check_strategy(name: str) -> None:
    kind = find("strategy", name)
    settings = DecodingSettings(strategy=name)
    _check_search(lambda rows: kind.from_settings(settings, np.zeros(rows, np.int64)))


def _check_rule(name: str) -> None:
    tokenizer = train_tokenizer(Config().tokenizer.model_copy(update={"kind": "character", "size": 300}), TEXTS)
    _check_search(lambda rows: BeamSearch(width=3), find("rule", name)(DecodingSettings(), tokenizer))


def _check_metric(name: str) -> None:
    texts, references = list(TEXTS), [[text[::-1] for text in TEXTS]]
    metric = metric_from(name, EvaluationSettings(metrics=(name,)))
    counts = metric.count(texts, references, texts)
    assert len(counts) == len(texts), f"{len(counts)} rows of statistics for {len(texts)} texts"
    score = metric.score(counts.sum(0))
    again = metric_from(name, EvaluationSettings(metrics=(name,)))
    turned = again.count(texts[::-1], [references[0][::-1]], texts[::-1])
    _equal(again.score(turned.sum(0)).value, score.value, "a score, and that of the texts in another order")
    assert score.signature, "the score has no signature"


def _check_document(name: str, sample: bytes) -> None:
    form = find("document", name)
    assert isinstance(form, Format)
    document = form.read(sample)
    texts = [segment.runs for segment in document.segments]
    assert texts, "the sample has no text"
    assert [each.runs for each in form.read(document.with_runs(texts)).segments] == texts, "a file with its own texts"


def _check_source(name: str, sample: bytes, settings: Mapping[str, Any]) -> None:
    chosen = SourceKind.choose({"kind": name, **settings})
    if not chosen.reader:
        return
    reader: FrameReader = resolve_name(chosen.reader)(chosen)
    frames = reader.read(sample)
    assert frames.shape[1] == chosen.size, f"frames of {frames.shape[1]} values, expected {chosen.size}"
    assert np.array_equal(reader.read(frames), frames), "an array of frames is not read as it is"


def _check_task(name: str) -> None:
    task = find_task(name)
    assert isinstance(task, Task)
    assert task.name == name, f"its name is {task.name!r}, expected {name!r}"
    for made in (task.user_class(), task.checkpoint_class(), task.vocabulary_class()):
        assert isinstance(made, type), f"{made!r} is no class"


def _check_export(name: str) -> None:
    config = Config.build(
        {
            "model": {"width": 16, "feed_forward": 16, "attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1},
            "tokenizer": {"kind": "character", "size": 300},
            "data": {"train": ["train.tsv"]},
        }
    )
    tokenizer = train_tokenizer(config.tokenizer, TEXTS)
    model = build_model(config.model, len(tokenizer), len(tokenizer)).eval()
    with tempfile.TemporaryDirectory() as folder:
        save_model(
            Path(folder, "model"),
            Checkpoint(config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer),
        )
        assert export(Path(folder, "model"), name, Path(folder, "out")).difference < 1e-3
        assert list(Path(folder, "out").iterdir()), "nothing was written"


def _check_command(name: str) -> None:
    command = find("command", name)
    assert isinstance(command, click.Command)
    with click.Context(command) as context:
        assert command.get_help(context), "it has no help"


def _equal(found: Any, expected: Any, what: str) -> None:
    one, other = (torch.as_tensor(each, dtype=torch.float64) for each in (found, expected))
    assert torch.allclose(one, other, rtol=1e-5, atol=1e-5), f"{what}, differ: {found} and {expected}"


_CHECKS: dict[str, Callable[[str], None]] = {
    "position": lambda name: _check_network(positions=name),
    "norm": lambda name: _check_network(normalization=name),
    "attention": lambda name: _check_network(attention=name),
    "feed_forward": lambda name: _check_network(feed_forward_kind=name),
    "head": _check_head,
    "objective": _check_objective,
    "optimizer": _check_optimizer,
    "schedule": _check_schedule,
    "strategy": _check_strategy,
    "rule": _check_rule,
    "metric": _check_metric,
    "task": _check_task,
    "export": _check_export,
    "command": _check_command,
}
