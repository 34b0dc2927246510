"""On a GPU embeddings and front ends read nothing back, and give what they give on a CPU."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.reads import Reads

from translume.config import ModelSettings
from translume.config.sources import FeatureSettings, ImageSettings
from translume.model.compiled import torch_only
from translume.model.ctc import Ctc
from translume.model.dropout import integers, uniforms
from translume.model.embedding import BandedTable, SegmentEmbedding
from translume.model.frames import FrameEmbedding, ImageEmbedding, _stretches

SIZE, WIDTH = 101, 13


def gradients(module, found, weights):
    """The gradients of the parameters for random gradients of a result."""
    return torch.autograd.grad((found * weights).sum(), list(module.parameters()))


@given(st.integers(0, 10**6), st.sampled_from([(), (7,), (7, 11, 53)]))
def test_a_table_in_bands_looks_up_the_same_vectors_without_sorting_the_ids(seed, cutoffs):
    torch.manual_seed(seed)
    table = BandedTable(SIZE, WIDTH, cutoffs, 4)
    table.arrange(torch.randperm(SIZE))
    ids, weights = torch.randint(SIZE, (3, 17)), torch.randn(3, 17, WIDTH)
    wanted = table(ids)
    by_wanted = gradients(table, wanted, weights)
    with torch_only(), Reads() as counter:
        found = table(ids)
        by_found = gradients(table, found, weights)
    assert not counter.reads
    torch.testing.assert_close((found, by_found), (wanted, by_wanted))


@given(st.integers(0, 10**6), st.lists(st.integers(1, 47), min_size=1, max_size=5))
def test_segments_have_the_same_vectors_with_as_many_positions_as_ids(seed, lengths):
    torch.manual_seed(seed)
    settings = ModelSettings(width=22, attention_heads=11, segments=2)
    embedding = SegmentEmbedding(17, settings, segments=2)
    embedding.separators.zero_()[:3] = 1
    ids = torch.randint(17, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    wanted, there = embedding.front(ids, mask)
    weights = torch.randn(*ids.shape, 22)
    most = there.size(1)
    table = [embedding.table.weight, embedding.factors]
    by_wanted = torch.autograd.grad((wanted * weights[:, :most]).sum(), table)
    with torch_only(), Reads() as counter:
        found, present = embedding.front(ids, mask)
        by_found = torch.autograd.grad((found * weights).sum(), table)
    assert not counter.reads
    assert (found.shape, present.shape) == ((*ids.shape, 22), ids.shape)
    assert present[:, :most].equal(there)
    assert not present[:, most:].any()
    assert not found[~present].any()
    torch.testing.assert_close((found[:, :most], by_found), (wanted, by_wanted), rtol=1e-5, atol=1e-5)


FRAMES = FeatureSettings(values=5, convolutions=1, speed=0.25, time_masks=3, value_masks=2)
IMAGES = ImageSettings(height=8, channels=3, shift=2, time_masks=2, value_masks=2)


@pytest.mark.parametrize(("kind", "source"), [(FrameEmbedding, FRAMES), (ImageEmbedding, IMAGES)])
def test_a_front_end_augments_a_source_as_on_a_cpu(kind, source, monkeypatch):
    monkeypatch.setattr(
        "translume.model.frames.uniforms",
        lambda *shape, like: torch.rand(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64),
    )
    torch.manual_seed(3)
    embedding = kind(source, ModelSettings(width=22, attention_heads=11))
    frames, mask = torch.randn(5, 37, source.size), torch.arange(37) < torch.tensor([37, 31, 2, 1, 17])[:, None]
    wanted, there = embedding.front(frames, mask)
    with torch_only(), Reads() as counter:
        found, present = embedding.front(frames, mask)
    assert not counter.reads
    count = there.size(1)
    assert present[:, :count].equal(there)
    assert not present[:, count:].any()
    torch.testing.assert_close(found[:, :count][there], wanted[there])
    assert not found[~present].any()


def test_the_number_of_frames_with_another_speed_depends_on_the_padded_length_only():
    settings = ModelSettings(width=22, attention_heads=11, max_positions=23)
    embedding = FrameEmbedding(FRAMES, settings)

    def frames(length, longest):
        mask = torch.arange(length) < torch.tensor([[longest]] * 3)
        return embedding._changed_speed(torch.randn(3, length, 5), mask)[0].size(1)

    with torch_only():
        assert [frames(31, longest) for longest in (1, 11, 31)] == [42, 42, 42]  # 31 / 0.75, rounded up
        assert frames(37, 37) == 46  # the model has 23 positions of 2 frames
        assert frames(47, 47) == 47


@given(st.lists(st.integers(1, 53), min_size=1, max_size=5), st.integers(0, 53), st.integers(0, 10**6))
def test_stretches_lie_in_their_source_and_are_no_longer_than_allowed(lengths, longest, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lengths)
    longest = lengths.clamp(max=longest)
    fractions = torch.rand(1, 2, len(lengths), generator=generator)
    fractions[fractions > 0.8] = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))  # the largest below 1
    fractions[fractions < 0.2] = 0.0
    inside = _stretches(fractions, lengths, longest, 53)
    assert (inside.sum(1) <= longest).all()
    assert not (inside & (torch.arange(53) >= lengths[:, None])).any()
    assert (inside.int().diff(dim=1).clamp(min=0).sum(1) <= 1).all()  # one stretch


@given(st.integers(1, 1 << 20))
def test_integers_are_below_their_count_in_every_precision(count):
    for dtype in (torch.float32, torch.float64):
        last = torch.nextafter(torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype))
        assert integers(torch.cat([torch.zeros(1, dtype=dtype), last]), count).tolist() == [0, count - 1]


def test_random_numbers_follow_torchs_seed_on_every_device_without_a_read():
    like, met = torch.zeros(1), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        with torch_only(), Reads() as counter:
            met.append(uniforms(3, 7, like=like).flatten())
        assert not counter.reads
        torch.manual_seed(seed)
        met.append(uniforms(3, 7, like=like).flatten())
    assert met[0].equal(met[2])
    assert met[1].equal(met[3])
    assert not any(left.equal(right) for left, right in pairwise(met))


@pytest.mark.parametrize("blank", [0, 1, 10])
def test_ctc_finds_its_blank_without_reading_it_back(blank):
    torch.manual_seed(3)
    ctc = Ctc(width=WIDTH, vocabulary=11)
    memory, mask = torch.randn(3, 19, WIDTH, requires_grad=True), torch.arange(19) < torch.tensor([[19], [7], [1]])
    labels = torch.tensor([[each for each in range(11) if each != blank][:5]] * 3)
    target = torch.cat([torch.full((3, 1), blank), labels], 1)
    target_mask = torch.arange(6) < torch.tensor([[6], [3], [0]])  # the last row does not count
    wanted = F.ctc_loss(
        ctc.log_probs(memory[:2]).transpose(0, 1), labels[:2], mask.sum(1)[:2], torch.tensor([5, 2]), blank,
        reduction="sum",
    )  # fmt: skip
    leaves = [memory, *ctc.parameters()]
    with Reads() as counter:
        found = ctc.loss(memory, mask, target, target_mask)
    assert not counter.reads
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, leaves), torch.autograd.grad(wanted, leaves))
