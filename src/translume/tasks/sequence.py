"""Sequence to sequence: an encoder reads the source, and a decoder generates the target (Vaswani et al. 2017)."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from translume.errors import SettingsError
from translume.tasks.task import Task

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, ModelSettings, TrainingSettings


def _check(data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
    """Raise SettingsError for a model of several target languages that does not read which one is meant."""
    targets = list(dict.fromkeys(corpus.target_language for corpus in data.corpus))
    if len(targets) > 1 and model.language_tags == "none":
        raise SettingsError(
            f"{place}: model.language_tags: found 'none' with the target languages {', '.join(targets)}; "
            "expected 'source' or 'target'"
        )


def _describe_vocabulary(source: int, target: int, shared: bool) -> str:
    return f"{source:,} tokens, shared" if shared else f"{source:,} source and {target:,} target tokens"


def _next_steps(folder: Path, config: "Config") -> str:
    model = shlex.quote(str(folder))
    if config.data.source.reader:
        return f"Next: translume translate {model} < PATHS, or translume evaluate {model} MANIFEST"
    return f"Next: translume translate {model} < TEXT, or translume evaluate {model} SOURCE REFERENCE"


TASK = Task(
    name="sequence",
    summary="text to text",
    model="translator",
    command="translate",
    example="pair",
    target="target tokens",
    keys=("source", "target"),
    missing_target="empty",
    keep_target="tokenizer.target_path = '{file}'",
    vocabulary_files=("source_settings.json", "target_settings.json"),
    predicts="tokens",
    metrics={
        **dict.fromkeys(("bleu", "chrf", "exact_match", "rouge1", "rouge2", "rougeL"), True),
        **dict.fromkeys(("squad_f1", "squad_exact", "sari"), True),
        **dict.fromkeys(("ter", "wer", "per", "cer"), False),
    },
    check=_check,
    describe_vocabulary=_describe_vocabulary,
    next_steps=_next_steps,
    vocabulary="translume.text:Tokenizer",
    network="translume.checkpoint.building:build_model",
    vocabularies="translume.training.vocabularies:learn_tokenizers",
    encode_targets="translume.data.token_cache:encode_texts",
    make_batch="translume.data.batch:padded_batch",
    loss_options="translume.training.optimisation:token_loss_options",
    head_data="translume.training.prepare:token_head_data",
    validation="translume.training.validation:translation_metrics",
    checkpoint="translume.checkpoint:Checkpoint",
    user_class="translume.translator:Translator",
    card="translume.checkpoint.model_card:describe_transformer",
    evaluate="translume.cli.evaluate:evaluate_translator",
    inspect="translume.cli.inspect:inspect_translator",
    recommend="translume.recommend.sequence:propose_for_pairs",
    served="translume.serving.workers.models:Served",
)
