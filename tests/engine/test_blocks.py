"""Reading several tokens in one step gives the same distribution as reading them one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.engine import build_engine

CLOSE = {"rtol": 1e-4, "atol": 1e-4}

VARIANTS = [
    {"norm": "pre"},
    {"norm": "post", "tie": "all", "positions": "learned"},
    {"norm": "pre", "activation": "swiglu", "normalization": "rms", "positions": "rotary"},
    {"norm": "pre", "encoder_layers": 0, "decoder_layers": 1, "bias": False},
    {"decoder_mixing": "ssru"},
]


@pytest.fixture(scope="module")
def made(make):
    """Some models and an engine of each, built once."""
    models = [make(**changes) for changes in VARIANTS]
    return [(model, build_engine(model)) for model in models]


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "engine"])
@settings(max_examples=15)
@given(data=st.data(), variant=st.integers(0, 4))
@torch.no_grad()
def test_blocks_of_tokens_give_the_distributions_of_single_tokens_while_sentences_leave(
    made, sources, fast, data, variant
):
    model, engine = made[variant]
    stepper = engine if fast else model
    source, mask = sources(5, 2, 7, seed=3)
    rows, state = torch.arange(3), stepper.start(source, mask)
    ids = st.integers(0, 16)
    prefix = torch.empty(3, 0, dtype=torch.long)
    for _ in range(data.draw(st.integers(1, 3))):
        count, size = data.draw(st.integers(1, 4)), len(rows)
        block = torch.tensor(data.draw(st.lists(ids, min_size=size * count, max_size=size * count)))
        prefix = torch.cat([prefix, block.view(size, count)], 1)
        belief, state = stepper.step(prefix, state)
        single = model.start(source[rows], mask[rows])
        for length in range(1, prefix.size(1) + 1):
            expected, single = model.step(prefix[:, :length], single)
        torch.testing.assert_close(belief.log_probs(), expected.log_probs(), **CLOSE)
        stay = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(sorted)))
        rows, prefix, state = rows[stay], prefix[stay], state.select(stay)
