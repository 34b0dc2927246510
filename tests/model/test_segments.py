"""With `model.segment_pooling` the encoder reads one vector for each segment of a source."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.config import Config, ModelSettings
from translume.errors import SettingsError
from translume.model.embedding import PLACES, SegmentEmbedding

SEPARATOR = 3


@torch.no_grad()
def test_a_segment_is_the_sum_of_its_embeddings_times_the_vectors_of_their_places(make):
    embedding = make(segments=2, segment_pooling="sum").encoder.embedding
    table, factors = embedding.table.weight, embedding.factors
    ids = torch.tensor([[5, 7, SEPARATOR, 7, SEPARATOR, SEPARATOR, 2], [4, SEPARATOR, 11, 13, 0, SEPARATOR, 0]])
    lengths = torch.tensor([[7], [3]])
    vectors, mask = embedding.front(ids, torch.arange(7) < lengths)
    assert mask.tolist() == [[True] * 4, [True, True, False, False]]

    def summed(*tokens):
        return sum(table[token] * factors[place] for place, token in enumerate(tokens))

    wanted = [summed(5, 7, 3), summed(7, 3), summed(3), summed(2), summed(4, 3), summed(11)]
    torch.testing.assert_close(vectors[mask], torch.stack(wanted))
    assert not vectors[~mask].any()
    assert embedding.segments_of(vectors).tolist() == [[0, 1, 1, 1]] * 2
    assert embedding.positions_in(ids[0]).tolist() == [0, 0, 0, 1, 1, 2, 3]


@torch.no_grad()
def test_tokens_after_the_last_place_share_its_vector(make):
    embedding = make(segments=2, segment_pooling="sum").encoder.embedding
    ids = torch.full((1, PLACES + 5), 7)
    vectors, _ = embedding.front(ids, torch.ones_like(ids, dtype=torch.bool))
    wanted = embedding.table.weight[7] * (embedding.factors.sum(0) + 5 * embedding.factors[-1])
    torch.testing.assert_close(vectors[0], wanted[None])


@given(st.lists(st.lists(st.integers(0, 16), min_size=1, max_size=23), min_size=1, max_size=5))
@torch.no_grad()
def test_segments_are_the_same_alone_and_in_a_batch(make, sources):
    embedding = make(segments=2, segment_pooling="sum").encoder.embedding
    longest = max(map(len, sources))
    ids = torch.tensor([[*source, *[SEPARATOR] * (longest - len(source))] for source in sources])
    vectors, mask = embedding.front(ids, torch.arange(longest) < torch.tensor([[len(source)] for source in sources]))
    for source, row, kept in zip(sources, vectors, mask, strict=True):
        alone, whole = embedding.front(torch.tensor([source]), torch.ones(1, len(source), dtype=torch.bool))
        assert whole.all()
        torch.testing.assert_close(row[kept], alone[0], rtol=0, atol=0)
        assert int(kept.sum()) == 1 + source[:-1].count(SEPARATOR)


def test_an_example_has_as_many_positions_as_asked_for(make):
    """Also before separators are marked: then every token is a segment."""
    marked = make(segments=2, segment_pooling="sum")
    unmarked = SegmentEmbedding(17, ModelSettings(width=22, attention_heads=11, segments=2), segments=2)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    for embedding in (marked.encoder.embedding, unmarked):
        assert embedding.front(*embedding.example(mask, torch.Generator()))[1].equal(mask)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "--set: model: segment_pooling is 'sum' with segments 0, expected 1 or more"),
        (
            "model.segments=2 model.head.kind=copy",
            "--set: model.head.kind: 'copy' reads the tokens of a source; model.segment_pooling = 'sum' joins them",
        ),
        (
            "model.segments=2 data.task=classification model.head.kind=classify training.metric=accuracy",
            "--set: model.segment_pooling: found 'sum', must be 'none' for a classifier",
        ),
    ],
)
def test_settings_that_need_every_token_as_a_position_are_refused(settings, message):
    with pytest.raises(SettingsError) as error:
        Config().change("model.segment_pooling=sum", *settings.split())
    assert str(error.value) == message
