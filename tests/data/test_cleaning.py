"""Cleaning: every pair read is used, held out or counted under one reason; duplicates and scripts are found."""

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.config.data import CleaningSettings
from translume.data.cleaning import Account, Seen, hashes
from translume.data.pairs import Pair
from translume.data.scripts import SCRIPTS, mostly_in
from translume.data.streaming import open_stream
from translume.data.token_cache import prepare
from translume.errors import SettingsError
from translume.text import Labels

RULES = CleaningSettings(max_tokens=9, max_ratio=3, identical=True, duplicates=True, source_script="latin")
SIDE = st.text("ab я", max_size=11)


@given(pairs=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=40), valid=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_pair_read_is_accounted_for(corpus_files, by_bytes, tmp_path, pairs, valid):
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)  # files of one size may come within a tick of their dates
    pairs = [("good", "better"), *pairs, ("best", "of all")]
    chosen = corpus_files(pairs, valid=valid, cleaning=RULES)
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path / "cache", split="train")
    account = corpus.account
    assert account.read == len(pairs) == account.used + account.held_out + sum(account.dropped.values())
    assert corpus.pairs == account.used
    assert set(account.examples) == set(account.dropped)


def test_each_rule_drops_what_it_names(corpus_files, by_bytes, tmp_path):
    good = [("aaa", "bbb"), ("aaaa", "bb")]
    pairs = {
        "empty": [(" ", "b"), ("a", "\u3000")],
        "identical sides": [("abc", "abc ")],
        "wrong script": [("яяя", "b b"), ("яяa", "bb b")],
        "duplicate": [good[0], good[1], good[0]],
        "too long": [("a" * 10, "b" * 8), ("a" * 8, "b" * 10)],
        "length ratio": [("a", "bbbb"), ("aaaaaaa", "bb")],
    }
    everything = [*good, *(pair for group in pairs.values() for pair in group)]
    corpus = prepare(corpus_files(everything, cleaning=RULES), by_bytes, by_bytes, tmp_path / "cache", split="train")
    assert corpus.account.dropped == {reason: len(group) for reason, group in pairs.items()}
    found = {reason: (pair.source, pair.target) for reason, pair in corpus.account.examples.items()}
    assert found == {reason: group[0] for reason, group in pairs.items()}
    assert corpus.pairs == 2
    assert corpus.account.summary().splitlines()[:3] == [
        "14 pairs read, 2 used, 12 dropped",
        "  empty: 2",
        "  identical sides: 1",
    ]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_text_without_a_label_is_dropped_with_that_reason(corpus_files, by_bytes, tmp_path, split):
    labels = Labels(("good", "new"), separator="+")
    pairs = [("a", "good"), ("b", " "), ("c", " + "), (" ", "new"), (" ", ""), ("d", "new+good"), ("e", "")]
    corpus = prepare(
        corpus_files(pairs).model_copy(update={"task": "classification"}),
        by_bytes,
        labels,
        tmp_path / "cache",
        split=split,
    )
    assert corpus.account.dropped == {"empty": 2, "without a label": 3}
    assert corpus.account.examples["without a label"].source == "b"
    assert corpus.pairs == 2


@pytest.mark.parametrize(("keep", "kept"), [("keep_first", "abcd"), ("keep_last", "cdef")])
def test_sources_of_any_task_may_be_cut_and_are_counted(corpus_files, by_bytes, tmp_path, keep, kept):
    rules = CleaningSettings(max_tokens=4, too_long=keep)
    data = corpus_files([("abcdef", "x"), ("ab", "y"), ("ab", "xxxxx")], cleaning=rules)
    for split in ("train", "valid"):
        found = prepare(data, by_bytes, by_bytes, tmp_path / "cache", split=split)
        assert by_bytes.decode(found.source(0).tolist()) == kept
        account = "3 pairs read, 2 used, 1 dropped, 1 truncated\n  too long: 1"
        assert found.account.summary() == account


def test_validation_pairs_are_dropped_only_if_too_long(corpus_files, by_bytes, tmp_path):
    pairs = [("aaa", "aaa"), ("aaa", "aaa"), ("a", "b" * 20), ("a", ""), ("a" * 30, "b")]
    chosen = corpus_files(pairs, cleaning=RULES)
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path, split="valid", max_positions=(21, 21))
    assert corpus.account.dropped == {"empty": 1, "too long": 1}
    assert corpus.pairs == 3


@pytest.mark.parametrize(
    ("too_long", "account"),
    [
        ("drop", "4 pairs read, 1 used, 3 dropped\n  too long: 3"),
        ("keep_first", "4 pairs read, 2 used, 2 dropped, 1 truncated\n  too long: 2"),
    ],
)
def test_sources_and_targets_have_limits_of_their_own(corpus_files, by_bytes, tmp_path, too_long, account):
    pairs = [("a" * 28, "b" * 6), ("a" * 29, "b" * 6), ("a" * 28, "b" * 7), ("a" * 29, "b" * 7)]
    chosen, limits = corpus_files(pairs, cleaning=CleaningSettings(too_long=too_long)), {"max_positions": (29, 7)}
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path, split="train", **limits)
    assert corpus.account.summary() == account
    assert corpus.limits == (28, 6)
    stream = open_stream(chosen, by_bytes, by_bytes, seed=1, **limits)
    assert stream.sample.account.summary() == account
    assert stream.widest == 29
    assert prepare(chosen, by_bytes, by_bytes, tmp_path, split="train", max_positions=(30, 7)).digest != corpus.digest


def test_end_token_counts_towards_max_positions(corpus_files, by_bytes, tmp_path):
    chosen = corpus_files([("a" * 9, "b"), ("a" * 8, "b")])
    corpus = prepare(chosen, by_bytes, by_bytes, tmp_path, split="train", max_positions=(9, 9))
    assert corpus.account.dropped == {"too long": 1}


def test_account_with_lost_pairs_raises_value_error():
    with pytest.raises(ValueError, match=r"^pairs were lost"):
        Account.total([Account(read=3, used=1, held_out=1)])


def test_an_account_survives_plain_values():
    account = Account(read=3, used=2)
    account.drop("too long", Pair(source="x" * 500, target="y", file="a.en", line=7))
    assert Account.from_dict(account.to_dict()) == account
    assert account.summary(examples=True).splitlines()[2] == f"    a.en:7: '{'x' * 200}…' | 'y'"


@given(st.lists(st.lists(st.integers(0, 20), max_size=30), max_size=20))
def test_seen_agrees_with_a_set(batches):
    seen, known = Seen(), set()
    for batch in batches:
        wanted = []
        for value in batch:
            wanted.append(value in known)
            known.add(value)
        assert seen.add(np.array(batch, np.uint64)).tolist() == wanted
    assert len(seen) == len(known)


def test_seen_keeps_eight_bytes_a_text():
    seen = Seen()
    for begin in range(0, 200_000, 1000):
        seen.add(hashes((str(i) for i in range(begin, begin + 1000)), 1000))
    assert len(seen) == 200_000
    assert sum(run.nbytes for run in seen._runs) == 8 * 200_000
    assert len(seen._runs) < 9


def test_scripts_are_distinguished():
    samples = {
        "latin": "Übergrößenträger, 12 Stück!",
        "greek": "Το γρήγορο καφέ αλεπού",
        "cyrillic": "Быстрая коричневая лиса",
        "armenian": "Բարեւ աշխարհ",
        "hebrew": "שלום עולם",
        "arabic": "مرحبا بالعالم",
        "devanagari": "नमस्ते दुनिया",
        "thai": "สวัสดีชาวโลก",
        "georgian": "გამარჯობა მსოფლიო",
        "han": "你好,世界。",
        "hiragana": "こんにちは",
        "katakana": "コンニチハ",
        "hangul": "안녕하세요 세계",
    }
    for script in samples:
        found = mostly_in(script, list(samples.values()))
        assert [name for name, within in zip(samples, found, strict=True) if within] == [script]
    mixed = ["日本語のテキストです", "你好", "hello"]
    assert mostly_in("japanese", mixed).tolist() == [True, True, False]


def test_text_without_letters_passes_every_script_rule():
    for script in SCRIPTS:
        assert mostly_in(script, ["12:30", "", "😀 … — 5 €", "x" if script == "latin" else "7"]).all()


def test_script_rule_needs_half_of_the_letters():
    assert mostly_in("latin", ["abяя", "aяя"]).tolist() == [True, False]


def test_an_unknown_script_names_the_nearest():
    with pytest.raises(SettingsError, match=r"^data.cleaning: no script 'lattin'; did you mean 'latin'\?$"):
        mostly_in("lattin", ["a"])
