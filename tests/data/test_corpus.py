"""Counts of target tokens are read from the token cache."""

import json
import shutil
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.config.data import CleaningSettings
from translume.config.tokenizer import TokenizerSettings
from translume.data import corpus as corpus_module
from translume.data.corpus import cached_target_counts
from translume.data.pairs import read_pairs
from translume.data.token_cache import prepare
from translume.text import train_tokenizer

SIDE = st.text("abc", min_size=1, max_size=7)
PAIRS = [("source", "target"), ("a", "b"), ("", "dropped"), ("abc", "cab")]


@given(pairs=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=40), block=st.integers(1, 41))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_token_counts_include_end_tokens(corpus_files, by_bytes, tmp_path, monkeypatch, pairs, block):
    monkeypatch.setattr(corpus_module, "_PAIRS", block)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    chosen = corpus_files(pairs)
    prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    found = cached_target_counts(tmp_path / "cache", chosen, (by_bytes, by_bytes))
    wanted = Counter(id_ for pair in read_pairs(chosen, "train") for id_ in by_bytes.encode(pair.target))
    wanted[by_bytes.specials.eos] = len(pairs)
    assert {id_: count for id_, count in enumerate(found.tolist()) if count} == wanted


def test_pairs_that_were_dropped_are_not_counted(corpus_files, by_bytes, tmp_path):
    chosen = corpus_files(PAIRS, cleaning=CleaningSettings())
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    found = cached_target_counts(tmp_path / "cache", chosen, (by_bytes, by_bytes))
    assert (corpus.pairs, found[by_bytes.specials.eos]) == (3, 3)


def test_token_counts_need_the_cache_of_these_files(corpus_files, by_bytes, tmp_path: Path):
    chosen = corpus_files(PAIRS)
    tokenizers = by_bytes, by_bytes
    assert cached_target_counts(tmp_path / "none", chosen, tokenizers) is None
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    others = chosen.model_copy(update={"train_source": ("other.en",)})
    assert cached_target_counts(tmp_path / "cache", others, tokenizers) is None
    none = chosen.model_copy(update={"train_source": (), "train_target": ()})
    assert cached_target_counts(tmp_path / "cache", none, tokenizers) is None
    assert cached_target_counts(tmp_path / "cache", chosen, tokenizers) is not None
    few = train_tokenizer(TokenizerSettings(kind="character", size=10, unknown="token"), ["ab"])
    assert cached_target_counts(tmp_path / "cache", chosen, (few, few)) is None, "ids of another vocabulary"
    index = tmp_path / "cache" / corpus.digest / "index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    for damaged in ("no json", json.dumps({**content, "format": 0}), json.dumps([1])):
        index.write_text(damaged, encoding="utf-8")
        assert cached_target_counts(tmp_path / "cache", chosen, tokenizers) is None
