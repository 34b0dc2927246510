"""The loss of CTC at the encoder."""

from collections.abc import Callable
from itertools import groupby, product
from pathlib import Path

import pytest
import torch

from translume.checkpoint import load_checkpoint
from translume.config import Config
from translume.errors import SettingsError
from translume.model.ctc import Ctc
from translume.model.layout import Layout
from translume.training import train

BLANK = 1


def probability(log_probs: torch.Tensor, target: tuple[int, ...]) -> float:
    """Return the sum over all paths whose tokens, without repetitions and then without blanks, are the target."""
    total = 0.0
    for path in product(range(log_probs.size(1)), repeat=len(log_probs)):
        if tuple(each for each, _ in groupby(path) if each != BLANK) == target:
            total += float(log_probs[torch.arange(len(path)), list(path)].sum().exp())
    return total


def test_the_loss_is_the_sum_over_all_alignments() -> None:
    torch.manual_seed(3)
    ctc = Ctc(width=5, vocabulary=4)
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    memory = torch.randn(2, 4, 5)
    layout = Layout.of(mask)
    target = torch.tensor([[BLANK, 2, 2], [BLANK, 3, 0]])
    found = ctc.loss(layout.pack(memory), layout, target, torch.tensor([[True, True, True], [True, True, False]]))
    log_probs = ctc.log_probs(memory).detach()
    expected = [probability(log_probs[0], (2, 2)), probability(log_probs[1, :3], (3,))]
    assert found.item() == pytest.approx(-sum(torch.tensor(expected).log().tolist()), rel=1e-5)


def test_a_target_that_does_not_fit_its_source_adds_nothing() -> None:
    layout = Layout.of(torch.ones(1, 2, dtype=torch.bool))
    target = torch.tensor([[BLANK, 2, 2, 3]])
    assert Ctc(5, 4).loss(torch.randn(2, 5), layout, target, target > 0).item() == 0


def test_the_weight_is_the_share_of_the_objective(make: Callable[..., Config], tmp_path: Path) -> None:
    config = make(training={"updates": 2, "ctc_weight": 0.25})
    list(train(config, tmp_path / "model"))
    model = load_checkpoint(tmp_path / "model").model
    assert model.ctc is not None
    assert model.ctc.output.weight.shape == (len(load_checkpoint(tmp_path / "model").target_tokenizer), 16)


def test_ctc_is_refused_for_text(make: Callable[..., Config]) -> None:
    with pytest.raises(SettingsError, match=r"training.ctc_weight: found 0.3, must be 0 for text to text with data"):
        make(data={"source": "text"}, training={"ctc_weight": 0.3})
