"""Distributions at each token of given targets come with their pair and position, for any chunk size."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.translator.scoring import ScoredPair, beliefs_of_pairs

PAIRS = [("abc", "ca"), ("", "abcab"), ("b", ""), ("abcabc", "bbb")]


@settings(max_examples=12)
@given(rows=st.integers(1, 20), max_tokens=st.integers(1, 40))
def test_every_token_is_scored_once_with_its_pair_and_position(make, rows, max_tokens):
    translator = make()
    pairs = [ScoredPair(place="", source=source, target=target) for source, target in PAIRS]
    found = list(beliefs_of_pairs(translator.checkpoint, pairs, max_tokens, rows))
    assert all(judged.belief.rows == len(judged.labels) <= rows for judged in found)
    columns = [
        (each.pairs, each.places, each.labels, each.belief.log_prob_of(each.labels[:, None])[:, 0]) for each in found
    ]
    which, places, labels, log_probs = (torch.cat(each).tolist() for each in zip(*columns, strict=True))
    tokenizer, wanted = translator.checkpoint.target_tokenizer, {}
    for pair, (source, target) in enumerate(PAIRS):
        ids = [*tokenizer.encode(target), tokenizer.specials.eos]
        for place, scored in enumerate(zip(ids, translator.score(source, target).token_log_probs, strict=True)):
            wanted[pair, place] = scored
    assert len(which) == len(wanted)
    for pair, place, id_, log_prob in zip(which, places, labels, log_probs, strict=True):
        assert wanted[pair, place] == (id_, pytest.approx(log_prob, abs=1e-5))
    assert all(b == 0 or b == a + 1 for a, b in pairwise(places)), "each from its first token on"
