"""The pages on moving from other toolkits name settings that exist, and their examples give the same results."""

import re
from pathlib import Path

import pytest

from translume.config import Config

DOCS = Path(__file__).resolve().parents[1] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def known_settings() -> set[str]:
    """Return the path of every setting of a run in docs/settings.md, which is generated from the code."""
    page = (DOCS / "settings.md").read_text(encoding="utf-8").partition("# Settings of a server")[0]
    found, table = set[str](), ""
    for line in page.splitlines():
        if heading := re.match(r"## \[([\w.]+)\]", line):
            table = heading[1]
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.add(f"{table}.{row[1]}")
    return found


def test_every_setting_on_the_page_about_marian_exists() -> None:
    page = (DOCS / "from_marian.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:data|tokenizer|model|training|evaluation|decoding)\.[a-z_.0-9]+)", page))
    assert len(named) > 60
    assert named - known_settings() == {"tokenizer.json", "model.npz"}  # files


def test_the_settings_of_the_example_have_the_values_of_its_marian_yml() -> None:
    fences = dict(FENCE.findall((DOCS / "from_marian.md").read_text(encoding="utf-8")))
    marian = dict(line.split(": ", 1) for line in fences["yaml"].splitlines())
    ours = Config.parse(fences["toml"], place="from_marian.md")
    model, training, decoding = ours.model, ours.training, ours.decoding
    assert [*ours.data.train_source, *ours.data.train_target] == marian["train-sets"].strip("[]").split(", ")
    assert [*ours.data.valid_source, *ours.data.valid_target] == marian["valid-sets"].strip("[]").split(", ")
    assert [training.beta1, training.beta2, training.epsilon] == [
        float(each) for each in marian["optimizer-params"].strip("[]").split(", ")
    ]
    assert training.ema == 1.0 - float(marian["exponential-smoothing"])
    assert training.updates == int(marian["after"].replace("ku", "000"))
    assert (training.warmup_updates, training.schedule) == (int(marian["lr-decay-inv-sqrt"]), "inverse_sqrt")
    assert (model.norm, model.head.tie, model.activation) == ("post", "all", marian["transformer-ffn-activation"])
    for option, value in {
        "max-length": ours.data.cleaning.max_tokens,
        "mini-batch-words": training.max_tokens,
        "optimizer-delay": training.accumulate,
        "dim-emb": model.width,
        "enc-depth": model.encoder_layers,
        "dec-depth": model.decoder_layers,
        "transformer-heads": model.attention_heads,
        "transformer-dim-ffn": model.feed_forward,
        "transformer-dropout": model.dropout,
        "learn-rate": training.learning_rate,
        "lr-warmup": training.warmup_updates,
        "clip-norm": training.clip_norm,
        "label-smoothing": training.label_smoothing,
        "valid-freq": training.validate_every,
        "save-freq": training.save_every,
        "early-stopping": training.patience,
        "beam-size": decoding.beam,
        "normalize": decoding.length_penalty,
        "max-length-factor": decoding.max_length_ratio,
        "seed": training.seed,
    }.items():
        assert value == pytest.approx(float(marian[option])), option
