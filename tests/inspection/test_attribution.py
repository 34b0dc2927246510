"""Prior, occlusion and gradients against references that take one token at a time, and on a known alignment."""

import math
import subprocess
import sys
from functools import partial
from itertools import pairwise

import pytest
import torch
from tests.errors import raises

import translume
from translume.checkpoint.building import mark_separators
from translume.config import AdaptiveSettings, SoftmaxSettings
from translume.errors import SettingsError
from translume.inspection import attribution, inputs

SOURCE, TARGET = "the cat sat.", "le chat!"


def forced(translator, source, mask=None):
    """[t]: log-probabilities of TARGET by forced decoding from the source ids; memory is read where `mask` is True."""
    checkpoint = translator.checkpoint
    specials = checkpoint.target_tokenizer.specials
    labels = [*checkpoint.target_tokenizer.encode(TARGET), specials.eos]
    model, ids, found = checkpoint.model, torch.tensor([source]), []
    with torch.no_grad():
        ids, whole = model.encoder.front(ids, torch.ones_like(ids, dtype=torch.bool))
        memory = model.encoder(ids, whole)
        mask = whole if mask is None else torch.tensor([mask])
        memory = memory.masked_fill(~mask[..., None], 0.0)
        state = model.decoder.start(memory, mask, model.head.begin(ids, mask, memory))
        for length, label in enumerate(labels):
            belief, state = model.step(torch.tensor([[specials.bos, *labels[:length]]]), state)
            found.append(float(belief.log_probs()[0, label]))
    return torch.tensor(found, dtype=torch.float64)


def source_of(translator):
    tokenizer = translator.checkpoint.source_tokenizer
    return [*tokenizer.encode(SOURCE), tokenizer.specials.eos]


def as_tensor(values):
    """Differences [t, S] with NaN for None."""
    return torch.tensor([[math.nan if each is None else each for each in row] for row in values], dtype=torch.float64)


def compare(found, expected):
    finite = expected.isfinite()
    assert torch.equal(~found.isnan(), finite)
    torch.testing.assert_close(found[finite], expected[finite], rtol=1e-4, atol=2e-5)


def test_the_prior_is_the_same_step_with_only_eos_as_source(translator_of_every_head):
    trace = translume.trace(translator_of_every_head, SOURCE, TARGET, show=("prior",))
    blank = forced(translator_of_every_head, source_of(translator_of_every_head)[-1:])
    own = forced(translator_of_every_head, source_of(translator_of_every_head))
    for step, expected, whole in zip(trace.steps, blank.tolist(), own.tolist(), strict=True):
        assert step.prior.log_p == pytest.approx(expected, abs=1e-4)
        known = math.isfinite(expected) and math.isfinite(whole)
        assert step.prior.gain == (pytest.approx(whole - expected, abs=1e-4) if known else None)


@pytest.mark.parametrize("method", ["occlusion", "occlusion-mask", "occlusion-unknown"])
def test_occlusion_equals_leaving_out_each_token_in_turn(translator_of_every_head, method):
    trace = translume.trace(translator_of_every_head, SOURCE, TARGET, show=(method,))
    (found,) = trace.attributions
    assert found.method == method
    source = source_of(translator_of_every_head)
    whole, columns = forced(translator_of_every_head, source), []
    for place in range(len(source)):
        if method == "occlusion":
            without = forced(translator_of_every_head, [*source[:place], *source[place + 1 :]])
        elif method == "occlusion-mask":
            without = forced(translator_of_every_head, source, [each != place for each in range(len(source))])
        else:
            unknown = translator_of_every_head.checkpoint.source_tokenizer.specials.unk
            without = forced(translator_of_every_head, [*source[:place], unknown, *source[place + 1 :]])
        columns.append(whole - without)
    compare(as_tensor(found.values), torch.stack(columns, 1))


@pytest.fixture(scope="module")
def pooled(make):
    """A translator whose encoder reads one vector for each sentence of a text."""
    found = make(seed=5, segments=3, segment_pooling="sum", segment_separator=".")
    mark_separators(found.checkpoint.model, found.config.model, found.checkpoint.source_tokenizer)
    return found


STORY = "a cat. the dog. ok? ab"


@pytest.mark.parametrize("method", ["occlusion", "occlusion-mask", "occlusion-unknown"])
def test_segments_are_occluded_as_a_whole_if_they_are_pooled(pooled, method):
    trace = translume.trace(pooled, STORY, TARGET, show=(method, "attention", "prior"))
    assert [token.text for token in trace.source_tokens] == ["a▁cat.", "▁the▁dog.", "▁ok?▁ab</s>"]
    assert [(token.begin, token.end) for token in trace.source_tokens] == [(0, 6), (6, 15), (15, 22)]
    assert [word.text for word in trace.source_words] == ["a cat.", "the dog.", "ok? ab"]
    assert len(trace.attention.cross[0][0][0]) == 3
    tokenizer = pooled.checkpoint.source_tokenizer
    unknown = tokenizer.specials.unk
    ids = [*tokenizer.encode(STORY), tokenizer.specials.eos]
    ends = [0, *(place + 1 for place, id_ in enumerate(ids) if id_ == tokenizer.encode(".")[-1]), len(ids)]
    columns = []
    for number, (begin, end) in enumerate(pairwise(ends)):
        left, mask = [*ids[:begin], *ids[end:]], None
        if method == "occlusion-unknown":
            kept = ends[1:-1]  # the separators stay, or two segments would become one
            left = [unknown if begin <= place < end and place + 1 not in kept else id_ for place, id_ in enumerate(ids)]
        elif method == "occlusion-mask":
            left, mask = ids, [place != number for place in range(3)]
        columns.append(forced(pooled, ids) - forced(pooled, left, mask))
    compare(as_tensor(trace.attributions[0].values), torch.stack(columns, 1))


def test_the_only_segment_of_a_source_can_be_left_out(pooled):
    trace = translume.trace(pooled, "a cat", TARGET, show=("occlusion", "occlusion-mask", "input-gradient"))
    assert {len(row) for each in trace.attributions for row in each.values} == {1}


@pytest.mark.parametrize("head", [SoftmaxSettings, partial(AdaptiveSettings, tie="all")])
def test_attribution_in_chunks_gives_the_same_result(head, make, monkeypatch):
    show = ("occlusion", "occlusion-mask", "input-gradient")
    whole = translume.trace(make(head), SOURCE, TARGET, show=show).attributions
    monkeypatch.setattr(attribution, "MAX_NUMBERS", 20)
    parts = translume.trace(make(head), SOURCE, TARGET, show=show).attributions
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(as_tensor(one.values), as_tensor(other.values), rtol=1e-4, atol=1e-5)


def test_occlusion_by_the_unknown_token_is_refused_if_there_is_none(make, monkeypatch):
    translator = make()
    sentence = inputs.trace_inputs(translator, SOURCE, TARGET, None).sentence()
    message = (
        "show: found 'occlusion-unknown', expected 'occlusion' or 'occlusion-mask' "
        "with a tokenizer that has no unknown token"
    )
    with raises(SettingsError, message):
        attribution.occluded(translator.checkpoint.model, sentence, None, "occlusion-unknown", None)


def test_input_times_gradient_is_the_directional_derivative_of_each_score(translator_of_every_head):
    trace = translume.trace(translator_of_every_head, SOURCE, TARGET, show=("input-gradient",))
    found = as_tensor(trace.attributions[0].values)
    model = translator_of_every_head.checkpoint.model
    sentence = inputs.trace_inputs(translator_of_every_head, SOURCE, TARGET, None).sentence()
    table = model.encoder.embedding.table
    vectors = []
    handle = table.register_forward_hook(lambda _, inputs, output: vectors.append(output) or output.requires_grad_())
    source = sentence.source[None]
    hidden_of = torch.ones_like(source, dtype=torch.bool)
    with torch.enable_grad():
        memory = model.encoder(source, hidden_of)
        handle.remove()
        state = model.decoder.start(memory, hidden_of, model.head.begin(source, hidden_of, memory))
        hidden, _ = model.decoder(sentence.given[None], state)
        context = model.head.begin(source, hidden_of, memory) if model.head.reads_source else None
        for place, label in enumerate(sentence.labels.tolist()):
            own = None if context is None else context.select(torch.tensor([0]))
            log_p = model.head.next_token(hidden[:, place], own).log_probs()[0, label]
            (slope,) = torch.autograd.grad(log_p, vectors[0], retain_graph=True)
            expected = (slope * vectors[0]).sum(-1).detach().double().flatten()
            if bool(log_p.isfinite()):
                torch.testing.assert_close(found[place], expected, rtol=1e-3, atol=1e-4)


def test_integrated_gradients_sum_to_the_difference_from_the_baseline(translator_of_both_norms):
    pytest.importorskip("captum")
    trace = translume.trace(translator_of_both_norms, SOURCE, TARGET, show=("integrated-gradients",))
    (found,) = trace.attributions
    sentence = inputs.trace_inputs(translator_of_both_norms, SOURCE, TARGET, None).sentence()
    model = translator_of_both_norms.checkpoint.model
    with torch.no_grad():
        places = torch.arange(len(sentence.labels))
        scores = attribution.scores_of(model, sentence)
        whole, baseline = (
            scores(each.expand(len(places), -1, -1), places)
            for each in attribution.embedded(model.encoder, sentence.source)
        )
    gaps = (as_tensor(found.values).sum(-1) - (whole - baseline)).abs()
    assert float(gaps.max()) == pytest.approx(found.error, abs=1e-4)
    assert float(gaps.max()) < 0.05 * float((whole - baseline).abs().max())
    torch.testing.assert_close(
        whole.double(), forced(translator_of_both_norms, source_of(translator_of_both_norms)), rtol=1e-4, atol=1e-4
    )


def test_without_captum_integrated_gradients_name_the_package_to_install(make, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "captum.attr", None)
    with pytest.raises(SettingsError) as error:
        translume.trace(make(), SOURCE, TARGET, show=("integrated-gradients",))
    assert "pip install 'translume[inspect]'" in str(error.value)


def test_parts_not_requested_are_not_computed(make):
    trace = translume.trace(make(), SOURCE, TARGET, show=())
    assert (trace.attention, trace.terms, trace.attributions) == (None, (), ())
    assert all(step.lens == () and step.prior is None for step in trace.steps)
    shown = translume.trace(make(), SOURCE, TARGET, show=("occlusion",))
    assert [each.method for each in shown.attributions] == ["occlusion"]


@pytest.mark.parametrize("method", ["occlusion", "occlusion-mask"])
def test_occlusion_finds_the_source_of_at_least_95_percent_of_the_letters(backwards, words, method):
    right = total = 0
    for word in words:
        trace = translume.trace(backwards, word, word[::-1], show=(method,))
        values = torch.tensor(trace.attributions[0].values)[: len(word), : len(word)]
        right += int((values.argmax(1) == torch.arange(len(word)).flip(0)).sum())
        total += len(word)
    assert right >= 0.95 * total, f"{right} of {total}"


def test_the_source_raises_the_probability_of_its_letters_above_the_prior(backwards, words):
    steps = [
        step
        for word in words
        for step in translume.trace(backwards, word, word[::-1], show=("prior",)).steps[: len(word)]
    ]
    assert sum(step.prior.gain > 0 for step in steps) >= 0.95 * len(steps)
    assert sum(step.prior.log_p for step in steps) / len(steps) < -2.0


MEASURED = """
import resource
import torch, translume
from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, ModelSettings, TokenizerSettings
from translume.text import train_tokenizer
from translume.translator import Translator

torch.set_num_threads(1)
tokenizer = train_tokenizer(TokenizerSettings(kind="byte"), [])
settings = ModelSettings(width=64, feed_forward=512, attention_heads=4, encoder_layers=1, decoder_layers=1)
model = build_model(settings, len(tokenizer), len(tokenizer)).eval()
config = Config(model=settings, tokenizer=tokenizer.settings)
checkpoint = Checkpoint(config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
translume.trace(Translator(checkpoint), "a" * 300, "b", show=["occlusion"])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_the_memory_of_occlusion_is_bounded_for_a_long_source():
    found = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 250  # MB; all sources at once would need 500
