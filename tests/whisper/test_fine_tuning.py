"""An imported Whisper is fine-tuned on a manifest of recordings."""

import re

import pytest
import soundfile
from tests.whisper.conftest import sound

import translume
from translume.config import Config
from translume.errors import DataError
from translume.training import Started, train


def test_a_model_learns_the_targets_of_a_manifest_and_keeps_its_prompt(whisper, tmp_path):
    targets = ("Two dogs play.", "The lazy fox.")
    rows = []
    for number, target in enumerate(targets):
        soundfile.write(tmp_path / f"{number}.wav", sound(1601 + 13_000 * number, number), 16_000)
        rows.append(f"{number}.wav\t{target}")
    soundfile.write(tmp_path / "long.wav", sound(18_000), 16_000)
    (tmp_path / "train.tsv").write_text("\n".join([*rows, "long.wav\tToo long."]) + "\n")
    (tmp_path / "valid.tsv").write_text(rows[0] + "\n")
    config = Config.build(
        {
            "data": {
                "train": str(tmp_path / "train.tsv"), "valid": str(tmp_path / "valid.tsv"), "source_language": "en",
                "target_language": "en",
            },
            "training": {"updates": 61, "max_tokens": 256, "learning_rate": 0.003, "warmup_updates": 3},
        }
    )  # fmt: skip
    other = config.model_copy(update={"data": config.data.model_copy(update={"target_language": "de"})})
    message = f"{tmp_path}/train.tsv: data.target_language: found 'de', expected 'en'"
    with pytest.raises(DataError, match=re.escape(message)):
        list(train(other, tmp_path / "other", source=whisper.ours))
    events = list(train(config, tmp_path / "tuned", source=whisper.ours))
    tuned = translume.load(tmp_path / "tuned", engine="plain")
    assert tuned.config.data.source == whisper.translator.config.data.source
    paths = [str(tmp_path / f"{number}.wav") for number in range(2)]
    assert [each.text for each in tuned.translate_all(paths, from_="en")] == list(targets)
    (begun,) = [event for event in events if isinstance(event, Started)]
    assert (begun.training.used, begun.training.dropped) == (2, {"too long": 1})
