"""Load programs of the repository that are no modules of the package: scripts, benchmarks and pages' figures."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def program(path: str) -> ModuleType:
    """Return the module of a file, such as "scripts/size.py". It is run each time."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module
