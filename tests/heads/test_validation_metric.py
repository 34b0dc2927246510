"""The metric by which a head is validated: named by its settings without importing torch."""

from pkgutil import resolve_name

import pytest
import torch

from translume.model import HeadSizes, LossOptions

from .conftest import VOCABULARY, WIDTH, data, kinds


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.model_fields["kind"].default)
def test_settings_name_the_metric_that_the_head_gives_in_evaluation(kind):
    sizes = HeadSizes(width=WIDTH, vocabulary=VOCABULARY, source_vocabulary=VOCABULARY)
    head = resolve_name(kind.implementation)(kind(), sizes, None).eval()
    if kind.model_fields["kind"].default != "shortlist":  # its candidates differ from those of its loss
        head.learn(data(VOCABULARY))
    source = torch.tensor([[4, 5, 6, 7, 2]])
    context = head.begin(source, source > 0, torch.randn(1, 5, WIDTH))
    context = None if context is None else context.select(torch.zeros(3, dtype=torch.long))
    loss = head.loss(torch.randn(3, WIDTH), torch.tensor([4, 9, 2]), context, LossOptions())
    assert kind.measure == ("objective" if loss.nll is None else "nll")
