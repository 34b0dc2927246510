"""Sequence to sequence: an encoder reads the source, and a decoder generates the target (Vaswani et al. 2017)."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from translume.errors import SettingsError
from translume.tasks.task import Task, elsewhere

if TYPE_CHECKING:
    from translume.config import Config, DataSettings, ModelSettings, TrainingSettings


class SequenceTask(Task):
    """Sources to targets."""

    name = "sequence"
    summary = "text to text"
    model = "translator"
    command = "translate"
    example = "pair"
    target = "target tokens"
    keys = ("source", "target")
    missing_target = "empty"
    keep_target = "tokenizer.target_path = '{file}'"
    vocabulary_files = ("source_settings.json", "target_settings.json")
    predicts = "tokens"
    metrics: ClassVar = {
        **dict.fromkeys(("bleu", "chrf", "exact_match", "rouge1", "rouge2", "rougeL"), True),
        **dict.fromkeys(("squad_f1", "squad_exact", "sari", "terminology"), True),
        **dict.fromkeys(("comet", "comet-kiwi", "bertscore", "metricx"), True),
        **dict.fromkeys(("ter", "wer", "per", "cer"), False),
    }

    learn_vocabularies = elsewhere("translume.training.vocabularies:learn_tokenizers")
    make_batch = elsewhere("translume.data.batch:padded_batch")
    build_network = elsewhere("translume.checkpoint.building:build_model")
    head_data = elsewhere("translume.training.prepare:token_head_data")
    validation_metrics = elsewhere("translume.training.validation:translation_metrics")
    describe_model = elsewhere("translume.checkpoint.model_card:describe_transformer")
    evaluate = elsewhere("translume.cli.evaluate:evaluate_translator")
    inspect_text = elsewhere("translume.cli.inspect:inspect_translation")
    inspect_corpus = elsewhere("translume.cli.inspect:inspect_translations")
    recommend = elsewhere("translume.experiments.proposals:propose_for_pairs")

    def metric_names(self) -> list[str]:
        """As `Task.metric_names`, with the metrics from outside."""
        from translume.config.evaluation import METRICS

        return [*super().metric_names(), *(name for name, metric in METRICS.items() if not isinstance(metric, str))]

    def check(self, data: "DataSettings", model: "ModelSettings", training: "TrainingSettings", place: str) -> None:
        """Raise SettingsError for a model of several target languages that does not read which one is meant."""
        targets = list(dict.fromkeys(corpus.target_language for corpus in data.corpus))
        if len(targets) > 1 and model.language_tags == "none":
            raise SettingsError(
                f"{place}: model.language_tags: found 'none' with the target languages {', '.join(targets)}; "
                "expected 'source' or 'target'"
            )

    def describe_vocabulary(self, source: int, target: int, *, shared: bool) -> str:
        return f"{source:,} tokens, shared" if shared else f"{source:,} source and {target:,} target tokens"

    def next_steps(self, folder: Path, config: "Config") -> str:
        model = shlex.quote(str(folder))
        if config.data.source.reader:
            return f"Next: translume translate {model} < PATHS, or translume evaluate {model} MANIFEST"
        return f"Next: translume translate {model} < TEXT, or translume evaluate {model} SOURCE REFERENCE"

    def vocabulary_class(self) -> Any:
        return resolve_name("translume.text:Tokenizer")

    def encode_targets(self, target: Any, pairs: Any) -> Sequence[Sequence[int]]:
        ids: list[list[int]] = target.encode_all([pair.target for pair in pairs])
        return ids

    def checkpoint_class(self) -> Any:
        return resolve_name("translume.checkpoint:Checkpoint")

    def user_class(self) -> Any:
        return resolve_name("translume.translator:Translator")
