"""What probes found, kept from run to run: the same choice again means the same numbers again."""

import json
import os
import platform
from pathlib import Path

import torch

from translume.engine.probe import CANDIDATES, Choice, Dtype


def cache_folder() -> Path:
    """Where findings about this machine are kept: $TRANSLUME_CACHE, or translume/ in the user's cache."""
    given = os.environ.get("TRANSLUME_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "translume"


def remembered(dtype: Dtype) -> Choice:
    """The choice for a dtype on this machine, with this torch; an empty one where nothing sound was kept."""
    found = _read().get(_key(dtype))
    known = CANDIDATES[dtype]
    if not isinstance(found, dict):
        return Choice(dtype)
    return Choice(dtype, {shape: kind for shape, kind in found.items() if kind in known})


def remember(choice: Choice) -> bool:
    """Keep a choice; False where the folder cannot be written, which costs nothing but the next probe."""
    path = cache_folder() / "engine.json"
    kept = {**_read(), _key(choice.dtype): choice.kinds}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        return False
    return True


def _read() -> dict[str, object]:
    try:
        found = json.loads((cache_folder() / "engine.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _key(dtype: str) -> str:
    """What a choice depends on beside the shapes."""
    return f"{dtype} {platform.machine()} {_processor()} {torch.__version__} threads={torch.get_num_threads()}"


def _processor() -> str:
    """The processor's name and whether it has the matrix unit that bf16 and int8 need to be fast."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    return f"{facts.get('model name', '')} {facts.get('stepping', '')} amx={'amx_int8' in facts.get('flags', '')}"
