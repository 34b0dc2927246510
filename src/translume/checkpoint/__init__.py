"""The model folder: atomic commits, saving and loading, the model card, one training process at a time."""

from translume.checkpoint.build import build_model, build_network
from translume.checkpoint.card import Card, write_card
from translume.checkpoint.evaluated import record_evaluation
from translume.checkpoint.folder import Content, commit, committed, read_committed, verify
from translume.checkpoint.history import append_history, read_history
from translume.checkpoint.lock import FolderLock
from translume.checkpoint.manifest import FORMAT, Entry, Manifest
from translume.checkpoint.model import (
    Checkpoint,
    ClassifierCheckpoint,
    choose_device,
    choose_dtype,
    load_any,
    load_checkpoint,
    load_classifier_checkpoint,
    model_files,
    read_config,
    read_tokenizers,
    read_vocabularies,
    refuse_threads,
    save_model,
)
from translume.checkpoint.named import left_over, taken_in
from translume.checkpoint.pretrained import load_pretrained, mark_separators
from translume.checkpoint.temperature import Temperature, store_temperature
from translume.checkpoint.weights import fill, read_metadata, read_tensors, tensor_file, unique_tensors

__all__ = [
    "FORMAT",
    "Card",
    "Checkpoint",
    "ClassifierCheckpoint",
    "Content",
    "Entry",
    "FolderLock",
    "Manifest",
    "Temperature",
    "append_history",
    "build_model",
    "build_network",
    "choose_device",
    "choose_dtype",
    "commit",
    "committed",
    "fill",
    "left_over",
    "load_any",
    "load_checkpoint",
    "load_classifier_checkpoint",
    "load_pretrained",
    "mark_separators",
    "model_files",
    "read_committed",
    "read_config",
    "read_history",
    "read_metadata",
    "read_tensors",
    "read_tokenizers",
    "read_vocabularies",
    "record_evaluation",
    "refuse_threads",
    "save_model",
    "store_temperature",
    "taken_in",
    "tensor_file",
    "unique_tensors",
    "verify",
    "write_card",
]
