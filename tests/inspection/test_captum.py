"""Gradients against captum, which calls the model directly, without our attribution code."""

import pytest
import torch

import translume

captum = pytest.importorskip("captum.attr", reason="captum is not installed (extra: inspect)")

SOURCE, TARGET = "the cat sat.", "le chat!"


class Forward:
    """log p of target token number `places` [R], for sources whose tokens have the vectors [R, S, D]."""

    def __init__(self, translator):
        checkpoint = translator.checkpoint
        specials = checkpoint.source_tokenizer.specials
        self.model = checkpoint.model
        self.source = torch.tensor([[*checkpoint.source_tokenizer.encode(SOURCE), specials.eos]])
        self.labels = torch.tensor([*checkpoint.target_tokenizer.encode(TARGET), specials.eos])
        self.given = torch.cat([torch.tensor([specials.bos]), self.labels[:-1]])
        self.vectors = self.model.encoder.embedding.table(self.source).detach().expand(len(self.labels), -1, -1)
        self.places = torch.arange(len(self.labels))

    def __call__(self, vectors, places):
        rows, source = torch.arange(len(vectors)), self.source.expand(len(vectors), -1)
        mask = torch.ones_like(source, dtype=torch.bool)
        table = self.model.encoder.embedding.table
        handle = table.register_forward_hook(lambda _, inputs, output: vectors.reshape(output.shape))
        memory = self.model.encoder(source, mask)
        handle.remove()
        state = self.model.decoder.start(memory, mask, self.model.head.begin(source, mask, memory))
        hidden, _ = self.model.decoder(self.given.expand(len(vectors), -1), state)
        log_probs = self.model.head.next_token(hidden[rows, places], None).log_probs()
        return log_probs[rows, self.labels[places]]


def values_of(translator, method):
    trace = translume.trace(translator, SOURCE, TARGET, show=(method,))
    return torch.tensor(trace.attributions[0].values, dtype=torch.float32)


def test_input_times_gradient_equals_captums(translator_of_both_norms):
    forward = Forward(translator_of_both_norms)
    expected = captum.InputXGradient(forward).attribute(
        forward.vectors.clone().requires_grad_(), additional_forward_args=(forward.places,)
    )
    found = values_of(translator_of_both_norms, "input-gradient")
    torch.testing.assert_close(found, expected.sum(-1).detach(), rtol=1e-4, atol=1e-5)
    assert found.abs().max() > 1e-2


def test_integrated_gradients_equal_captums_from_a_zero_baseline(translator_of_both_norms):
    forward = Forward(translator_of_both_norms)
    expected = captum.IntegratedGradients(forward).attribute(
        forward.vectors.clone(), baselines=0.0, additional_forward_args=(forward.places,), n_steps=32
    )
    found = values_of(translator_of_both_norms, "integrated-gradients")
    torch.testing.assert_close(found, expected.sum(-1).detach(), rtol=1e-4, atol=1e-5)
    assert found.abs().max() > 1e-2


def test_occlusion_by_the_unknown_token_equals_captums_feature_ablation(translator_of_both_norms):
    forward = Forward(translator_of_both_norms)
    unknown = forward.model.encoder.embedding.table.weight[
        translator_of_both_norms.checkpoint.source_tokenizer.specials.unk
    ]
    features = torch.arange(forward.source.size(1))[None, :, None].expand(1, -1, forward.vectors.size(-1))
    with torch.no_grad():
        expected = captum.FeatureAblation(forward).attribute(
            forward.vectors.clone(),
            baselines=unknown.detach().expand(forward.vectors[:1].shape),
            additional_forward_args=(forward.places,),
            feature_mask=features,
        )
    found = values_of(translator_of_both_norms, "occlusion-unknown")
    torch.testing.assert_close(found, expected[..., 0], rtol=1e-4, atol=2e-5)
