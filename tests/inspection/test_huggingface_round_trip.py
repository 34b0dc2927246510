"""Inspection of a model exported to transformers and imported again: results equal the original's."""

import pytest
import torch

import translume
from translume.checkpoint import Checkpoint, build_model, save_model
from translume.config import Config, ModelSettings, TokenizerSettings
from translume.text import train_tokenizer

pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

TEXTS = ["A man is riding a bicycle.", "Ein Mann fährt Fahrrad, 1,234 mal!", "我很饿。 hello", "Is it?"]
SHOW = ("attention", "lens", "prior", "occlusion", "occlusion-mask", "input-gradient")


def differences(one, other, place=""):
    """Where two JSON values differ; numbers may differ by 2e-5."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for name in one for found in differences(one[name], other[name], f"{place}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            found
            for index, (left, right) in enumerate(zip(one, other, strict=True))
            for found in differences(left, right, f"{place}[{index}]")
        ]
    if isinstance(one, float) and isinstance(other, float):
        return [] if abs(one - other) <= 2e-5 else [f"{place}: {one} and {other}"]
    return [] if one == other else [f"{place}: {one!r} and {other!r}"]


@pytest.fixture(scope="module", params=[{"norm": "pre"}, {"norm": "post"}], ids=["pegasus", "marian"])
def both(request, tmp_path_factory):
    """A model, and the same model after export to and import from transformers' folders."""
    folder = tmp_path_factory.mktemp("interchange")
    tokenizer = train_tokenizer(TokenizerSettings(size=401), TEXTS)
    settings = ModelSettings(
        width=34, feed_forward=29, encoder_layers=2, decoder_layers=3, attention_heads=17, max_positions=41,
        **request.param,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(23)
        model = build_model(settings, len(tokenizer), len(tokenizer)).eval()
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter) * 0.1
    config = Config(model=settings).change("decoding.max_length=9", "decoding.max_length_ratio=99", "decoding.beam=3")
    checkpoint = Checkpoint(config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    save_model(folder / "ours", checkpoint)
    translume.export(folder / "ours", "huggingface", folder / "theirs")
    translume.import_model(folder / "theirs", folder / "back")
    return translume.load(folder / "ours", device="cpu"), translume.load(folder / "back", device="cpu")


@pytest.mark.parametrize("target", ["Ein Mann fährt Fahrrad.", None])
def test_the_trace_of_an_imported_model_equals_the_originals(both, target):
    original, imported = both
    settings = original.config.decoding
    traces = [
        translume.trace(each, TEXTS[0], target, settings=settings, show=SHOW).to_dict() for each in (original, imported)
    ]
    # Only the digest of the weights' file and the smoothing floor may differ.
    for trace in traces:
        del trace["facts"]["digest"], trace["facts"]["smoothing_floor"]
    assert differences(*traces) == []


def test_the_beam_record_of_an_imported_model_equals_the_originals(both):
    original, imported = both
    settings = original.config.decoding
    records = [
        translume.record_beam(each, TEXTS[0], reference="Ein Mann.", settings=settings).to_dict()
        for each in (original, imported)
    ]
    assert differences(*records) == []
