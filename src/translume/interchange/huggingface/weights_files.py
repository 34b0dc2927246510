"""Find and read the weights in a folder of transformers."""

from pathlib import Path

from torch import Tensor

from translume.checkpoint import read_tensors
from translume.errors import ModelFolderError

WEIGHTS = "model.safetensors"
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors.index.json", "tf_model.h5")


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """Return the file that error messages name, and the weights by name, in the stored dtypes.

    Raises ModelFolderError if there is no file that we read, or a damaged one.
    """
    path = folder / WEIGHTS
    if path.is_file():
        return path, dict(read_tensors(path))
    for name in _OTHER_WEIGHTS:
        if (folder / name).exists():
            raise ModelFolderError(
                f"{folder / name}: not read, expected {WEIGHTS} in one file; load the model in transformers and "
                "call save_pretrained(folder, max_shard_size='100GB')"
            )
    raise ModelFolderError(f"{path}: no such file, expected the weights as transformers saves them")
