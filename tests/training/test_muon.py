from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.checkpoint import build_model
from translume.config import Config
from translume.errors import SettingsError
from translume.model import LossOptions
from translume.training.muon import names_of_matrices, orthogonal
from translume.training.optimisation import Updater

Make = Callable[..., Config]
VOCABULARY = 19


@given(rows=st.integers(1, 13), more=st.integers(0, 11), seed=st.integers(0, 2**31), size=st.floats(1e-6, 1e6))
def test_orthogonal_matrices_have_the_directions_of_the_given_ones(
    rows: int, more: int, seed: int, size: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    left, _ = torch.linalg.qr(torch.randn(2, rows, rows, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(2, rows + more, rows, generator=generator))
    values = torch.rand(2, rows, generator=generator) * 0.9 + 0.1
    found = left.mT @ orthogonal(size * left @ values.diag_embed() @ right.mT) @ right
    diagonal = found.diagonal(dim1=1, dim2=2)
    assert ((diagonal > 0.6) & (diagonal < 1.3)).all()
    torch.testing.assert_close(found, diagonal.diag_embed(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_matrices_inside_layers_are_changed_as_by_torchs_muon_and_all_else_by_adamw(toy: Make, threads: int) -> None:
    settings = toy(optimizer="muon", weight_decay=0.1, clip_norm=0.0).training
    torch.manual_seed(5)
    model = build_model(toy().model, VOCABULARY, VOCABULARY)
    names = names_of_matrices(model)
    wanted = {name: torch.nn.Parameter(weight.detach().clone()) for name, weight in model.named_parameters()}
    inner = [weight for name, weight in wanted.items() if name in names]
    decayed, rest = ([w for n, w in wanted.items() if n not in names and (w.dim() > 1) == two] for two in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    theirs = [  # torch's Muon has half of our scale
        torch.optim.Muon(inner, lr=0.02, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, lr=0.01, betas=(settings.beta1, settings.beta2), eps=settings.epsilon),
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        updater = Updater(model, settings, options=LossOptions(), precision="fp32", device=torch.device("cpu"))
        for _ in range(3):
            for flat in updater._flats:
                for name, gradient in flat.views(flat.gradients[0]).items():
                    gradient.copy_(torch.randn_like(gradient))
                    wanted[name].grad = gradient / 7
            updater.update(7, 0.01)
            for each in theirs:
                each.step()
    finally:
        torch.set_num_threads(before)
    changed = 3 * 0.01 * 0.4  # of an element, about
    for name, weight in updater.parameters_fp32().items():
        close = 0.1 * changed if name in names else 1e-6  # torch's Muon multiplies bf16 matrices
        torch.testing.assert_close(weight, wanted[name].detach(), rtol=0, atol=close, msg=name)
    assert names == {n for n, w in model.named_parameters() if ".layers." in n and w.dim() == 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"shard": "optimizer"},
            "settings: training: shard is 'optimizer' with optimizer = 'muon', expected 'none': "
            "it reads whole matrices",
        ),
        (
            {"shard": "full"},
            "settings: training: shard is 'full' with optimizer = 'muon', expected 'none': it reads whole matrices",
        ),
        (
            {"lora_rank": 3},
            "settings: training: lora_rank is 3 with optimizer = 'muon', expected 'adamw': Muon trains no adapters",
        ),
    ],
)
def test_muon_refuses_what_it_cannot_train(toy: Make, settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        toy(optimizer="muon", **settings)
    assert str(error.value) == message
