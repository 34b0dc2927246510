"""The same weights give the same numbers, and the same n-best lists, in transformers' MarianMTModel."""

import pytest
import torch
from tests.errors import raises

from translume.decoding import BeamSearch, ForbidTokens, LengthPenalty, search
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.huggingface.bart import Marian

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

PAD, BOS, EOS, SIZE = 0, 1, 2, 53
SENTENCES, BEAM, LIMIT = 71, 4, 17


def marian_of(model, settings):
    config = transformers.MarianConfig(
        vocab_size=SIZE, d_model=settings.width, encoder_layers=settings.encoder_layers,
        decoder_layers=settings.decoder_layers, encoder_attention_heads=settings.attention_heads,
        decoder_attention_heads=settings.attention_heads, encoder_ffn_dim=settings.feed_forward,
        decoder_ffn_dim=settings.feed_forward, activation_function=settings.activation,
        max_position_embeddings=settings.max_positions, scale_embedding=settings.scale_embeddings,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=BOS, forced_eos_token_id=None,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval()
    missing, unexpected = theirs.load_state_dict(Marian().weights_to(model, settings), strict=False)
    assert not unexpected
    assert all("embed_positions" in name for name in missing)
    return theirs


@pytest.mark.parametrize("changes", [{}, {"activation": "gelu", "scale_embeddings": False}])
@torch.no_grad()
def test_hidden_states_and_logits_equal_those_of_marian(make, changes):
    model, settings = make(**changes)
    theirs = marian_of(model, settings)
    source, target = torch.randint(3, SIZE, (3, 7)), torch.randint(3, SIZE, (3, 5))
    mask = torch.arange(7)[None] < torch.tensor([7, 3, 5])[:, None]
    wanted = theirs(
        input_ids=source,
        attention_mask=mask.long(),
        decoder_input_ids=target,
        output_hidden_states=True,
        use_cache=False,
    )
    state = model.start(source, mask)
    memory = wanted.encoder_last_hidden_state.masked_fill(~mask[..., None], 0.0)
    torch.testing.assert_close(state.memory, memory, rtol=0, atol=1e-5)
    hidden, state = model.decoder(target, state)
    torch.testing.assert_close(hidden, wanted.decoder_hidden_states[-1], rtol=0, atol=1e-5)
    belief = model.head.next_token(hidden.flatten(0, 1), None).log_probs()
    torch.testing.assert_close(belief, wanted.logits.flatten(0, 1).log_softmax(-1), rtol=0, atol=2e-5)


def test_settings_unsupported_by_marian_are_refused_by_name(make):
    model, settings = make(norm="pre")
    with raises(SettingsError, "model.norm: found 'pre', expected 'post' for MarianMTModel"):
        Marian().weights_to(model, settings)


def test_missing_weights_are_named(make):
    _, settings = make()
    message = "model.shared.weight: no such weights, expected them for encoder.embedding.table.weight"
    with raises(ModelFolderError, message):
        Marian().weights_from({}, settings)


@pytest.fixture(scope="module")
def sharp(make):
    """A model that is sure enough to end its sentences, the same in transformers, and sources.

    In fp64, since weights this sharp make a rounding in the first layer a difference of 1e-4 in the last; beliefs and
    sums of log-probabilities are fp32 on both sides all the same.
    """
    model, settings = make()
    with torch.no_grad():
        for layer in model.encoder.layers:
            layer.self_attention.query_key_value.weight.mul_(2.0)
        for layer in model.decoder.layers:
            layer.cross_attention.query.weight.mul_(20.0)
            layer.cross_attention.output.weight.mul_(20.0)
        model.decoder.layers[-1].around_feed_forward.norm.weight.mul_(2.5)
        model.head.bias[EOS] = 2.5
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(2, 12, (SENTENCES,), generator=generator)
    mask = torch.arange(12)[None] < lengths[:, None]
    source = torch.randint(3, SIZE, (SENTENCES, 12), generator=generator).masked_fill(~mask, PAD)
    theirs = marian_of(model, settings).double()
    return model.double(), theirs, source, mask


@torch.no_grad()
def theirs_best(sharp, early, power):
    """[(tokens without bos, score)] of each sentence. Their scores divide by generated tokens ** power, eos counted."""
    _, theirs, source, mask = sharp
    found = theirs.generate(
        input_ids=source, attention_mask=mask.long(), num_beams=BEAM, num_return_sequences=BEAM, do_sample=False,
        length_penalty=power, early_stopping=early, max_new_tokens=LIMIT, bad_words_ids=[[PAD], [BOS]],
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    lists = []
    for ids, score in zip(found.sequences[:, 1:].tolist(), found.sequences_scores.tolist(), strict=True):
        end = ids.index(EOS) + 1 if EOS in ids else len(ids)
        lists.append((tuple(ids[:end]), score))
    return [lists[start : start + BEAM] for start in range(0, len(lists), BEAM)]


@torch.no_grad()
def our_best(sharp, stop, power):
    model, _, source, mask = sharp
    strategy = BeamSearch(width=BEAM, nbest=BEAM, stop=stop, length_penalty=LengthPenalty(exponent=power))
    found = search(
        model.step, model.start(source, mask), bos=BOS, eos=EOS, strategy=strategy,
        limits=torch.full((SENTENCES,), LIMIT), rules=[ForbidTokens((PAD, BOS))],
    )  # fmt: skip
    return [[(each.tokens, each.score) for each in best] for best in found]


@pytest.mark.parametrize(
    ("stop", "early", "power"), [("optimal", "never", 0.0), ("optimal", "never", 0.6), ("first", True, 1.0)]
)
def test_beam_search_returns_the_n_best_of_generate(sharp, stop, early, power):
    ours, theirs = our_best(sharp, stop, power), theirs_best(sharp, early, power)
    assert len({tokens for best in theirs for tokens, _ in best}) > SENTENCES // 2
    assert sum(tokens[-1] == EOS for best in theirs for tokens, _ in best) > SENTENCES * BEAM // 2
    differing = [
        place for place, (left, right) in enumerate(zip(ours, theirs, strict=True))
        if [tokens for tokens, _ in left] != [tokens for tokens, _ in right]
    ]  # fmt: skip
    assert not differing, (len(differing), ours[differing[0]], theirs[differing[0]])
    scores = [torch.tensor([score for best in lists for _, score in best]) for lists in (ours, theirs)]
    torch.testing.assert_close(*scores, rtol=0, atol=1e-5)
