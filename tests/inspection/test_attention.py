"""Attention, logit lens and head terms against values from torch's forward hooks."""

import math

import pytest
import torch

import translume
from translume.config import AdaptiveSettings, CopySettings, HierarchicalSettings, MixtureSettings
from translume.inspection import passes
from translume.inspection.inputs import trace_inputs
from translume.translator.alignment import cross_attention

SOURCE, TARGET = "the cat sat.", "le chat!"


class Hooks:
    """Inputs and outputs of linear and decoder layers in the first forced pass, recorded by torch's forward hooks."""

    def __init__(self, model):
        self.read, self.wrote = {}, {}
        self._handles = [
            module.register_forward_hook(lambda _, inputs, output, name=name: self._see(name, inputs, output))
            for name, module in model.named_modules()
            if name
        ]

    def _see(self, name, inputs, output):
        if inputs and isinstance(inputs[0], torch.Tensor):
            self.read.setdefault(name, inputs[0].detach())
        if isinstance(output, torch.Tensor):
            self.wrote.setdefault(name, output.detach())

    def close(self):
        for handle in self._handles:
            handle.remove()


def observed(translator):
    """A forced pass of the model itself, by `Transformer.score`, recorded by hooks."""
    checkpoint = translator.checkpoint
    specials = checkpoint.source_tokenizer.specials
    source = torch.tensor([[*checkpoint.source_tokenizer.encode(SOURCE), specials.eos]])
    labels = torch.tensor([[*checkpoint.target_tokenizer.encode(TARGET), specials.eos]])
    given = torch.cat([torch.tensor([[specials.bos]]), labels[:, :-1]], 1)
    hooks = Hooks(checkpoint.model)
    masks = [torch.ones_like(each, dtype=torch.bool) for each in (source, given)]
    checkpoint.model.score(source, masks[0], given, labels, masks[1])
    hooks.close()
    return hooks, labels[0]


def weights(query, keys, heads, causal=False):
    """[H, t, S] from the outputs [t, D] and [S, D] of the linear maps."""
    query, keys = (each.view(len(each), heads, -1).transpose(0, 1) for each in (query, keys))
    scores = query @ keys.mT / math.sqrt(query.size(-1))
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[1:], dtype=torch.bool).tril(), -math.inf)
    return scores.softmax(-1)


def assert_same(found, expected):
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=2e-6)


def test_attention_equals_that_from_the_linear_maps_of_each_layer(translator_of_both_norms):
    trace = translume.trace(translator_of_both_norms, SOURCE, TARGET, show=("attention",))
    hooks, labels = observed(translator_of_both_norms)
    heads = translator_of_both_norms.config.model.attention_heads
    assert (len(trace.attention.encoder), len(trace.attention.decoder), len(trace.attention.cross)) == (2, 3, 3)
    for layer, found in enumerate(trace.attention.encoder):
        query, keys, _ = hooks.wrote[f"encoder.layers.{layer}.self_attention.query_key_value"].chunk(3, -1)
        assert_same(found, weights(query, keys, heads))
    for layer in range(3):
        query, keys, _ = hooks.wrote[f"decoder.layers.{layer}.self_attention.query_key_value"].chunk(3, -1)
        assert_same(trace.attention.decoder[layer], weights(query, keys, heads, causal=True))
        query = hooks.wrote[f"decoder.layers.{layer}.cross_attention.query"]
        keys, _ = hooks.wrote[f"decoder.layers.{layer}.cross_attention.key_value"].chunk(2, -1)
        found = trace.attention.cross[layer]
        assert_same(found, weights(query, keys, heads))
        assert (len(found), len(found[0]), len(found[0][0])) == (heads, len(labels), len(trace.source_tokens))


def test_attention_sums_to_one_and_is_causal(translator_of_both_norms):
    attention = translume.trace(translator_of_both_norms, SOURCE, TARGET, show=("attention",)).attention
    for layer in (*attention.encoder, *attention.decoder, *attention.cross):
        rows = torch.tensor(layer).sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=1e-4)
    for layer in attention.decoder:
        assert not bool(torch.tensor(layer).triu(1).any())


def test_rotary_positions_are_included_in_the_weights(make):
    translator = make(positions="rotary")
    trace = translume.trace(translator, SOURCE, TARGET, show=("attention", "lens"))
    assert sum(step.log_p_model for step in trace.steps) == pytest.approx(translator.score(SOURCE, TARGET).log_prob)
    hooks, _ = observed(translator)
    query, keys, values = hooks.wrote["decoder.layers.0.self_attention.query_key_value"].chunk(3, -1)
    heads = translator.config.model.attention_heads
    assert (torch.tensor(trace.attention.decoder[0]) - weights(query, keys, heads, causal=True)).abs().max() > 1e-3
    # The weighted values must equal the input of the layer's output map.
    mixed = torch.tensor(trace.attention.decoder[0]) @ values.view(len(values), heads, -1).transpose(0, 1)
    read = hooks.read["decoder.layers.0.self_attention.output"]
    torch.testing.assert_close(mixed.transpose(0, 1).flatten(1), read, rtol=1e-4, atol=1e-4)


def test_a_layer_without_self_attention_reports_none(make):
    trace = translume.trace(make(decoder_mixing="ssru"), SOURCE, TARGET, show=("attention", "lens"))
    assert trace.attention.decoder == (None, None, None)
    assert len(trace.attention.cross) == 3
    assert trace.log_p == pytest.approx(make(decoder_mixing="ssru").score(SOURCE, TARGET).log_prob, abs=1e-4)


@torch.no_grad()
def test_one_attention_divides_its_weights_between_target_and_source(make):
    translator = make(decoder_mixing="merged")
    trace = translume.trace(translator, SOURCE, TARGET, show=("attention",))
    sums = [torch.tensor(each).sum(-1) for each in (trace.attention.decoder, trace.attention.cross)]
    torch.testing.assert_close(sums[0] + sums[1], torch.ones_like(sums[0]))
    model, specials = translator.checkpoint.model, translator.checkpoint.target_tokenizer.specials
    encode = translator.checkpoint.source_tokenizer.encode, translator.checkpoint.target_tokenizer.encode
    source = torch.tensor([[*encode[0](SOURCE), specials.eos]])
    target = torch.tensor([[specials.bos, *encode[1](TARGET)]])
    mask = torch.ones_like(source, dtype=torch.bool)
    aligned = cross_attention(model, source, mask, target)[0]
    torch.testing.assert_close(torch.tensor(trace.attention.cross[-2]).mean(0), aligned, rtol=0, atol=2e-6)
    state = model.start_with_attention(source, mask)
    for end in range(1, target.size(1) + 1):
        _, state = model.step(target[:, :end], state)
    last = torch.tensor(trace.attention.cross[-1]).mean(0)[-1]
    torch.testing.assert_close(state.attention[0], last, rtol=0, atol=2e-6)


def test_the_lens_applies_the_last_norm_to_each_layers_state(translator_of_both_norms):
    trace = translume.trace(translator_of_both_norms, SOURCE, TARGET, show=("lens",), k=5)
    hooks, labels = observed(translator_of_both_norms)
    model = translator_of_both_norms.checkpoint.model
    weight, bias = model.head.plain()["weight"], model.head.plain()["bias"]
    for layer in range(3):
        state = hooks.wrote[f"decoder.layers.{layer}"]
        if trace.facts.norm == "pre":
            norm = model.decoder.norm
            state = torch.nn.functional.layer_norm(state, state.shape[-1:], norm.weight, norm.bias, norm.eps)
        log_probs = (state @ weight.T + bias).detach().log_softmax(-1)
        shown = [step.lens[layer] for step in trace.steps]
        own = log_probs.gather(1, labels[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor([each.log_p for each in shown]), own, rtol=1e-5, atol=1e-5)
        assert [each.layer for each in shown] == [layer + 1] * len(labels)
        best = log_probs.argmax(-1).tolist()
        assert [each.top.candidates[0].id for each in shown] == best
        assert [each.rank for each in shown] == ((log_probs > own[:, None]).sum(-1) + 1).tolist()
        assert all(candidate.p_used is None for each in shown for candidate in each.top.candidates)


def test_the_lens_of_the_last_layer_is_the_models_distribution(translator_of_every_head):
    trace = translume.trace(translator_of_every_head, SOURCE, TARGET, show=("lens",))
    for step in trace.steps:
        last = step.lens[-1]
        assert (last.log_p, last.rank, last.entropy) == (step.log_p_model, step.rank, step.entropy)
        assert [c.p_model for c in last.top.candidates] == [c.p_model for c in step.top_model.candidates]


def test_tracing_leaves_the_model_unchanged(make):
    model = make().checkpoint.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    translume.trace(make(), SOURCE, TARGET, show=("attention", "lens", "input-gradient"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def terms_of(translator):
    trace = translume.trace(translator, SOURCE, TARGET, show=("terms",), k=1000)
    return {term.name: torch.tensor(term.values, dtype=torch.float64) for term in trace.terms}, trace


def masses(trace, ids):
    """[t]: the total p_model of some tokens."""
    return torch.tensor([sum(c.p_model for c in step.top_model.candidates if c.id in ids) for step in trace.steps])


def test_a_softmax_has_no_terms(make):
    assert terms_of(make())[0] == {}


def test_a_copy_heads_gate_and_attention_add_up_to_its_distribution(make):
    translator = make(CopySettings)
    terms, trace = terms_of(translator)
    assert set(terms) == {"gate", "copy_attention"}
    assert terms["gate"].shape == (len(trace.steps), 1)
    assert terms["copy_attention"].shape == (len(trace.steps), len(trace.source_tokens))
    head = translator.checkpoint.model.head
    copied = head.copied[torch.tensor([token.id for token in trace.source_tokens])]
    hooks, _ = observed(translator)
    hidden = hooks.wrote["decoder.norm"]
    written = (hidden @ head.softmax.weight.T + head.softmax.bias).detach().double().softmax(-1)
    expected = terms["gate"] * written
    for place, id_ in enumerate(copied.tolist()):
        if id_ >= 0:
            expected[:, id_] += (1 - terms["gate"][:, 0]) * terms["copy_attention"][:, place]
    for row, step in zip(expected, trace.steps, strict=True):
        for candidate in step.top_model.candidates:
            assert candidate.p_model == pytest.approx(float(row[candidate.id]), abs=1e-5)


def test_the_mixture_weights_are_a_distribution(make):
    terms, trace = terms_of(make(MixtureSettings))
    assert terms["components"].shape == (len(trace.steps), 3)
    torch.testing.assert_close(terms["components"].sum(-1), torch.ones(len(trace.steps)).double(), rtol=0, atol=1e-5)
    assert terms["components"].std() > 0


def test_band_terms_are_the_total_probability_of_their_tokens(make):
    translator = make(AdaptiveSettings)
    terms, trace = terms_of(translator)
    table = translator.checkpoint.model.head.table
    begin = 0
    for band, end in enumerate(table.ends):
        expected = masses(trace, set(table.order[begin:end].tolist()))
        torch.testing.assert_close(terms["bands"][:, band].float(), expected, rtol=0, atol=1e-5)
        begin = end
    assert terms["bands"].size(1) == len(table.ends)


def test_class_terms_are_the_total_probability_of_their_tokens(make):
    translator = make(HierarchicalSettings)
    terms, trace = terms_of(translator)
    head = translator.checkpoint.model.head
    groups = torch.split(head.order, -(-head.vocabulary // len(head.classes)))
    assert terms["classes"].size(1) == len(groups) == len(head.classes)
    for number, ids in enumerate(groups):
        expected = masses(trace, set(ids.tolist()))
        torch.testing.assert_close(terms["classes"][:, number].float(), expected, rtol=0, atol=1e-5)


def test_weights_of_long_sides_are_bounded(translator, monkeypatch):
    """The encoder's are left out, since they grow with the square of the source; of the others, heads are averaged."""
    inputs = trace_inputs(translator, SOURCE, TARGET, None).sentence()
    whole = translume.trace(translator, SOURCE, TARGET, show=("attention",)).attention
    monkeypatch.setattr(passes, "MAX_WEIGHTS", 1)
    long = translume.trace(translator, SOURCE, TARGET, show=("attention",)).attention
    assert long.encoder == ()
    for averaged, layer in zip((*long.decoder, *long.cross), (*whole.decoder, *whole.cross), strict=True):
        assert_same(averaged, torch.tensor(layer).mean(0, keepdim=True))
    with torch.no_grad():
        kept = passes.forward(translator.checkpoint.model, inputs, attention=True).layers
    size, source, layers = len(inputs.labels), len(inputs.source), len(kept.cross)
    assert kept.encoder == []
    assert sum(each.numel() for each in (*kept.decoder, *kept.cross)) == layers * size * (size + source)
