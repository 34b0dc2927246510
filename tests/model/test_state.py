"""The decoder state: any split, selection or padding gives the same hidden states."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.errors import StaleStateError

CLOSE = {"rtol": 1e-4, "atol": 1e-5}

VARIANTS = [
    {"norm": "pre"},
    {"norm": "post", "tie": "all", "positions": "learned"},
    {"norm": "post", "activation": "gelu", "bias": False, "tie": "target"},
    {"norm": "pre", "activation": "swiglu", "normalization": "rms", "positions": "rotary"},
    {"norm": "post", "normalization": "rms", "positions": "none", "bias": False},
    {"norm": "pre", "positions": "rotary", "bias": False, "activation": "gelu", "tie": "all"},
    {"norm": "pre", "positions": "relative", "relative_buckets": 6, "relative_max_distance": 9},
    {
        "norm": "pre",
        "positions": "relative",
        "head_width": 3,
        "activation": "geglu",
        "tie": "embeddings",
        "bias": False,
    },
    {"norm": "post", "positions": "relative", "decoder_layers": 1, "tie": "all"},
    {"norm": "pre", "segments": 3, "activation": "swiglu"},
    {"norm": "post", "segments": 2, "scale_embeddings": False, "positions": "learned"},
    {"norm": "pre", "segments": 2, "segment_pooling": "sum", "positions": "rotary", "tie": "all"},
    {"norm": "post", "segments": 3, "segment_pooling": "sum"},
    {"norm": "pre", "encoder_layers": 0, "decoder_layers": 1},
    {"norm": "pre", "decoder_mixing": "ssru"},
    {"norm": "post", "decoder_mixing": "ssru", "positions": "none", "bias": False, "tie": "all"},
]
SSRU = [changes for changes in VARIANTS if "decoder_mixing" in changes]

every_variant = pytest.mark.parametrize("changes", VARIANTS, ids=lambda each: "-".join(map(str, each.values())))


@every_variant
@torch.no_grad()
def test_teacher_forcing_and_stepping_agree(make, make_inputs, changes):
    model = make(**changes)
    given_ = make_inputs([5, 2, 7], [3, 6, 1])
    target, mask = given_.target % model.head.vocabulary, given_.target_mask
    labels = given_.labels % model.head.vocabulary
    state = model.start(given_.source, given_.source_mask)
    beliefs = []
    for place in range(target.size(1)):
        belief, state = model.step(target[:, : place + 1], state)
        beliefs.append(belief.log_probs())
    stepped = torch.stack(beliefs, 1).gather(-1, labels[..., None])[..., 0]
    taught = model.score(given_.source, given_.source_mask, target, labels, mask)
    torch.testing.assert_close(taught, stepped.masked_fill(~mask, 0.0), **CLOSE)
    loss = model.loss(given_.source, given_.source_mask, target, labels, mask)
    torch.testing.assert_close(loss.nll, -taught.sum(), **CLOSE)
    assert loss.tokens == 10


@every_variant
@torch.no_grad()
def test_padding_changes_nothing(make, make_inputs, changes):
    model = make(**changes)
    small, size = make_inputs([5, 2, 7], [3, 6, 1]), model.head.vocabulary
    args = small.source, small.source_mask, small.target % size, small.labels % size, small.target_mask
    wide = [
        torch.cat([each, each[:, :4] & False if each.dtype == torch.bool else each[:, :4] * 0 + 5], 1) for each in args
    ]
    torch.testing.assert_close(model.score(*wide)[:, : args[2].size(1)], model.score(*args), **CLOSE)
    for row, (source, target) in enumerate([(5, 3), (2, 6), (7, 1)]):
        alone = [each[row : row + 1, : source if place < 2 else target] for place, each in enumerate(args)]
        torch.testing.assert_close(model.score(*alone)[0], model.score(*args)[row, :target], **CLOSE)


@settings(max_examples=13)
@given(pieces=st.lists(st.integers(1, 3), min_size=1, max_size=5), variant=st.sampled_from(VARIANTS[:4] + SSRU))
@torch.no_grad()
def test_any_split_of_the_target_gives_the_same_hidden_states(make, make_inputs, pieces, variant):
    model = make(**variant)
    data = make_inputs([5, 2, 7], [sum(pieces)] * 3)
    target = data.target % model.head.vocabulary
    whole, _ = model.decoder(target, model.start(data.source, data.source_mask))
    state, read = model.start(data.source, data.source_mask), []
    for piece in target.split(pieces, dim=1):
        hidden, state = model.decoder(piece, state)
        read.append(hidden)
    torch.testing.assert_close(torch.cat(read, 1), whole, **CLOSE)


@pytest.mark.parametrize("mixing", ["attention", "ssru"])
@settings(max_examples=11)
@given(data=st.data(), steps=st.integers(1, 4))
@torch.no_grad()
def test_selecting_rows_commutes_with_stepping(make, make_inputs, mixing, data, steps):
    """Rows kept, repeated, dropped or reordered, in even and uneven groups, continue as they would alone."""
    model = make(norm="pre", positions="rotary", decoder_mixing=mixing)
    given_ = make_inputs([5, 2, 7], [1, 1, 1], seed=steps)
    state = model.start(given_.source, given_.source_mask)
    owner, prefix = torch.arange(3), torch.ones(3, 0, dtype=torch.long)
    for _ in range(steps):
        token = torch.tensor(data.draw(st.lists(st.integers(0, 18), min_size=len(owner), max_size=len(owner))))
        prefix = torch.cat([prefix, token[:, None]], 1)
        hidden, state = model.decoder(token[:, None], state)
        rows = data.draw(st.lists(st.integers(0, len(owner) - 1), min_size=1, max_size=7))
        rows = torch.tensor(data.draw(st.sampled_from([rows, sorted(rows), sorted(rows * 2)])))
        state, owner, prefix, hidden = state.select(rows), owner[rows], prefix[rows], hidden[rows]
        assert state.rows == len(rows)
        fresh = model.start(given_.source[owner], given_.source_mask[owner])
        expected, _ = model.decoder(prefix, fresh)
        torch.testing.assert_close(hidden[:, -1], expected[:, -1], **CLOSE)


def test_a_state_used_twice_is_stale(make, make_inputs):
    model, data = make(), make_inputs([5, 2], [4, 4])
    state = model.start(data.source, data.source_mask)
    model.decoder(data.target[:, :1], state)
    for use in (lambda: model.decoder(data.target[:, :1], state), lambda: state.select(torch.tensor([0]))):
        with pytest.raises(StaleStateError, match=r"^this decoder state was used already; branch with "):
            use()


@pytest.mark.parametrize("mixing", ["attention", "ssru"])
@torch.no_grad()
def test_a_branch_does_not_affect_its_origin(make, make_inputs, mixing):
    model, data = make(decoder_mixing=mixing), make_inputs([5, 2], [4, 4])
    _, state = model.decoder(data.target[:, :2], model.start(data.source, data.source_mask))
    branch = state.select(torch.tensor([1, 0]))
    model.decoder(data.target[:, 2:3] * 0, branch)
    hidden, _ = model.decoder(data.target[:, 2:], state)
    whole, _ = model.decoder(data.target, model.start(data.source, data.source_mask))
    torch.testing.assert_close(hidden, whole[:, 2:], **CLOSE)


@pytest.mark.parametrize("pieces", [[6], [1, 3, 2]])
@pytest.mark.parametrize("mixing", ["attention", "ssru"])
def test_gradients_through_the_state_equal_those_of_teacher_forcing(make, make_inputs, mixing, pieces):
    model = make(norm="pre", positions="rotary", decoder_mixing=mixing)
    data = make_inputs([5, 2, 7], [3, 6, 1])
    state, read = model.start(data.source, data.source_mask), []
    for piece in data.target.split(pieces, dim=1):
        hidden, state = model.decoder(piece, state)
        read.append(hidden)
    picked = torch.cat(read, 1)[data.target_mask]
    nll = -model.head.score(picked, data.labels[data.target_mask], None).sum()
    stepped = torch.autograd.grad(nll, list(model.parameters()))
    taught = torch.autograd.grad(model.loss(*data.all()).objective, list(model.parameters()))
    for left, right in zip(stepped, taught, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mixing", ["attention", "ssru"])
@pytest.mark.parametrize("rows", [[0, 4], [4, 0], [0]])
def test_an_empty_source_or_target_is_finite_and_reads_no_padding(make, make_inputs, rows, mixing):
    model = make(norm="pre", decoder_mixing=mixing)
    data = make_inputs([4] * len(rows), [3] * len(rows))
    mask = torch.arange(4)[None] < torch.tensor(rows)[:, None]
    results = []
    for source in (data.source, torch.where(mask, data.source, 0)):
        loss = model.loss(source, mask, data.target, data.labels, data.target_mask)
        gradients = torch.autograd.grad(loss.objective, list(model.parameters()), allow_unused=True)
        results.append([loss.objective, *(each for each in gradients if each is not None)])
        assert all(bool(each.isfinite().all()) for each in results[-1])
        with torch.no_grad():
            belief, _ = model.step(data.target[:, :1], model.start(source, mask))
            results[-1].append(belief.log_probs())
            taught = model.score(source, mask, data.target[:, :1], data.labels[:, :1], data.target_mask[:, :1])
        torch.testing.assert_close(taught, belief.log_prob_of(data.labels[:, :1]), **CLOSE)
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("mixing", ["attention", "ssru"])
def test_a_batch_without_labels_has_a_loss_of_zero(make, make_inputs, mixing):
    model, data = make(decoder_mixing=mixing), make_inputs([4, 2], [3, 3])
    loss = model.loss(data.source, data.source_mask, data.target, data.labels, torch.zeros_like(data.target_mask))
    assert (float(loss.objective.detach()), float(loss.nll), loss.tokens) == (0.0, 0.0, 0)


@torch.no_grad()
def test_the_segment_of_a_token_counts_the_separators_before_it(make):
    embedding = make(segments=3).encoder.embedding
    ids = torch.tensor([[5, 3, 3, 5, 5, 3, 5]])
    assert embedding.segments_of(ids).tolist() == [[0, 0, 1, 2, 2, 2, 2]]
