"""[data]: the training and validation files, and the cleaning rules."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from translume.config.base import Names, Numbers, OneOf, Settings, as_tuple
from translume.config.sources import SourceSettings, TextSettings

PATHS = ("train_source", "train_target", "train", "valid_source", "valid_target", "valid")
"""The settings of [data] and [[data.corpus]] that are paths."""


def _as_columns(value: object) -> object:
    return (value,) if isinstance(value, int) else as_tuple(value)


Columns = Annotated[tuple[int | str, ...], BeforeValidator(_as_columns)]
"""Columns of a table: keys, names in its first line, or numbers from 0."""


class CleaningSettings(Settings):
    """[data.cleaning]: rules that drop pairs from training; each counts what it drops."""

    table: ClassVar[str] = "data.cleaning"

    max_tokens: int = Field(default=256, ge=1)
    """Maximum number of tokens of either side, EOS excluded. Documents of a language model may be longer."""
    too_long: Literal["drop", "keep_first", "keep_last"] = "drop"
    """What to do with longer pairs. Sources may also be cut to their first or last tokens; cuts are counted."""
    max_ratio: float = Field(default=0.0, ge=0.0)
    """Maximum ratio of the token counts of the two sides; 0 for no limit."""
    identical: bool = False
    """Drop pairs whose two sides are the same text."""
    duplicates: bool = False
    """Drop pairs that occurred before in the training files."""
    source_script: str = ""
    """Drop pairs whose source is mostly not in this script: "latin", "han", "cyrillic", …; empty keeps all."""
    target_script: str = ""
    """The same for the target."""


class DenoisingSettings(Settings):
    """[data.denoising]: the noise that a model removes with `data.objective` = "denoise"."""

    table: ClassVar[str] = "data.denoising"

    kind: Literal["infill", "spans"] = "infill"
    """The target: the whole text, of which each masked span is one <mask> in the source (BART, Lewis et al. 2020); or
    the spans alone, each after the sentinel that stands for it in the source (T5, Raffel et al. 2020)."""
    rate: float | Literal["auto"] = "auto"
    """Share of the tokens of a text that are masked, from 0 to 0.9; "auto": as published, 0.3 for "infill" and 0.15
    for "spans"."""
    span: float = Field(default=3.0, ge=1.0, le=100.0)
    """Mean number of tokens of a span. Those of "infill" have a Poisson distribution; one of 0 tokens is an added
    <mask>."""
    permute: bool = False
    """For "infill", put the sentences of a text in a random order, as BART does. A token of . ! ? or 。 ends one."""

    @property
    def share(self) -> float:
        """`rate` as a number."""
        if isinstance(self.rate, str):
            return 0.3 if self.kind == "infill" else 0.15
        return self.rate

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        if not 0 <= self.share <= 0.9:
            raise ValueError(f"rate is {self.rate}, expected a number from 0 to 0.9, or 'auto'")
        if self.permute and self.kind == "spans":
            raise ValueError("permute is true with kind = 'spans', expected false; or kind = 'infill'")
        return self


class ContextSettings(Settings):
    """[data.context]: the sentences of a document that are read before each sentence (Tiedemann and Scherrer 2017)."""

    table: ClassVar[str] = "data.context"

    source: int = Field(default=0, ge=0, le=64)
    """Number of sources before the one to translate that the encoder reads."""
    target: int = Field(default=0, ge=0, le=64)
    """Number of targets before the one to write that the decoder reads: in a search, those that it wrote itself."""

    @property
    def used(self) -> bool:
        """Whether any sentence is read before another."""
        return bool(self.source or self.target)


class CorpusSettings(Settings):
    """[[data.corpus]]: the files of one direction of a model of several languages."""

    table: ClassVar[str] = "data.corpus"

    source_language: str = Field(min_length=1)
    """Code of the language of its sources, such as "en"."""
    target_language: str = Field(min_length=1)
    """Code of the language of its targets, such as "de"."""
    train_source: Names = ()
    """As `data.train_source`."""
    train_target: Names = ()
    """As `data.train_target`."""
    train: Names = ()
    """As `data.train`."""
    valid_source: Names = ()
    """As `data.valid_source`."""
    valid_target: Names = ()
    """As `data.valid_target`."""
    valid: Names = ()
    """As `data.valid`."""
    weight: float = Field(default=1.0, gt=0.0, lt=1e6)
    """Number of times that its pairs count in an epoch, before `data.sampling_temperature`."""


class DataSettings(Settings):
    """[data]: pairs, labelled texts or documents.

    Paths are relative to the TOML file; .gz, .zst, .bz2 and .xz files are decompressed.
    """

    table: ClassVar[str] = "data"

    source_language: str = ""
    """Code of the source language, such as "en"; names outputs and chooses defaults."""
    target_language: str = ""
    """Code of the target language, such as "de"."""
    task: Annotated[str, AfterValidator(OneOf("translume.tasks:task_names"))] = "sequence"
    """The task: text to text; the label of a text, which takes the place of the target; or a language model."""
    objective: Literal["pairs", "denoise"] = "pairs"
    """What a model of text to text learns: the targets of sources, or the texts of `train` from noisy ones."""
    documents: Literal["line", "blank_line", "file"] = "line"
    """For a language model or denoising, where a document of a text file ends: with its line, at a blank line, or with
    the file.
    For translation, where one of two parallel files ends ("blank_line": at lines that are blank in both), or of a
    table ("file" only); "line": there are none.

    A .jsonl or .parquet file has one document per line or row, under the key "text".
    """
    document_column: int | str = ""
    """The column of tables of pairs whose value changes where a document begins: a key, name or number as in `columns`.

    `context` needs documents. Whole documents are held out for validation, and `translume evaluate` prints d-BLEU, too.
    """
    context: ContextSettings = ContextSettings.model_construct()
    block_length: int = Field(default=256, ge=2, le=1_048_576)
    """For a language model, the context in tokens: longer documents are cut into blocks of this length, none dropped.

    From the second epoch on, the first cut of a long document is at random. A block holds text of one document only.
    """
    label_separator: str = ","
    """Separator between the labels of a text if `model.head.labels` is "several"."""
    columns: Columns = ()
    """Columns of source and target, or of text and label: keys of JSONL or Parquet; for TSV and CSV, numbers from 0,
    or names in the first line.

    Empty: 0 and 1; "source" and "target", or "text" and "label". With `template`, only the target's.
    """
    template: str = ""
    """A source made from columns in braces, such as "{question} | {passage}"; {{ and }} are braces."""
    train_source: Names = ()
    """Training files of the source side, one sentence per line."""
    train_target: Names = ()
    """Training files of the target side, line by line the translations of `train_source`."""
    train: Names = ()
    """TSV, CSV, JSONL or Parquet training files with both sides, instead of `train_source` and `train_target`. All
    names of files may be patterns: * ? [] and ** for any folders.

    For a language model or denoising, text files, or JSONL or Parquet files of documents.
    """
    valid_source: Names = ()
    """Validation files of the source side; without any, a sample of the training data is held out."""
    valid_target: Names = ()
    """Validation files of the target side."""
    valid: Names = ()
    """TSV, CSV, JSONL or Parquet validation files with both sides; for a language model or denoising, text
    files."""
    weights: Numbers = ()
    """Number of times each training file is read in an epoch (2.5: twice, then half of it); empty: once each."""
    corpus: Annotated[tuple[CorpusSettings, ...], BeforeValidator(as_tuple)] = ()
    """The corpora of a model of several languages, one [[data.corpus]] table each, instead of the files above."""
    streaming: bool = False
    """Read the training files as they are needed, without a token cache: for a corpus that is larger than the disk.

    Needs validation files, and excludes `weights`, `corpus`, sources other than text and `cleaning.duplicates`.
    """
    shuffle_buffer: int = Field(default=200_000, ge=1, le=100_000_000)
    """With `streaming`, the number of pairs that are shuffled and sorted into batches at a time."""
    sampling_temperature: float = Field(default=1.0, ge=1.0, le=1000.0)
    """T of Arivazhagan et al. (2019): a corpus of n pairs has a share of an epoch ∝ (n · weight) ** (1/T).

    1: in proportion to its pairs. Larger values read small corpora more often, and large ones less. An epoch has the
    same number of pairs, and the joint vocabulary is learned from texts in the same shares.
    """
    cleaning: CleaningSettings = CleaningSettings.model_construct()
    denoising: DenoisingSettings = DenoisingSettings.model_construct()
    source: SourceSettings = TextSettings.model_construct()

    def of_corpus(self, corpus: CorpusSettings) -> Self:
        """Return the settings with the languages and files of one corpus."""
        named = {name: getattr(corpus, name) for name in type(corpus).model_fields if name != "weight"}
        count = len(corpus.train_source) + len(corpus.train)
        return self.model_copy(
            update={**named, "weights": (corpus.weight,) * count, "corpus": (), "sampling_temperature": 1.0}
        )

    @model_validator(mode="after")
    def _files_are_in_one_place(self) -> Self:
        if self.corpus:
            for name in (*PATHS, "weights"):
                if getattr(self, name):
                    raise ValueError(f"{name} is set with [[data.corpus]], expected it there")
        elif self.sampling_temperature != 1:
            raise ValueError(f"sampling_temperature is {self.sampling_temperature}, expected 1 without [[data.corpus]]")
        return self

    @model_validator(mode="after")
    def _can_be_streamed(self) -> Self:
        if self.streaming:
            if self.source.reader:
                raise ValueError(f"streaming is true with source = '{self.source.kind}', expected false")
            if self.cleaning.duplicates:
                raise ValueError("streaming is true with cleaning.duplicates = true, expected one of them")
            for name in ("corpus", "weights"):
                if getattr(self, name):
                    raise ValueError(f"streaming is true with {name}, expected false; or mix the files beforehand")
            if not self.valid and not self.valid_source:
                raise ValueError(
                    "streaming is true without validation files; expected valid_source and valid_target, or valid"
                )
        return self

    @property
    def noise(self) -> DenoisingSettings | None:
        """The noise to remove; None if pairs are learned."""
        return self.denoising if self.objective == "denoise" else None

    @property
    def translation(self) -> bool:
        """Whether both languages are named and differ, so that a text can be translated sentence by sentence."""
        if self.corpus:
            return all(each.source_language != each.target_language for each in self.corpus)
        return bool(self.source_language and self.target_language) and self.source_language != self.target_language
