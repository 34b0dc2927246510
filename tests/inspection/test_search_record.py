"""A beam record against a reference search in plain Python."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests.errors import raises

import translume
from translume.belief import Bias
from translume.errors import TranslationError
from translume.inspection import search_record

SOURCE = "the cat sat."


def reference_search(translator, width):
    """Beam search over tables of log-probabilities, in plain Python: (nodes by tokens, survivors by step, finished)."""
    checkpoint, settings = translator.checkpoint, translator.config.decoding
    specials = checkpoint.target_tokenizer.specials
    ids = checkpoint.source_tokenizer.encode(SOURCE)
    source = torch.tensor([[*ids, specials.eos]])
    limit = min(int(settings.max_length_ratio * len(ids)) + settings.max_length_extra, 41)
    model = checkpoint.model

    def beliefs(tokens):
        with torch.no_grad():
            state = model.start(source, torch.ones_like(source, dtype=torch.bool))
            belief, _ = model.step(torch.tensor([[specials.bos, *tokens]]), state)
        return belief.log_probs()[0].tolist()

    live, looked_at, survivors, finished = {(): 0.0}, {}, [], {}
    for length in range(1, limit + 1):
        candidates = {}
        for tokens, total in live.items():
            row = beliefs(tokens)
            for id_ in range(len(row)):
                if id_ not in (specials.pad, specials.bos):
                    candidates[(*tokens, id_)] = total + row[id_]
        ranked = sorted(candidates, key=lambda each: -candidates[each])[: 2 * width]
        looked_at |= {each: candidates[each] for each in ranked}
        for each in ranked[:width]:
            if each[-1] == specials.eos:
                finished[each] = candidates[each] / length
        live = {each: candidates[each] for each in ranked if each[-1] != specials.eos}
        live = dict(list(live.items())[:width])
        survivors.append(list(live))
        if length == limit:
            finished |= {each: total / length for each, total in live.items()}
        best = sorted(finished.values(), reverse=True)[:1]
        bound = max(live.values()) / limit
        bound = max(bound, max(live.values()) / (length + 1))
        if best and bound <= best[0]:
            break
    return looked_at, survivors, finished


def tokens_by_node(record):
    """The tokens of each node."""
    found = {}
    for node in record.nodes:
        found[node.id] = (*(found[node.parent] if node.parent is not None else ()), node.token)
    return found


@pytest.mark.parametrize("width", [2, 3])
def test_a_record_equals_the_reference_search(make, width):
    translator = make(options=(f"decoding.beam={width}",))
    record = translume.record_beam(translator, SOURCE)
    looked_at, survivors, finished = reference_search(translator, width)
    tokens = tokens_by_node(record)
    assert {tokens[node.id] for node in record.nodes} == set(looked_at)
    for node in record.nodes:
        assert node.total == node.log_prob == pytest.approx(looked_at[tokens[node.id]], abs=1e-4)
        assert node.length == len(tokens[node.id]) == node.divisor
        assert node.score == pytest.approx(node.total / node.length)
        parent = 0.0 if node.parent is None else record.nodes[node.parent].log_prob
        assert node.log_p == pytest.approx(node.log_prob - parent, abs=1e-6)
    for length, expected in enumerate(survivors, start=1):
        stood = [node for node in record.nodes if node.length == length and node.place is not None]
        assert [tokens[node.id] for node in sorted(stood, key=lambda node: node.place)] == expected
    assert {target.ids: pytest.approx(target.score, abs=1e-5) for target in record.finished} == finished


def allowed_fates(record):
    """The possible fates of each node, from the tree alone."""
    kept = {node.parent for node in record.nodes if node.place is not None or node.fate in ("finished", "best")}
    ended = {target.node for target in record.finished}
    last = max(node.length for node in record.nodes)
    for node in record.nodes:
        if node.id == record.finished[0].node:
            yield node, {"best", "length"}
        elif node.id in ended:
            yield node, {"finished"}
        elif node.place is None:
            yield node, {"outscored"}
        elif node.id in kept:
            yield node, {"continued"}
        else:
            yield node, {"stopped"} if node.length == last else {"outscored", "forbidden"}


@pytest.mark.parametrize(
    "options",
    [
        ("decoding.beam=4",),
        ("decoding.beam=1",),
        ("decoding.beam=4", "decoding.min_length=3"),
        ("decoding.beam=4", "decoding.max_length=4", "decoding.min_length=4"),
        ("decoding.beam=4", "decoding.stop=first"),
        ("decoding.beam=4", "decoding.coverage_penalty=0.3"),
        ("decoding.beam=3", "decoding.repetition_penalty=1.5", "decoding.no_repeat_ngram=2"),
        ("decoding.strategy=sampling", "decoding.samples=4"),
        ("decoding.strategy=stochastic", "decoding.samples=4"),
        ("decoding.strategy=diverse", "decoding.beam=4", "decoding.groups=2"),
    ],
    ids=" ".join,
)
def test_every_fate_agrees_with_the_tree(make, options):
    translator = make(options=options)
    record = translume.record_beam(translator, SOURCE)
    for node, allowed in allowed_fates(record):
        assert node.fate in allowed, (node, allowed)
    result = translator.translate(SOURCE).hypotheses[0]
    best = record.finished[0]
    assert (best.ids, best.finished_by) == (result.ids, result.finished_by)
    assert (best.log_prob, best.score) == (pytest.approx(result.log_prob), pytest.approx(result.score))
    node = record.nodes[best.node]
    assert node.fate == ("best" if best.finished_by == "eos" else "length")
    assert node.score == pytest.approx(node.total / node.divisor + node.coverage)
    assert [target.score for target in record.finished] == sorted((t.score for t in record.finished), reverse=True)


def test_a_dead_end_by_rules_has_the_fate_forbidden(make):
    translator = make(options=("decoding.beam=2",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_record.SentenceSearch, "prepare", with_dead_end(search_record.SentenceSearch.prepare))
        record = translume.record_beam(translator, SOURCE)
    assert Counter(node.fate for node in record.nodes)["forbidden"] == 1


def with_dead_end(prepare):
    """Make every hypothesis that begins with the second best token a dead end."""

    def prepare_with_dead_end(self, prefixes=((),), *, greedy=False):
        ready = prepare(self, prefixes, greedy=greedy)

        def trap(tokens, context):
            if context.step == 1 and len(tokens) > 1:
                allowed = torch.ones(len(tokens), context.size, dtype=torch.bool)
                allowed[1] = False
                return Bias.only(allowed)
            return None

        return replace(ready, rules=[*ready.rules[:1], trap])

    return prepare_with_dead_end


def settings_of(translator, *options):
    return translator.config.change(*options).decoding


def test_greedy_search_is_compared_with_the_beam(backwards, words):
    found: set[bool] = set()
    for word in words:
        if len(found) == 2:
            break
        record = translume.record_beam(backwards, word, settings=settings_of(backwards, "decoding.beam=5"))
        greedy = backwards.translate(word, beam=1).hypotheses[0]
        assert (record.greedy.ids, record.greedy.score) == (greedy.ids, pytest.approx(greedy.score))
        assert record.beat_greedy == (record.finished[0].score > record.greedy.score)
        found.add(record.beat_greedy)
    assert found == {True, False}
    alone = translume.record_beam(backwards, words[0], settings=settings_of(backwards, "decoding.beam=1"))
    assert not alone.beat_greedy
    assert alone.greedy.node == alone.finished[0].node is not None


def test_a_reference_distinguishes_search_errors_from_model_errors(backwards, words):
    options = ("decoding.length_penalty=0.0",)
    narrow, wide = (settings_of(backwards, *options, f"decoding.beam={beam}") for beam in (1, 13))
    verdicts = set()
    for word in words[:8]:
        better, found = (backwards.translate(word, settings=settings) for settings in (wide, narrow))
        record = translume.record_beam(backwards, word, reference=better.text, settings=narrow)
        assert record.reference.score == pytest.approx(backwards.score(word, better.text).log_prob, abs=1e-4)
        missed = better.hypotheses[0].score > found.hypotheses[0].score + 1e-4
        assert record.verdict == ("search error" if missed else "same")
        other = translume.record_beam(backwards, word, reference=found.text, settings=wide)
        assert other.verdict == ("model error" if missed else "same")
        verdicts.add(record.verdict)
    assert verdicts == {"same", "search error"}
    assert translume.record_beam(backwards, words[0]).verdict == ""


def test_a_reference_that_rules_forbid_has_no_score(make):
    translator = make(options=("decoding.min_length=9",))
    record = translume.record_beam(translator, SOURCE, reference="le chat")
    assert (record.verdict, record.reference.score, record.reference.total) == ("forbidden", None, -math.inf)
    assert record.reference.log_prob == pytest.approx(translator.score(SOURCE, "le chat").log_prob, abs=1e-4)


def test_a_search_without_a_record_does_not_use_the_recording_strategy(make, monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(search_record.RecordingStrategy, "choose", refuse)
    assert make().translate(SOURCE).text
    with pytest.raises(AssertionError):
        translume.record_beam(make(), SOURCE)


@pytest.mark.parametrize(
    ("source", "reference", "message"),
    [
        ("", None, "source: found a blank text, expected a sentence"),
        ("a", "b" * 41, "reference: found 42 tokens with EOS, expected at most 41; inspect one sentence at a time"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(make, source, reference, message):
    with raises(TranslationError, message):
        translume.record_beam(make(), source, reference=reference)
