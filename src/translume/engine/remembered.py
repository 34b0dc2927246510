"""What probes found, kept from run to run: the same choice again means the same numbers again."""

import json
import platform

import torch

from translume.atomic import replace_file
from translume.engine.machine import cache_folder, compiler, instruction_limits, processor
from translume.engine.probe import CANDIDATES, Choice, Dtype, known

RULE = 2
"""Version of the rule by which the probe chooses."""


def remembered(dtype: Dtype) -> Choice:
    """The choice for a dtype on this machine, with this torch; an empty one where nothing sound was kept."""
    found = _read().get(_key(dtype))
    if not isinstance(found, dict):
        return Choice(dtype)
    return Choice(dtype, {shape: kind for shape, kind in found.items() if known(shape, kind, dtype)})


def remember(choice: Choice) -> bool:
    """Keep a choice; False where the folder cannot be written, which costs nothing but the next probe."""
    path = cache_folder() / "engine.json"
    kept = {**_read(), _key(choice.dtype): choice.kinds}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True)
        replace_file(path, text.encode(), synced=False)
    except OSError:
        return False
    return True


def _read() -> dict[str, object]:
    try:
        found = json.loads((cache_folder() / "engine.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _key(dtype: Dtype) -> str:
    """What a choice depends on beside the shapes; RULE changes whenever the probe prefers other packings."""
    place = f"{platform.machine()} {processor()} {instruction_limits()} {torch.__version__}"
    threads = f"threads={torch.get_num_threads()}"
    return f"{dtype} {place} {threads} cc={compiler() is not None} rule={RULE} of {' '.join(CANDIDATES[dtype])}"
