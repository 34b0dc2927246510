"""`translume inspect MODEL TEXT`: what-if questions and one-line errors."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import translume

SPLIT_NOTE = "inspected as one text, but translate splits it into 2 sentences: inspect each by itself\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, train_for_a_moment: Callable[..., Path]) -> Path:
    """Return the folder of a briefly trained translator."""
    return train_for_a_moment(tmp_path_factory.mktemp("inspected"), model=1) / "model"


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
            "attribution: found 'occlusion-unknown', expected 'occlusion' or 'occlusion-mask' "
            "with a tokenizer that has no unknown token",
        ),
    ],
)
def test_unknown_attribution_method_is_refused_with_its_option(run, model: Path, method: str, message: str) -> None:
    result = run("inspect", model, "ab", "--attribution", method, "--max-length", "3")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")


def test_a_text_that_translate_would_split_is_inspected_as_one_and_that_is_said(run, model: Path) -> None:
    result = run("inspect", model, "abcd. Klmn.", "--max-length", "3", "--split", "always")
    assert result.exit_code == 0
    assert result.stderr == SPLIT_NOTE


def test_what_if_questions_about_a_text_that_translate_would_split_say_so(run, model: Path) -> None:
    result = run("inspect", model, "abcd. Klmn.", "--why-not", "ab", "--max-length", "3", "--split", "always")
    assert result.stderr == SPLIT_NOTE


def test_what_if_options_replace_the_trace(run, model: Path) -> None:
    translator = translume.load(model, device="cpu", engine="plain")
    settings = translator.config.change("decoding.beam=3", "decoding.max_length=5").decoding
    options = ("--why-not", "AX", "--force", "1=K", "--force", "0=BX", "--edit", "cde b", "--beam", "3")
    result = run("inspect", model, "ab kl", *options, "--max-length", "5", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    content = json.loads(result.stdout)
    assert list(content) == ["why_not", "forced", "edited"]
    (why,) = map(translume.WhyNot.from_dict, content["why_not"])
    assert why == translume.why_not(translator, "ab kl", "AX", settings=settings)
    one, other = map(translume.Forced.from_dict, content["forced"])
    assert one == translume.force_token(translator, "ab kl", 1, "K", settings=settings)
    assert other == translume.force_token(translator, "ab kl", 0, "BX", settings=settings)
    (edited,) = map(translume.Edited.from_dict, content["edited"])
    assert edited == translume.edit_source(translator, "ab kl", "cde b", settings=settings)
    lines = run("inspect", model, "ab kl", *options, "--max-length", "5").stdout.splitlines()
    asked = [line for line in lines if line.startswith(("why not  ", "forced   ", "edited   "))]
    assert asked == ["why not  AX", "forced   K, at step 1", "forced   BX, at step 0", "edited   cde b"]
    assert lines.count("source   ab kl") == 4


@pytest.mark.parametrize("text", ["house", "=house", "1=", "one=house", "-1=house", "²=house"])
def test_invalid_step_and_text_is_refused(run, model: Path, text: str) -> None:
    result = run("inspect", model, "ab", f"--force={text}")
    message = f"--force: found '{text}', expected STEP=TEXT such as 3=house; steps count from 0"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")


BESIDE = (
    "inspect: --target, --reference, --top, --alternatives, --attribution and --html are for a trace, "
    "found one of --why-not, --force and --edit"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("ab", "--edit", "b", "--target", ""), BESIDE),
        (("ab", "--edit", "b", "--top", "5"), BESIDE),
        (("ab", "--force", "0=A", "--html", "out.html"), BESIDE),
        (
            ("--corpus", "a", "b", "--why-not", "A"),
            "inspect: --why-not, --force and --edit are for a TEXT, found --corpus",
        ),
        (("ab", "--force", "7=A", "--max-length", "2"), "step: found 7, expected 0 to 1, a token of the target"),
        (("ab", "--edit", " ", "--max-length", "2"), "source: found a blank text, expected a sentence"),
    ],
)
def test_impossible_what_if_questions_are_refused(run, model: Path, options, message: str) -> None:
    result = run("inspect", model, *options)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")
