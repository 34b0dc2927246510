"""Several tokens read at once: the same beliefs as one by one, by the plain model and by the engine."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import AdaptiveSettings, CopySettings, MixtureSettings
from translume.decoding import Greedy, MinimumLength, Speculation, search
from translume.engine import Choice, Engine

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
BOS, EOS = 1, 2

VARIANTS = [
    {"norm": "pre"},
    {"norm": "post", "tie": "all", "positions": "learned"},
    {"norm": "pre", "activation": "swiglu", "normalization": "rms", "positions": "rotary"},
    {"norm": "pre", "encoder_layers": 0, "decoder_layers": 1, "bias": False},
    {"decoder_mixing": "ssru"},
    {"head": CopySettings(tie="none")},
    {"head": MixtureSettings(tie="none")},
    {"head": AdaptiveSettings(tie="none", cutoffs=(5, 11))},
]

every_variant = pytest.mark.parametrize("changes", VARIANTS, ids=lambda each: "-".join(map(str, each.values()))[:60])
either = pytest.mark.parametrize("fast", [False, True], ids=["plain", "engine"])


@pytest.fixture(scope="module")
def made(make):
    """Some of the models and engines of them, made once."""
    models = [make(**changes) for changes in VARIANTS[:5]]
    return [(model, Engine(model, Choice())) for model in models]


@either
@settings(max_examples=15)
@given(data=st.data(), variant=st.integers(0, 4))
@torch.no_grad()
def test_any_blocks_with_any_rewinding_and_leaving_give_the_beliefs_of_one_token_after_another(
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
        beliefs, state = stepper.steps(prefix, state, count)
        found = torch.stack([belief.log_probs() for belief in beliefs])
        single, wanted = model.start(source[rows], mask[rows]), []
        for length in range(1, prefix.size(1) + 1):
            belief, single = model.step(prefix[:, :length], single)
            wanted.append(belief.log_probs())
        torch.testing.assert_close(found, torch.stack(wanted[-count:]), **CLOSE)
        back = data.draw(st.integers(0, count))
        prefix = prefix[:, : prefix.size(1) - back]
        state = state.rewind(prefix.size(1))
        stay = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(sorted)))
        rows, prefix, state = rows[stay], prefix[stay], state.select(stay)


class Nearly:
    """Drafts the targets themselves, with every third token another one."""

    def __init__(self, targets):
        longest = max(map(len, targets))
        drafts = torch.tensor([[*target, *[-1] * (longest - len(target))] for target in targets])
        places = torch.arange(longest)
        self.drafts = torch.where((drafts >= 0) & (places % 3 == 2), (drafts + 1) % 17, drafts)

    def propose(self, prefix, sentences, most):
        return self.drafts[sentences][:, prefix.size(1) - 1 :][:, :most]


@every_variant
@either
def test_greedy_with_drafts_finds_what_greedy_finds_in_fewer_calls(make, sources, changes, fast):
    model = make(**changes)
    stepper = Engine(model, Choice()) if fast else model
    source, mask = sources(5, 2, 7, 3)
    limits = torch.tensor([37, 5, 3, 11])
    size = model.head.vocabulary

    def found(step, state):
        return search(step, state, bos=BOS, eos=EOS, strategy=Greedy(), limits=limits, rules=[MinimumLength(4)])

    wanted = found(model.step, model.start(source, mask))
    drafter = Nearly([each[0].tokens for each in wanted])
    speculation = Speculation(stepper.steps, drafter, eos=EOS, size=size, length=5)
    drafted = found(speculation, speculation.start(stepper.start(source, mask), limits))
    for (one,), (other,) in zip(drafted, wanted, strict=True):
        assert (one.tokens, one.finished_by) == (other.tokens, other.finished_by)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
        assert one.score == pytest.approx(other.score, abs=1e-4)
    assert int(speculation.calls.sum()) < sum(len(each[0].tokens) for each in wanted)
