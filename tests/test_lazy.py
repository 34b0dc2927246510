"""torch on demand: imported at first use, its contexts entered then, and one line where it is missing."""

import subprocess
import sys

import pytest
import torch

from translume import lazy

BEGIN = """
import sys
from translume.lazy import Tensor, inference_mode, no_grad, torch
"""


def output_of(code: str) -> str:
    """Run code in a fresh Python and return its standard output."""
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_annotations_decorators_and_instance_checks_import_nothing() -> None:
    code = """
@inference_mode()
def double(x: Tensor | int) -> "torch.dtype | int":
    with no_grad():
        return x if isinstance(x, Tensor) else 2 * x

print(double(4), "torch" in sys.modules)
"""
    assert output_of(code) == "8 False"


def test_a_context_that_began_before_torch_holds_once_torch_is_imported() -> None:
    code = """
@inference_mode()
def inner():
    inside = torch.is_inference_mode_enabled()
    with torch.inference_mode(False):
        made = torch.nn.Linear(2, 2)
    return inside, made.weight.is_inference()

@inference_mode()
def outer():
    return (*inner(), torch.is_inference_mode_enabled())

print(*outer(), torch.is_inference_mode_enabled())
"""
    assert output_of(code) == "True False True False"


def test_a_missing_torch_is_reported_in_one_line() -> None:
    code = """
sys.modules["torch"] = None
from translume.errors import SettingsError
try:
    torch.compile  # a search needs none of it
except SettingsError as error:
    print(error)
"""
    assert output_of(code) == "this needs torch, which is not installed; pip install 'translume[train]'"


def test_attributes_are_those_of_torch() -> None:
    assert lazy.torch.float32 is torch.float32
    assert lazy.torch.nn.functional is torch.nn.functional
    assert isinstance(torch.ones(1), lazy.Tensor)
    assert not isinstance(1.0, lazy.Tensor)
    with pytest.raises(AttributeError, match="module 'torch' has no attribute 'onse'"):
        lazy.torch.onse  # type: ignore[attr-defined]  # noqa: B018


@lazy.inference_mode()
def count():  # type: ignore[no-untyped-def]  # a generator that is sent values
    """Yield whether the context holds, and every value sent; return the last."""
    sent = None
    while sent != "stop":
        try:
            sent = yield torch.is_inference_mode_enabled(), sent
        except KeyError as error:
            sent = error.args[0]
    return sent


def test_a_generator_is_in_the_context_only_while_it_runs() -> None:
    generator = count()
    assert next(generator) == (True, None)
    assert not torch.is_inference_mode_enabled()
    assert generator.send(5) == (True, 5)
    assert generator.throw(KeyError("thrown")) == (True, "thrown")
    with pytest.raises(StopIteration) as end:
        generator.send("stop")
    assert end.value.value == "stop"
    other = count()
    next(other)
    other.close()
    assert not torch.is_inference_mode_enabled()
    other = count()
    next(other)
    with pytest.raises(ValueError, match="unknown"):
        other.throw(ValueError("unknown"))
