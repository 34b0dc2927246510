"""A language model with the translator's target vocabulary ranks beside it."""

import math

import pytest
import torch

from translume.checkpoint import Checkpoint, LanguageModelCheckpoint, build_language_model, build_model
from translume.config import Config, TokenizerSettings
from translume.errors import SettingsError
from translume.text import Tokenizer, train_tokenizer
from translume.translator import Generator, Translator


def tokenizer_of(text: str) -> Tokenizer:
    return train_tokenizer(TokenizerSettings(kind="character", size=40, unknown="token"), [text])


def generator_of(tokenizer: Tokenizer) -> Generator:
    config = Config.build(
        {
            "data": {"task": "language_model", "block_length": 30},
            "model": {"encoder_layers": 0, "decoder_layers": 1, "width": 12, "feed_forward": 17, "attention_heads": 2},
        }
    )
    torch.manual_seed(2)
    network = build_language_model(config.model, len(tokenizer), len(tokenizer)).eval()
    return Generator(
        LanguageModelCheckpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    )


def test_fusion_ranks_by_both_models_and_reports_the_translators_own() -> None:
    tokenizer = tokenizer_of("abcdef ")
    config = Config.build(
        {
            "model": {"encoder_layers": 1, "decoder_layers": 1, "width": 12, "feed_forward": 17, "attention_heads": 2},
            "decoding": {"beam": 3, "nbest": 3, "length_penalty": 0.0, "max_length": 5},
        }
    )
    torch.manual_seed(1)
    network = build_model(config.model, len(tokenizer), len(tokenizer)).eval()
    plain = Translator(Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer))
    generator = generator_of(tokenizer)
    found = plain.fuse_with(generator, 0.5).translate("abc")
    for hypothesis in found.hypotheses:
        own = plain.score("abc", hypothesis).log_prob
        language = generator.score(hypothesis).log_prob
        assert hypothesis.log_prob == pytest.approx(own, abs=1e-4)
        assert hypothesis.score == pytest.approx(own + 0.5 * language, abs=1e-4)
        assert math.isfinite(language)
    # Of a translator that reads 256 tokens and a language model that reads 30, targets have 30 at most.
    long = plain.fuse_with(generator, 0.5).translate("abc", max_length=200, min_length=100, beam=1, nbest=1)
    assert len(long.hypotheses[0].ids) == 30


def test_what_cannot_be_fused_is_refused() -> None:
    tokenizer = tokenizer_of("abcdef ")
    config = Config.build(
        {"model": {"encoder_layers": 1, "decoder_layers": 1, "width": 12, "feed_forward": 17, "attention_heads": 2}}
    )
    network = build_model(config.model, len(tokenizer), len(tokenizer)).eval()
    plain = Translator(Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer))
    with pytest.raises(SettingsError) as caught:
        plain.fuse_with(generator_of(tokenizer_of("uvwxyz ")), 0.5)
    assert str(caught.value) == (
        "fuse_with: the language model has another vocabulary, expected the translator's target tokenizer"
    )
    with pytest.raises(TypeError) as wrong:
        plain.fuse_with(plain, 0.5)  # type: ignore[arg-type]  # wrong on purpose
    assert str(wrong.value) == "fuse_with: found Translator, expected a Generator or another LanguageModel"
    for weight in (0, -1, math.nan, "x"):
        with pytest.raises(SettingsError) as caught:
            plain.fuse_with(generator_of(tokenizer), weight)  # type: ignore[arg-type]  # wrong on purpose
        assert str(caught.value) == f"the weight of a language model is {weight!r}, expected a number above 0"
