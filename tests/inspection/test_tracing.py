"""A trace's numbers equal those of the loss, of forced decoding and of the search."""

import math
from dataclasses import replace

import pytest
import torch
from tests.errors import raises

import translume
from translume.belief import Bias
from translume.config import AdaptiveSettings
from translume.decoding import RuleContext
from translume.decoding.used_distribution import used_log_probs
from translume.errors import SettingsError, TranslationError, TranslumeError
from translume.translator.constraints import build_rules

SOURCE, TARGET = "the cat sat.", "le chat!"
CHEAP = ("terms",)


def steps_of(trace):
    return [step.log_p_model for step in trace.steps]


def forced_log_probs(translator, source, target):
    """Log-probabilities [t, V] of forced decoding, by the step that a search takes, and the labels [t]."""
    checkpoint = translator.checkpoint
    specials = checkpoint.source_tokenizer.specials
    ids = torch.tensor([[*checkpoint.source_tokenizer.encode(source), specials.eos]])
    labels = [*checkpoint.target_tokenizer.encode(target), specials.eos]
    model, found = checkpoint.model, []
    with torch.no_grad():
        state = model.start(ids, torch.ones_like(ids, dtype=torch.bool))
        for length in range(len(labels)):
            belief, state = model.step(torch.tensor([[specials.bos, *labels[:length]]]), state)
            found.append(belief.log_probs()[0].double())
    return torch.stack(found), torch.tensor(labels)


def test_every_step_equals_forced_decoding(translator_of_every_head):
    trace = translume.trace(translator_of_every_head, SOURCE, TARGET, show=CHEAP)
    log_probs, labels = forced_log_probs(translator_of_every_head, SOURCE, TARGET)
    assert [token.id for token in trace.target_tokens] == labels.tolist()
    expected = log_probs.gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(steps_of(trace), dtype=torch.float64), expected, rtol=1e-5, atol=1e-5)
    p = log_probs.exp()
    entropy = -(p * log_probs.masked_fill(p == 0, 0.0)).sum(-1)
    torch.testing.assert_close(torch.tensor([s.entropy for s in trace.steps]).double(), entropy, rtol=1e-4, atol=1e-5)
    for step, row, label in zip(trace.steps, p, labels.tolist(), strict=True):
        others = row.clone()
        others[label] = -1
        assert step.margin == pytest.approx(float(row[label] - others.max()), abs=1e-5)
        near = torch.isclose(row, row[label], rtol=1e-4, atol=0)
        assert (row > row[label])[~near].sum() + 1 <= step.rank <= (row > row[label])[~near].sum() + near.sum()


def test_log_probs_sum_to_those_of_forced_decoding_and_of_the_loss(translator_of_every_head):
    trace = translume.trace(translator_of_every_head, SOURCE, TARGET, show=CHEAP)
    score = translator_of_every_head.score(SOURCE, TARGET)
    assert trace.log_p == pytest.approx(score.log_prob, abs=1e-5 * len(trace.steps))
    assert steps_of(trace) == pytest.approx(list(score.token_log_probs), abs=1e-5)
    model, specials = (
        translator_of_every_head.checkpoint.model,
        translator_of_every_head.checkpoint.source_tokenizer.specials,
    )
    labels = torch.tensor([[token.id for token in trace.target_tokens]])
    given_ = torch.cat([torch.tensor([[specials.bos]]), labels[:, :-1]], 1)
    source = torch.tensor([[token.id for token in trace.source_tokens]])
    masks = [torch.ones_like(each, dtype=torch.bool) for each in (source, given_)]
    loss = model.loss(source, masks[0], given_, labels, masks[1])
    if loss.nll is not None:
        assert -trace.log_p == pytest.approx(float(loss.nll.detach()), abs=1e-5 * len(trace.steps))


def test_candidates_and_tail_sum_to_one(translator_of_every_head):
    trace = translume.trace(translator_of_every_head, SOURCE, TARGET, k=7, show=("lens",))
    tops = [(step.top_used, "p_used") for step in trace.steps]
    if trace.facts.normalised:
        tops += [(step.top_model, "p_model") for step in trace.steps]
        tops += [(layer.top, "p_model") for step in trace.steps for layer in step.lens]
    for top, name in tops:
        masses = [getattr(candidate, name) for candidate in top.candidates]
        assert sum(masses) + top.tail == pytest.approx(1.0, abs=1e-5)
        assert masses == sorted(masses, reverse=True)


def test_no_number_of_any_head_depends_on_k(translator_of_every_head):
    few, many = (
        translume.trace(translator_of_every_head, SOURCE, TARGET, k=k, show=("lens", "prior", "terms")) for k in (2, 13)
    )
    assert few.terms == many.terms
    for step, other in zip(few.steps, many.steps, strict=True):
        for name in ("top_model", "top_used"):
            shown = getattr(step, name).candidates
            assert shown == getattr(other, name).candidates[: len(shown)]
        for layer, same in zip(step.lens, other.lens, strict=True):
            assert replace(layer, top=same.top) == same
        assert replace(step, top_model=other.top_model, top_used=other.top_used, lens=other.lens) == other


def test_no_number_of_any_head_depends_on_other_sentences_in_the_batch(translator_of_every_head):
    pairs = [(SOURCE, TARGET), ("a", "b"), ("quite another sentence.", "und noch ein ganz anderer satz!")]
    for (source, target), score in zip(pairs, translator_of_every_head.score_all(pairs), strict=True):
        trace = translume.trace(translator_of_every_head, source, target, show=())
        assert steps_of(trace) == pytest.approx(list(score.token_log_probs), abs=1e-5)


def test_k_above_the_vocabulary_lists_all_tokens_and_leaves_no_tail(make):
    trace = translume.trace(make(), SOURCE, TARGET, k=1000, show=())
    assert len(trace.steps[0].top_model.candidates) == trace.facts.vocabulary
    assert trace.steps[0].top_model.tail == 0.0


@pytest.mark.parametrize("options", [("decoding.beam=1",), ("decoding.beam=3",), ("decoding.beam=7",)])
def test_the_trace_of_a_translation_has_the_numbers_of_the_search(make, options):
    translator = make(options=options)
    found = translator.translate(SOURCE).hypotheses[0]
    trace = translume.trace(translator, SOURCE, show=())
    assert (trace.origin, trace.target, trace.finished_by) == ("search", found.text, found.finished_by)
    assert [token.id for token in trace.target_tokens] == list(found.ids)
    assert steps_of(trace) == pytest.approx(list(found.token_log_probs), abs=2e-5)
    again = translume.trace(translator, SOURCE, found, show=())
    assert again == replace(trace, origin="given")


def test_a_target_cut_at_the_limit_has_no_end_mark(make):
    translator = make(options=("decoding.max_length=5", "decoding.min_length=5"))
    trace = translume.trace(translator, SOURCE, show=())
    assert (len(trace.steps), trace.finished_by) == (5, "length")
    assert trace.target_tokens[-1].end == len(trace.target)


RULES = (
    "decoding.min_length=6",
    "decoding.no_repeat_ngram=2",
    "decoding.repetition_penalty=1.3",
    'decoding.prefix="abba"',
    "decoding.strategy=sampling",
    "decoding.temperature=0.7",
)


def test_p_used_equals_the_reshaped_and_ruled_distribution_of_a_search_step(make):
    translator = make(options=RULES)
    trace = translume.trace(translator, SOURCE, "abba abb", k=1000, show=())
    log_probs, labels = forced_log_probs(translator, SOURCE, "abba abb")
    checkpoint = translator.checkpoint
    rules = build_rules(checkpoint.target_tokenizer, [True], translator.config.decoding)
    specials = checkpoint.target_tokenizer.specials
    named = set()
    for place, step in enumerate(trace.steps):
        prefix = torch.tensor([[specials.bos, *labels[:place].tolist()]])
        size = log_probs.size(1)
        context = RuleContext(
            eos=specials.eos, size=size, step=place, sentences=torch.tensor([0]), limits=torch.tensor([38])
        )
        said = {type(rule).__name__: rule(prefix, context) for rule in rules}
        bias = Bias.join([each for each in said.values() if each is not None])
        scores = log_probs[place, None] if bias is None else bias.add_to(log_probs[place, None])
        used = (scores / 0.7).softmax(-1)[0]
        for candidate in step.top_used.candidates:
            assert candidate.p_used == pytest.approx(float(used[candidate.id]), abs=1e-6)
            assert candidate.p_model == pytest.approx(float(log_probs[place, candidate.id].exp()), abs=1e-6)
        assert step.p_used == pytest.approx(float(used[labels[place]]), abs=1e-6)
        spoke = [name for name, each in said.items() if each is not None]
        assert [effect.name for effect in step.rules] == spoke
        own = log_probs[place].softmax(-1)
        for effect in step.rules:
            alone = said[effect.name].add_to(log_probs[place, None])[0]
            moved = float((alone.softmax(-1) - own).abs().sum()) / 2
            assert effect.moved == pytest.approx(moved, abs=1e-6)
        named |= set(spoke)
    assert named >= {"ForbidTokens", "MinimumLength", "NoRepeatNgram", "RepetitionPenalty", "TextPrefix"}
    assert trace.facts.temperature == 0.7


def test_p_model_does_not_depend_on_decoding_settings(make):
    plain = translume.trace(make(), SOURCE, "abba abb", show=())
    ruled = translume.trace(make(options=RULES), SOURCE, "abba abb", show=())
    for one, other in zip(plain.steps, ruled.steps, strict=True):
        assert (one.log_p_model, one.entropy, one.rank, one.margin) == (
            other.log_p_model, other.entropy, other.rank, other.margin,
        )  # fmt: skip
        assert [c.p_model for c in one.top_model.candidates] == [c.p_model for c in other.top_model.candidates]


def test_truncation_is_part_of_p_used_and_named(make):
    options = ("decoding.strategy=sampling", "decoding.top_k=2")
    trace = translume.trace(make(options=options), SOURCE, TARGET, show=())
    for step in trace.steps:
        assert len(step.top_used.candidates) == 2
        assert step.top_used.tail == 0.0
        assert sum(candidate.p_used for candidate in step.top_used.candidates) == pytest.approx(1.0)
        assert [effect.name for effect in step.rules] == ["ForbidTokens", "Truncation"]
        (cut,) = (effect.moved for effect in step.rules if effect.name == "Truncation")
        assert 0 < cut < 1


def test_forbidden_tokens_have_no_p_used(make):
    trace = translume.trace(make(options=("decoding.min_length=30",)), SOURCE, TARGET, show=())
    assert trace.steps[-1].p_model > 0
    assert (trace.steps[-1].p_used, trace.steps[-1].log_p_used) == (0.0, -math.inf)
    assert trace.to_dict()["steps"][-1]["log_p_used"] is None


def test_unsmoothing_changes_p_used_and_is_named(make):
    options = ("decoding.unsmooth=0.05",)
    trace = translume.trace(make(options=options), SOURCE, TARGET, show=())
    plain = translume.trace(make(), SOURCE, TARGET, show=())
    assert (trace.facts.reshaped, plain.facts.reshaped) == ("unsmooth", "")
    assert steps_of(trace) == steps_of(plain)
    step, other = trace.steps[0], plain.steps[0]
    best = step.top_used.candidates[0]
    assert best.id == other.top_used.candidates[0].id
    assert best.p_used > other.top_used.candidates[0].p_used


@pytest.mark.parametrize(
    ("options", "epsilon", "left_out"),
    [
        ((), 0.1, 0),
        (("training.label_smoothing=0.0",), 0.0, 0),
        (('training.label_smoothing_over="others"',), 0.1, 1),
        (('training.label_smoothing_over="text"',), 0.1, 3),
    ],
)
def test_the_smoothing_floor_is_the_target_probability_of_every_token(make, options, epsilon, left_out):
    translator = make(options=("training.label_smoothing=0.1", *options))
    trace = translume.trace(translator, SOURCE, TARGET, show=())
    size = len(translator.checkpoint.target_tokenizer)
    assert trace.facts.smoothing_floor == pytest.approx(epsilon / (size - left_out))


def test_a_head_that_defines_smoothing_differently_has_no_floor(make):
    trace = translume.trace(make(AdaptiveSettings, options=("training.label_smoothing=0.1",)), SOURCE, TARGET, show=())
    assert trace.facts.smoothing_floor is None


def test_a_trace_records_device_dtype_norm_head_and_temperature(translator_of_both_norms):
    facts = translume.trace(translator_of_both_norms, SOURCE, TARGET, show=()).facts
    assert (facts.dtype, facts.device, facts.norm) == ("float32", "cpu", translator_of_both_norms.config.model.norm)
    assert (facts.head, facts.normalised, facts.temperature) == ("softmax", True, 1.0)


LONG = "found {} tokens with EOS, expected at most 41; inspect one sentence at a time"


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (("  ",), {}, "source: found a blank text, expected a sentence"),
        (("a" * 41,), {}, "source: " + LONG.format(42)),
        (("a", "b" * 50), {}, "target: " + LONG.format(51)),
        (("a",), {"k": 0}, "k: found 0, expected at least 1"),
        (("a",), {"show": ("atention",)}, "show: found 'atention'; did you mean 'attention'?"),
    ],
)
def test_invalid_requests_are_refused_in_one_line(make, words, options, message):
    with raises(TranslumeError, message):
        translume.trace(make(), *words, **options)


def test_joined_targets_and_ensembles_are_refused(make):
    joined = replace(make().translate("a").hypotheses[0], ids=(5, 2, 6, 2))
    with pytest.raises(TranslationError) as refused:
        translume.trace(make(), "a", joined)
    wanted = (
        "target: the hypothesis was joined from several parts; expected one of a single sentence; "
        'split = "never" translates a text as one'
    )
    assert str(refused.value) == wanted
    with pytest.raises(SettingsError) as error:
        translume.trace(make().ensemble_with(make()), "a")
    wanted = "inspection: found an ensemble of 2 models, expected one model; inspect each model separately"
    assert str(error.value) == wanted


def test_unnormalised_scores_are_normalised_for_p_used(translator_of_every_head):
    trace = translume.trace(translator_of_every_head, SOURCE, TARGET, show=())
    belief = forced_log_probs(translator_of_every_head, SOURCE, TARGET)[0]

    class Row:
        def log_probs(self):
            return belief

    used = used_log_probs(Row(), Bias.forbid(*torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]])))
    assert trace.steps[0].p_used == pytest.approx(float(used[0, trace.target_tokens[0].id].exp()), abs=1e-5)
