"""[evaluation]: how translations are measured."""

import re
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from translume.config.base import Names, Options, OptionTables, Settings
from translume.errors import SettingsError, nearest

TOKENIZERS = {
    **dict.fromkeys(("zh", "yue", "wuu", "lzh"), "zh"),
    **dict.fromkeys(("ja", "ko", "th", "lo", "km", "my", "bo", "dz"), "char"),
}
"""sacreBLEU's tokenizer by language, for languages written without spaces and Korean; "13a" for all others."""


def tokenizer_of(language: str) -> str:
    """Return sacreBLEU's tokenizer for a language code such as "zh" or "pt-BR"; "13a" for other languages."""
    return TOKENIZERS.get(language.lower().replace("_", "-").split("-")[0], "13a")


METRICS: dict[str, Any] = {
    "bleu": "translume.evaluation.sacrebleu_metrics:bleu",
    "chrf": "translume.evaluation.sacrebleu_metrics:chrf",
    "ter": "translume.evaluation.sacrebleu_metrics:ter",
    "exact_match": "translume.evaluation.string_metrics:exact_match",
    "wer": "translume.evaluation.string_metrics:wer",
    "per": "translume.evaluation.string_metrics:per",
    "cer": "translume.evaluation.string_metrics:cer",
    "rouge1": "translume.evaluation.string_metrics:rouge1",
    "rouge2": "translume.evaluation.string_metrics:rouge2",
    "rougeL": "translume.evaluation.string_metrics:rouge_l",
    "squad_f1": "translume.evaluation.string_metrics:squad_f1",
    "squad_exact": "translume.evaluation.string_metrics:squad_exact",
    "sari": "translume.evaluation.sacrebleu_metrics:Sari",
    "terminology": "translume.evaluation.terminology:TermAccuracy",
    "comet": "translume.evaluation.comet:comet",
    "comet-kiwi": "translume.evaluation.comet:comet_kiwi",
    "bertscore": "translume.interchange.pretrained_metrics:BertScore",
    "metricx": "translume.interchange.pretrained_metrics:MetricX",
}
"""Functions from [evaluation] to a metric."""
TRANSLATION_METRICS = ("bleu", "chrf")
"""The metrics of "auto" for translation."""
LEARNED = {
    "comet": ("comet", "model"),
    "comet-kiwi": ("comet", "kiwi_model"),
    "bertscore": ("bertscore", "model"),
    "metricx": ("metricx", "model"),
}
"""Metrics that a model computes, and the table in [evaluation] and the setting in it that name the model."""


def utility_names() -> list[str]:
    """Return the names that `decoding.utility` may have: learned metrics and those from outside can rank, too."""
    outside = (name for name, metric in METRICS.items() if not isinstance(metric, str))
    return ["none", "chrf", "bleu", *LEARNED, *outside]


class CometSettings(Settings):
    """[evaluation.comet]: the metrics "comet" and "comet-kiwi", computed by unbabel-comet in its own environment."""

    table: ClassVar[str] = "evaluation.comet"

    model: str = ""
    """Model of "comet": a checkpoint of comet (a file .ckpt) or hf://owner/name. Loading it unpickles it."""
    kiwi_model: str = ""
    """Model of "comet-kiwi", which compares with the source and reads no reference; as `model`."""
    python: str = ""
    """Python of the environment; empty: $TRANSLUME_COMET_PYTHON, or the one that `translume metrics install comet`
    makes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model computes; "auto": on a GPU if that Python finds one."""
    precision: Literal["fp32", "fp16"] = "fp32"
    """Number format; "fp16" is that of the command `comet-score`."""
    batch: int = Field(default=16, ge=1)
    """Texts in a batch."""


class BertScoreSettings(Settings):
    """[evaluation.bertscore]: the metric "bertscore", which compares states of a pretrained encoder."""

    table: ClassVar[str] = "evaluation.bertscore"

    model: str = ""
    """A folder of transformers with an encoder, such as XLM-R, or hf://owner/name."""
    layer: int = Field(default=0, ge=0)
    """The layer whose states are compared, from 1; 0: the last. Scores of different layers cannot be compared."""


METRICX_FIELDS = ("source", "candidate", "reference")
"""Fields of `evaluation.metricx.template`: the sides of a row; the second is the text that is rated."""


class MetricXSettings(Settings):
    """[evaluation.metricx]: the metric "metricx", the error that an mT5 predicts, with the sign changed."""

    table: ClassVar[str] = "evaluation.metricx"

    model: str = ""
    """A model of MetricX-23 or 24: a folder of transformers, or hf://owner/name."""
    tokenizer: str = "hf://google/mt5-xl"
    """mT5's tokenizer, which the models come without: a folder of transformers, or hf://owner/name."""
    template: str = "source: {source} candidate: {candidate} reference: {reference}"
    """What the model reads: MetricX-24 as given, or without references "source: {source} candidate: {candidate}".
    MetricX-23 reads "candidate: {candidate} reference: {reference}", or without references "candidate: {candidate}
    source: {source}"."""

    @field_validator("template")
    @classmethod
    def _fields_are_known(cls, template: str) -> str:
        fields = re.findall(r"{(.*?)}", template)
        for name in fields:
            if name not in METRICX_FIELDS:
                raise ValueError(f"found '{{{name}}}'{nearest(name, METRICX_FIELDS)}")
        if "candidate" not in fields:
            raise ValueError("found no {candidate}, which stands for the text that is rated")
        return template


class EvaluationSettings(Settings):
    """[evaluation]: metrics and their options, as sacreBLEU names them."""

    table: ClassVar[str] = "evaluation"

    metrics: Names = ("auto",)
    """Any of "bleu", "chrf", "ter", "exact_match", "wer", "per", "cer", "rouge1", "rouge2", "rougeL", "squad_f1",
    "squad_exact", "sari", "terminology", "comet", "comet-kiwi", "bertscore",
    "metricx".

    "auto": `training.metric`, or BLEU and chrF if that is one of these or "nll".
    """
    tokenize: Literal["auto", "none", "13a", "intl", "zh", "char", "ja-mecab", "ko-mecab"] = "auto"
    """sacreBLEU's tokenizer for BLEU; "auto" chooses by target language, or by the references if none is named; "none"
    is for tokenized text."""
    lowercase: bool = False
    """Ignore case."""
    glossary: str = ""
    """File of the terms of "terminology": in each line a source term, a tab and a translation. It adds this metric."""
    stride: int = Field(default=0, ge=0)
    """Tokens from one window to the next in which a language model reads a long document; 0: half its context."""
    comet: CometSettings = Field(default_factory=CometSettings)
    bertscore: BertScoreSettings = Field(default_factory=BertScoreSettings)
    metricx: MetricXSettings = Field(default_factory=MetricXSettings)
    options: OptionTables = Field(default_factory=Options)
    """Settings of parts from outside, a table for each."""

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics; BLEU and chrF for "auto" if no training is known."""
        names = TRANSLATION_METRICS if self.metrics == ("auto",) else self.metrics
        return tuple(dict.fromkeys((*names, *(["terminology"] if self.glossary else []))))

    def with_model(self, metric: str, model: str) -> Self:
        """Return a copy in which a learned metric has another model; the same for "".

        Raises SettingsError for other metrics.
        """
        if not model:
            return self
        if metric not in LEARNED:
            raise SettingsError(f"decoding.utility_model: found {model!r}, must be '' for utility = '{metric}'")
        table, setting = LEARNED[metric]
        return self.model_copy(update={table: getattr(self, table).model_copy(update={setting: model})})

    def of_training(self, metric: str) -> Self:
        """Return a copy with the metrics of "auto" for a model that was trained with `training.metric`."""
        if self.metrics != ("auto",) or metric in ("nll", *TRANSLATION_METRICS):
            return self
        return self.model_copy(update={"metrics": (metric,)})

    def of_language(self, language: str) -> Self:
        """Return a copy with "auto" replaced by the tokenizer for a language; the same for an unknown one, ""."""
        auto = self.tokenize == "auto" and language
        return self.model_copy(update={"tokenize": tokenizer_of(language)}) if auto else self
