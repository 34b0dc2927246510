"""FSMTForConditionalGeneration: the models of Facebook for WMT19, with a vocabulary for each side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.interchange.huggingface.bart import OURS, THEIRS, BartLayout
from translume.interchange.huggingface.config import ForeignConfig, read_boolean, read_integer
from translume.interchange.huggingface.family import TiedTable
from translume.interchange.huggingface.tokenizer import NAME, read_tokenizer
from translume.interchange.huggingface.word_tokenizer import read_fsmt_tokenizers, word_tokenizer
from translume.text import Tokenizer

TABLE, HEAD = "model.decoder.embed_tokens.weight", "model.decoder.output_projection.weight"
TABLES: dict[str, list[TiedTable]] = {
    "all": [(OURS, (TABLE, THEIRS[0], HEAD))],
    "target": [(OURS[:1], THEIRS[:1]), (OURS[1:], (TABLE, HEAD))],
    "none": [((ours,), (theirs,)) for ours, theirs in zip(OURS, (*THEIRS[:2], HEAD), strict=True)],
}


class Fsmt(BartLayout):
    """Post-norm, with the sinusoids of fairseq."""

    architecture = "FSMTForConditionalGeneration"
    model_type = "fsmt"
    tokenizer_class = "FSMTTokenizer"
    norm = "post"
    ties = tuple(TABLES)
    required: ClassVar[Mapping[str, object]] = {"pad_token_id": 1}

    def read_config(self, place: Path, values: Mapping[str, Any]) -> ForeignConfig:
        return super().read_config(place, {**values, "vocab_size": read_integer(place, values, "src_vocab_size")})

    def target_vocabulary(self, place: Path, values: Mapping[str, Any]) -> int:
        return read_integer(place, values, "tgt_vocab_size")

    def tokenizers(self, folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
        if (folder / NAME).exists():
            return read_tokenizer(folder, config)
        return read_fsmt_tokenizers(folder, config)

    def written_tokenizer(self, checkpoint: Checkpoint) -> Any:
        return word_tokenizer(checkpoint)

    def describes(self, settings: ModelSettings) -> bool:
        return settings.positions == "fairseq" and settings.norm == self.norm

    def positions(self, state: Mapping[str, Tensor]) -> str:
        return "fairseq"

    def tie(self, config: ForeignConfig) -> str:
        return "all" if read_boolean(config.place, config.values, "tie_word_embeddings", False) else "none"

    def model_values(self, config: ForeignConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
        values = super().model_values(config, state)
        if values["head"]["tie"] == "none" and (HEAD not in state or torch.equal(state[TABLE], state[HEAD])):
            values["head"]["tie"] = "target"  # no setting says it
        return values

    def config_values(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {
            **super().config_values(checkpoint),
            "src_vocab_size": len(checkpoint.source_tokenizer),
            "vocab_size": len(checkpoint.target_tokenizer),  # so does transformers call that of the target
            "tgt_vocab_size": len(checkpoint.target_tokenizer),
            "tie_word_embeddings": checkpoint.config.model.head.tie == "all",
        }

    def tables(self, settings: ModelSettings) -> Sequence[TiedTable]:
        return TABLES[settings.head.tie]
