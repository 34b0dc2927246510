"""Replicas on several cores give the same sums as one core, for any split."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.checkpoint import build_model
from translume.config import ModelSettings, TrainingSettings
from translume.data.batch import Batch
from translume.model import LossOptions
from translume.model.head import Teacher
from translume.training.data_parallel import replica_count, shares_of
from translume.training.optimisation import Updater

VOCABULARY = 101


def batch_of(rows, source, target, seed):
    generator = torch.Generator().manual_seed(seed)

    def ids(columns):
        return torch.randint(4, VOCABULARY, (rows, columns), generator=generator)

    def mask(columns):
        lengths = torch.randint(1, columns + 1, (rows, 1), generator=generator)
        return torch.arange(columns) < lengths

    target_mask = mask(target)
    return Batch(
        source=ids(source),
        source_mask=mask(source),
        target=ids(target),
        labels=ids(target),
        target_mask=target_mask,
        lines=tuple(range(rows)),
        tokens=int(target_mask.sum()),
    )


def updater_on(threads, *, dropout=0.0, precision="fp32", teacher=None):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(1)
        settings = ModelSettings(
            width=22, feed_forward=31, encoder_layers=2, decoder_layers=2, attention_heads=11, dropout=dropout
        )
        model = build_model(settings, VOCABULARY, VOCABULARY).train()
        options = LossOptions(0.1, teacher=teacher)
        return Updater(model, TrainingSettings(), options=options, precision=precision, device=torch.device("cpu"))
    finally:
        torch.set_num_threads(before)


def gradients(updater):
    parts = zip(updater._flats, updater.gradients(), strict=True)
    return {name: view for flat, gradient in parts for name, view in flat.views(gradient).items()}


@given(st.integers(1, 13), st.integers(1, 19), st.integers(1, 17), st.integers(2, 4), st.integers(0, 99))
def test_slices_add_up_to_the_whole_batch(rows, source, target, threads, seed):
    batch = batch_of(rows, source, target, seed)
    alone, together = updater_on(1), updater_on(threads)
    first, second = alone.add(batch), together.add(batch)
    assert first.tokens == second.tokens == batch.tokens
    torch.testing.assert_close(first.nll, second.nll, rtol=1e-5, atol=1e-4)
    for name, gradient in gradients(alone).items():
        torch.testing.assert_close(gradients(together)[name], gradient, rtol=1e-4, atol=1e-4, msg=name)


def test_threads_share_a_teacher():
    torch.manual_seed(3)
    settings = ModelSettings(width=26, feed_forward=31, encoder_layers=1, decoder_layers=1, attention_heads=2)
    network = build_model(settings, VOCABULARY, VOCABULARY).eval().requires_grad_(requires_grad=False)
    batch = batch_of(13, 11, 17, 5)
    alone, together, untaught = (
        updater_on(threads, teacher=teacher)
        for threads, teacher in ((1, Teacher(network, 0.7)), (3, Teacher(network, 0.7)), (1, None))
    )
    first, second = (float(updater.add(batch).objective) for updater in (alone, together))
    assert first == pytest.approx(second, rel=1e-5)
    assert first != pytest.approx(float(untaught.add(batch).objective), rel=1e-2)
    for name, gradient in gradients(alone).items():
        torch.testing.assert_close(gradients(together)[name], gradient, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_threads_with_dropout_give_the_same_weights_every_time(precision):
    results = []
    for _ in range(2):
        updater = updater_on(2, dropout=0.3, precision=precision)
        for update in range(3):
            torch.manual_seed(update)
            loss = updater.add(batch_of(7, 11, 13, update))
            updater.update(loss.tokens, 1e-3)
        results.append({name: value.clone() for name, value in updater.parameters_fp32().items()})
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


def test_slices_are_trimmed_to_their_longest_row():
    batch = batch_of(5, 11, 13, seed=3)
    tensors = (batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask)
    for share in shares_of(tensors, 2):
        assert share[1].any(0).all()
        assert share[4].any(0).all()


def test_slices_are_never_empty():
    batch = batch_of(2, 5, 7, seed=1)
    tensors = (batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask)
    assert len(shares_of(tensors, 4)) == 2


def test_batches_are_not_split_on_gpus():
    assert replica_count(8, torch.device("cuda")) == 1
    assert replica_count(8, torch.device("cpu")) == 4
