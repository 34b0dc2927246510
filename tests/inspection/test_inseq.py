"""Attributions and attention against Inseq, on the same weights in transformers' form.

Inseq's pins are tight, so that it lives in an environment of its own: INSEQ_PYTHON names that one's Python.
"""

import json
import os
import subprocess

import pytest
import torch

import translume
from translume.checkpoint import Checkpoint, build_model, save_model
from translume.config import Config, ModelSettings, TokenizerSettings
from translume.text import train_tokenizer

pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

PYTHON = os.environ.get("INSEQ_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="INSEQ_PYTHON names no Python with Inseq")

TEXTS = ["A man is riding a bicycle.", "Ein Mann fährt Fahrrad, 1,234 mal!", "Is it?", "Two dogs run."]
SOURCE, TARGET = TEXTS[0], "Ein Mann fährt Fahrrad."
ASK = """
import json, sys, inseq
folder, source, target = sys.argv[1:]
found = {}
for method in ("input_x_gradient", "attention"):
    model = inseq.load_model(folder, method, device="cpu")
    out = model.attribute(source, target, attributed_fn="probability", show_progress=False).sequence_attributions[0]
    # [S, t, D] of gradients; [S, t, layers, heads] of attention
    values = out.source_attributions
    found[method] = (values.sum(-1) if method == "input_x_gradient" else values).tolist()
    found["tokens"] = [len(out.source), len(out.target)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["pre", "post"])
def both(request, tmp_path_factory):
    """A translator, and Inseq's results for the same weights."""
    folder = tmp_path_factory.mktemp("inseq")
    tokenizer = train_tokenizer(TokenizerSettings(size=401), TEXTS)
    # Transformers would scale decoder embeddings that Inseq has already scaled, so the model uses no scale.
    settings = ModelSettings(
        width=34, feed_forward=29, encoder_layers=2, decoder_layers=3, attention_heads=17, max_positions=41,
        norm=request.param, scale_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(23)
        model = build_model(settings, len(tokenizer), len(tokenizer)).eval()
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter) * 0.2
    save_model(
        folder / "ours",
        Checkpoint(config=Config(model=settings), model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer),
    )
    translume.export(folder / "ours", "huggingface", folder / "theirs")
    done = subprocess.run(
        [PYTHON, "-c", ASK, str(folder / "theirs"), SOURCE, TARGET],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return translume.load(folder / "ours", device="cpu"), json.loads(done.stdout.splitlines()[-1])


def test_input_times_gradient_equals_inseqs(both):
    translator, theirs = both
    trace = translume.trace(translator, SOURCE, TARGET, show=("input-gradient",))
    assert theirs["tokens"] == [len(trace.source_tokens), len(trace.target_tokens) + 1]  # theirs begins with the start
    # Inseq's is the derivative of p, ours that of log p.
    chances = torch.tensor([step.p_model for step in trace.steps])
    found = torch.tensor(trace.attributions[0].values) * chances[:, None]
    expected = torch.tensor(theirs["input_x_gradient"]).T
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_cross_attention_equals_inseqs(both):
    translator, theirs = both
    trace = translume.trace(translator, SOURCE, TARGET, show=("attention",))
    found = torch.tensor(trace.attention.cross)  # [layers, H, t, S]
    expected = torch.tensor(theirs["attention"]).permute(2, 3, 1, 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
