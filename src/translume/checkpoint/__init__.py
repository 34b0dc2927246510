"""The model folder: atomic commits, saving and loading, the model card, and the lock of the training process."""

from typing import TYPE_CHECKING

from translume.exports import export_late

if TYPE_CHECKING:
    from translume.checkpoint.building import build_language_model as build_language_model
    from translume.checkpoint.building import build_model as build_model
    from translume.checkpoint.building import build_network as build_network
    from translume.checkpoint.building import free as free
    from translume.checkpoint.building import load_pretrained as load_pretrained
    from translume.checkpoint.building import mark_separators as mark_separators
    from translume.checkpoint.building import without_values as without_values
    from translume.checkpoint.folder import FORMAT as FORMAT
    from translume.checkpoint.folder import Content as Content
    from translume.checkpoint.folder import FolderLock as FolderLock
    from translume.checkpoint.folder import Manifest as Manifest
    from translume.checkpoint.folder import commit as commit
    from translume.checkpoint.folder import committed as committed
    from translume.checkpoint.folder import is_hub as is_hub
    from translume.checkpoint.folder import is_remote as is_remote
    from translume.checkpoint.folder import model_folder as model_folder
    from translume.checkpoint.folder import read_committed as read_committed
    from translume.checkpoint.folder import verified as verified
    from translume.checkpoint.folder import verify as verify
    from translume.checkpoint.history import append_history as append_history
    from translume.checkpoint.history import data_of_history as data_of_history
    from translume.checkpoint.history import read_history as read_history
    from translume.checkpoint.history import record_evaluation as record_evaluation
    from translume.checkpoint.loading import VOCABULARIES as VOCABULARIES
    from translume.checkpoint.loading import AnyCheckpoint as AnyCheckpoint
    from translume.checkpoint.loading import Checkpoint as Checkpoint
    from translume.checkpoint.loading import ClassifierCheckpoint as ClassifierCheckpoint
    from translume.checkpoint.loading import LanguageModelCheckpoint as LanguageModelCheckpoint
    from translume.checkpoint.loading import Temperature as Temperature
    from translume.checkpoint.loading import choose_dtype as choose_dtype
    from translume.checkpoint.loading import load_any as load_any
    from translume.checkpoint.loading import load_checkpoint as load_checkpoint
    from translume.checkpoint.loading import model_files as model_files
    from translume.checkpoint.loading import own_file as own_file
    from translume.checkpoint.loading import read_lengths as read_lengths
    from translume.checkpoint.loading import read_tokenizers as read_tokenizers
    from translume.checkpoint.loading import read_vocabularies as read_vocabularies
    from translume.checkpoint.loading import refuse_threads as refuse_threads
    from translume.checkpoint.loading import save_model as save_model
    from translume.checkpoint.loading import store_temperature as store_temperature
    from translume.checkpoint.model_card import Card as Card
    from translume.checkpoint.model_card import write_card as write_card
    from translume.checkpoint.settings import copy_decoding_files as copy_decoding_files
    from translume.checkpoint.settings import read_config as read_config
    from translume.checkpoint.settings import stale_decoding_files as stale_decoding_files
    from translume.checkpoint.settings import store_decoding as store_decoding
    from translume.checkpoint.weights import assign as assign
    from translume.checkpoint.weights import fill as fill
    from translume.checkpoint.weights import read_tensors as read_tensors
    from translume.checkpoint.weights import tensor_file as tensor_file
    from translume.checkpoint.weights import unique_tensors as unique_tensors
    from translume.device import choose_device as choose_device

export_late(__name__)
