"""The public names of the package: all exist, and importing the package loads none of them."""

import subprocess
import sys

import pytest

import translume


@pytest.mark.parametrize("name", [name for name in translume.__all__ if name != "train"])
def test_every_public_name_exists(name: str) -> None:
    assert getattr(translume, name) is not None
    assert name in dir(translume)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'translume' has no attribute 'lode'"):
        translume.lode  # noqa: B018


def test_errors_and_names_need_no_torch() -> None:
    code = "import sys, translume; translume.TranslumeError, dir(translume); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: list(translume.train("en-de.toml", "models/en-de")),
            "config: found str, expected a Config; Config.read reads one from a file",
        ),
        (
            lambda: translume.evaluate("models/en-de", ["a"], ["b"]),
            "translator: found str, expected a Translator; call translume.load(folder)",
        ),
        (
            lambda: translume.trace("models/en-de", "a"),
            "translator: found str, expected a Translator; call translume.load(folder)",
        ),
    ],
)
def test_a_path_instead_of_an_object_raises_a_type_error_that_names_the_loader(call, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message
