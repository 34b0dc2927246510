"""An exporter: the weights as NumPy arrays, compared with the model after they are read again."""

from pathlib import Path

import numpy as np
import torch

from translume.checkpoint import Checkpoint
from translume.checkpoint.building import build_model
from translume.errors import SettingsError
from translume.interchange.certificate import Certificate, forced_targets
from translume.parts import part


@part("export", "my_part", interface=1)
def my_part(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    """Write a model into an empty folder, and return how far what was written is from it."""
    if dtype != "float32":
        raise SettingsError(f"export: found weights as {dtype!r}, expected 'float32' for my_part")
    forced = forced_targets(checkpoint)
    arrays = {name: each.numpy() for name, each in checkpoint.model.state_dict().items()}
    np.savez(folder / "weights.npz", allow_pickle=False, **arrays)
    sizes = len(checkpoint.source_tokenizer), len(checkpoint.target_tokenizer)
    copy = build_model(checkpoint.config.model, *sizes).eval()
    with np.load(folder / "weights.npz", allow_pickle=False) as written:
        copy.load_state_dict({name: torch.from_numpy(written[name]) for name in arrays})
    scores = []
    for example in forced.examples(checkpoint):
        source, target, labels = map(torch.from_numpy, example)
        with torch.no_grad():
            scores.append(copy.score(source, source >= 0, target, labels, labels >= 0)[0].tolist())
    return forced.compare(scores, "the copy", folder)
