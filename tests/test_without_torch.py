"""What translating needs can be imported, and a model loaded, where torch cannot be imported."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from translume.checkpoint import load_checkpoint, unique_tensors

GOLDEN = Path(__file__).parent / "checkpoint" / "golden" / "format_2"
PACKAGES = [
    *("belief", "checkpoint", "config", "data", "decoding", "device", "documents", "engine", "errors"),
    *("evaluation", "kernels", "lazy", "parallel", "sources", "tasks", "text", "translator"),
]
BUILDS_NETWORKS = {"translume.checkpoint.building"}

WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
"""
IMPORT_ALL = (
    WITHOUT_TORCH
    + """
import os
from importlib import import_module
from pkgutil import walk_packages
import numpy, pydantic  # once, and the modules of each package in a process of their own

packages, left_out = map(json.loads, sys.argv[1:])
for package in packages:
    if os.fork():
        assert os.wait()[1] == 0, package
        continue
    module = import_module(f"translume.{package}")
    for each in walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
        if each.name not in left_out:
            import_module(each.name)
    os._exit(0)
"""
)
LOAD = (
    WITHOUT_TORCH
    + """
from translume.checkpoint import load_any, read_tokenizers
from translume.errors import SettingsError
loaded = load_any(sys.argv[1], device=sys.argv[2])
arrays = loaded.arrays()
try:
    loaded.model
except SettingsError as error:
    refused = str(error)
ids = loaded.source_tokenizer.encode("a dog")
print(json.dumps({
    "sums": {name: float(array.sum(dtype="float64")) for name, array in arrays.items()},
    "text": loaded.target_tokenizer.decode(ids), "width": loaded.config.model.width, "refused": refused,
    "on_cpu": loaded.on_cpu,
}))
"""
)


def run(code: str, *arguments: str) -> str:
    """Run code in a fresh Python, and return its standard output."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_of_a_package_is_imported_without_torch() -> None:
    run(IMPORT_ALL, json.dumps(PACKAGES), json.dumps(sorted(BUILDS_NETWORKS)))


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_model_is_loaded_without_torch(device: str) -> None:
    found = json.loads(run(LOAD, str(GOLDEN), device))
    expected = load_checkpoint(GOLDEN)
    tensors = {name: np.asarray(tensor) for name, tensor in unique_tensors(expected.model).items()}
    assert found == {
        "sums": {name: float(array.sum(dtype="float64")) for name, array in tensors.items()},
        "text": "a dog",
        "width": expected.config.model.width,
        "refused": "this needs torch, which is not installed; pip install 'translume[train]'",
        "on_cpu": True,
    }
