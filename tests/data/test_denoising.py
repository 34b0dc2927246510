"""Noise of texts: what is masked and moved, the same for the same seed, and nothing that a text says is lost."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.config.data import DataSettings, DenoisingSettings
from translume.config.tokenizer import TokenizerSettings
from translume.data.denoising import Noise, masks_of
from translume.data.findings import Finder
from translume.data.pairs import origins, read_pairs
from translume.data.plan import BatchPlan
from translume.data.streaming import open_stream
from translume.data.token_cache import prepare
from translume.errors import SettingsError
from translume.text import Tokenizer, train_tokenizer

TEXTS = ["a dog runs . a cat sleeps ! who eats ?", "the old man", "yes", "one two three four five six seven " * 3]


def learned(kind: str, **settings: object) -> Tokenizer:
    """Return a tokenizer of words with the masks of one kind of noise."""
    plain = train_tokenizer(TokenizerSettings(kind="word", size=53, unknown="token", **settings), TEXTS)
    return Tokenizer(plain.vocabulary.with_silent(masks_of(DenoisingSettings(kind=kind))))


TOKENIZERS = {kind: learned(kind) for kind in ("infill", "spans")}


def noise(**settings: object) -> Noise:
    data = DataSettings(objective="denoise", denoising=DenoisingSettings(**settings))
    tokenizer = TOKENIZERS[data.denoising.kind]
    found = Noise.from_settings(data, tokenizer, tokenizer)
    assert found is not None
    return found


IDS = st.lists(st.integers(4, 20), min_size=1, max_size=67)
SEEDS = st.integers(0, 99)


@given(IDS, st.floats(0, 0.9), st.floats(1, 11), SEEDS)
def test_spans_and_sentinels_together_are_the_text(ids: list[int], rate: float, span: float, seed: int) -> None:
    made = noise(kind="spans", rate=rate, span=span)
    noisy, spans = made.draw(np.array(ids), np.random.default_rng(seed))
    masked = min(int(np.ceil(rate * len(ids))), len(ids) - 1)
    sentinels = [id_ for id_ in noisy if id_ in made.masks]
    assert sentinels == [id_ for id_ in spans if id_ in made.masks] == list(made.masks[: len(sentinels)])
    assert len(spans) - len(sentinels) == masked
    parts: dict[int, list[int]] = {}
    last = list[int]()
    for id_ in spans:
        if id_ in made.masks:
            last = parts.setdefault(id_, [])
        else:
            last.append(id_)
    assert list(chain.from_iterable(parts.get(id_, [id_]) for id_ in noisy)) == ids
    assert all(parts.values())
    assert max(len(noisy), len(spans)) <= len(ids)


@given(IDS, st.floats(0, 0.9), st.floats(1, 11), SEEDS)
def test_infilling_leaves_the_other_tokens_in_their_order(ids: list[int], rate: float, span: float, seed: int) -> None:
    made = noise(rate=rate, span=span)
    (mask,) = made.masks
    noisy, _ = made.draw(np.array(ids), np.random.default_rng(seed))
    left = [id_ for id_ in noisy if id_ != mask]
    assert len(ids) - len(left) == min(int(np.ceil(rate * len(ids))), len(ids) - 1)
    rest = iter(ids)
    assert all(id_ in rest for id_ in left)
    assert len(noisy) <= len(ids)


@given(st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=5), min_size=1, max_size=7), SEEDS)
def test_permuted_sentences_stay_whole(sentences: list[list[int]], seed: int) -> None:
    made = noise(rate=0, permute=True)
    (stop,) = TOKENIZERS["infill"].encode(".")
    others = [id_ for id_ in range(4, 20) if not made.stops[id_]]
    sentences = [[*(others[id_ - 4] for id_ in each), stop] for each in sentences]
    noisy, _ = made.draw(np.array([*chain.from_iterable(sentences)]), np.random.default_rng(seed))
    found = " ".join(map(str, noisy)).split(f" {stop}")
    assert Counter(text.strip() for text in found[:-1]) == Counter(" ".join(map(str, each[:-1])) for each in sentences)


def test_means_are_those_published() -> None:
    ids, generator = np.full(1000, 5), np.random.default_rng(1)
    for kind, rate in (("infill", 0.3), ("spans", 0.15)):
        made = noise(kind=kind)
        drawn = [made.draw(ids, generator)[0] for _ in range(40)]
        masks = [sum(id_ in made.masks for id_ in each) for each in drawn]
        assert len(drawn[0]) - masks[0] == round(1000 * (1 - rate))
        assert np.mean(masks) == pytest.approx(1000 * rate / 3, rel=0.05)


def test_a_typed_mask_is_text_and_masks_add_nothing_to_one() -> None:
    for settings in ({"kind": "word"}, {"kind": "bpe"}, {"kind": "unigram"}, {"kind": "character"}, {"kind": "byte"}):
        texts = ["<mask> x <extra_id_0>"] * 9
        plain = train_tokenizer(TokenizerSettings(size=320, **settings), texts)
        for kind in ("infill", "spans"):
            grown = Tokenizer(plain.vocabulary.with_silent(masks_of(DenoisingSettings(kind=kind))))
            assert grown.encode(texts[0]) == plain.encode(texts[0])
            assert grown.decode([*grown.vocabulary.silent, *grown.encode(texts[0])]) == grown.normalise(texts[0])
            assert Tokenizer.from_json(grown.to_json()).to_json() == grown.to_json()


def files(write, lines: Sequence[str] = TEXTS * 5, **settings: object) -> DataSettings:
    path = write("text", lines)
    return DataSettings(objective="denoise", train=(path,), valid=(path,), **settings)


def sources(plan: BatchPlan) -> dict[int, list[int]]:
    return {line: row.tolist() for batch in plan.batches() for line, row in zip(batch.lines, batch.source, strict=True)}


def test_noise_is_drawn_anew_in_each_epoch_by_the_seed_and_the_text(write, tmp_path) -> None:
    tokenizer = TOKENIZERS["infill"]
    corpus = prepare(files(write), tokenizer, tokenizer, tmp_path, split="train")

    def plan(seed: int, epoch: int) -> BatchPlan:
        return BatchPlan(corpus, max_tokens=53, seed=seed, epoch=epoch)

    first = list(plan(1, 0).batches())
    again = [plan(1, 0).batch(index) for index in range(len(first))]
    assert all(torch.equal(one.source, two.source) for one, two in zip(first, again, strict=True))
    assert sources(plan(1, 0)) != sources(plan(1, 1)) != sources(plan(2, 1))
    targets = {tuple(row[mask].tolist()) for b in first for row, mask in zip(b.labels, b.target_mask, strict=True)}
    assert targets == {(*tokenizer.encode(text), tokenizer.specials.eos) for text in TEXTS}


def test_a_stream_of_texts_is_noisy_too(write) -> None:
    tokenizer = TOKENIZERS["spans"]
    data = files(write, streaming=True, denoising=DenoisingSettings(kind="spans"))
    stream = open_stream(data, tokenizer, tokenizer, seed=1, max_positions=(97, 97), language_tags="none")
    rows = sources(BatchPlan(stream.sample, max_tokens=53, seed=1, epoch=0))
    assert any(tokenizer.vocabulary.silent & set(row) for row in rows.values())


def test_empty_texts_are_counted(write, tmp_path) -> None:
    tokenizer = TOKENIZERS["infill"]
    found = prepare(files(write, [*TEXTS, "", " "]), tokenizer, tokenizer, tmp_path, split="train").account
    assert (found.read, found.used, sum(found.dropped.values())) == (6, 4, 2)


def test_texts_are_no_identical_sides(write) -> None:
    data = files(write, ["a dog", "cats", "a dog"])
    finder = Finder(data)
    finder.look(list(read_pairs(data, "train")))
    found = finder.findings().counts
    assert {kind: count for kind, count in found.items() if count} == {
        "duplicate pairs": 1, "pairs also in the validation data": 3,
    }  # fmt: skip


def test_what_does_not_fit_is_one_line(write, tmp_path) -> None:
    plain = train_tokenizer(TokenizerSettings(kind="word", size=53, unknown="token"), TEXTS)
    with pytest.raises(SettingsError) as caught:
        prepare(files(write), plain, plain, tmp_path, split="train")
    assert str(caught.value) == (
        "data.objective: found 'denoise' with a vocabulary without <mask>; expected one that was learned with "
        "data.denoising.kind = 'infill'"
    )
    spans, other = TOKENIZERS["spans"], learned("spans", lowercase=True)
    with pytest.raises(SettingsError) as caught:
        prepare(files(write, denoising=DenoisingSettings(kind="spans")), spans, other, tmp_path, split="train")
    assert str(caught.value) == (
        "data.denoising.kind: 'spans' needs one vocabulary for both sides, expected tokenizer.shared = true"
    )
    with pytest.raises(SettingsError) as caught:
        origins(DataSettings(objective="denoise", train_source=("a",), train_target=("b",)), "train")
    assert str(caught.value) == "data.train_source: data.objective = 'denoise' reads documents; expected data.train"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0.95}, "rate is 0.95, expected a number from 0 to 0.9, or 'auto'"),
        ({"kind": "spans", "permute": True}, "permute is true with kind = 'spans', expected false; or kind = 'infill'"),
    ],
)
def test_settings_that_contradict_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        DenoisingSettings(**values)
    assert str(caught.value) == f"data.denoising: {message}"
