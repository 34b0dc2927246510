"""The model folder: atomic commits, saving and loading, the model card, one training process at a time."""

from translume.checkpoint.build import build_model
from translume.checkpoint.card import Card, write_card
from translume.checkpoint.folder import Content, commit, committed, read_committed, verify
from translume.checkpoint.history import append_history, read_history
from translume.checkpoint.lock import FolderLock
from translume.checkpoint.manifest import FORMAT, Entry, Manifest
from translume.checkpoint.model import (
    Checkpoint,
    choose_device,
    choose_dtype,
    load_checkpoint,
    model_files,
    read_config,
    read_tokenizers,
    save_model,
)
from translume.checkpoint.pretrained import load_pretrained, mark_separators
from translume.checkpoint.weights import fill, read_metadata, read_tensors, tensor_file, unique_tensors

__all__ = [
    "FORMAT",
    "Card",
    "Checkpoint",
    "Content",
    "Entry",
    "FolderLock",
    "Manifest",
    "append_history",
    "build_model",
    "choose_device",
    "choose_dtype",
    "commit",
    "committed",
    "fill",
    "load_checkpoint",
    "load_pretrained",
    "mark_separators",
    "model_files",
    "read_committed",
    "read_config",
    "read_history",
    "read_metadata",
    "read_tensors",
    "read_tokenizers",
    "save_model",
    "tensor_file",
    "unique_tensors",
    "verify",
    "write_card",
]
