"""`translume inspect MODEL TEXT`: what is refused in one line."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a translator that was trained for a moment."""
    from click.testing import CliRunner

    from translume.cli import main

    folder = tmp_path_factory.mktemp("inspected")
    sources = [f"{first} {second}" for first in ("ab", "cde", "fgh") for second in ("kl", "mno", "a", "b")]
    for name, texts in (("a.en", sources), ("a.de", [text.upper() for text in sources])):
        (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    settings = """
data = {train_source = "a.en", train_target = "a.de", valid_source = "a.en", valid_target = "a.de"}
tokenizer = {kind = "character", size = 300}
model = {width = 12, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 2}
training = {updates = 5, max_tokens = 512, warmup_updates = 2, validate_every = 5, save_every = 5}
"""
    (folder / "a.toml").write_text(settings, encoding="utf-8")
    words = ["train", str(folder / "a.toml"), "--out", str(folder / "model"), "--threads", "1"]
    result = CliRunner().invoke(main, words, prog_name="translume", catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return folder / "model"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "magic",
            "attribution: found 'magic'; known: "
            "occlusion, occlusion-mask, occlusion-unknown, input-gradient, integrated-gradients",
        ),
        ("oclusion", "attribution: found 'oclusion'; did you mean 'occlusion'?"),
        (
            "occlusion-unknown",
            "attribution: found 'occlusion-unknown', wanted 'occlusion' or 'occlusion-mask' "
            "with a tokenizer that has no unknown token",
        ),
    ],
)
def test_a_method_of_attribution_that_there_is_not_is_refused_by_its_option(
    run, model: Path, method: str, message: str
) -> None:
    result = run("inspect", model, "ab", "--attribution", method, "--max-length", "3")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")
