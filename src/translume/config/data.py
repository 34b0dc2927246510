"""[data]: the training and validation files, and the cleaning rules."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from translume.config.base import Names, Numbers, OneOf, Settings


def _as_columns(value: object) -> object:
    return (value,) if isinstance(value, int | str) else tuple(value) if isinstance(value, list) else value


class CleaningSettings(Settings):
    """[data.cleaning]: rules that drop pairs from training; each counts what it drops."""

    table: ClassVar[str] = "data.cleaning"

    max_tokens: int = Field(default=256, ge=1)
    """Maximum number of tokens of either side, end mark excluded. Documents of a language model may be longer."""
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


class DataSettings(Settings):
    """[data]: pairs, labelled texts or documents.

    Paths are relative to the TOML file; .gz and .zst files are decompressed.
    """

    table: ClassVar[str] = "data"

    source_language: str = ""
    """Code of the source language, such as "en"; names outputs and chooses defaults."""
    target_language: str = ""
    """Code of the target language, such as "de"."""
    task: Annotated[str, AfterValidator(OneOf("translume.tasks:task_names"))] = "sequence"
    """The task: text to text; the label of a text, which takes the place of the target; or a language model."""
    documents: Literal["line", "blank_line", "file"] = "line"
    """For a language model, where a document of a text file ends: with its line, at a blank line, or with the file.

    A .jsonl file has one document per line, under the key "text".
    """
    block_length: int = Field(default=256, ge=2, le=1_048_576)
    """For a language model, the context in tokens: longer documents are cut into blocks of this length, none dropped.

    From the second epoch on, the first cut of a long document is at random. A block holds text of one document only.
    """
    label_separator: str = ","
    """Separator between the labels of a text if `model.head.labels` is "several"."""
    columns: Annotated[tuple[int | str, ...], BeforeValidator(_as_columns)] = ()
    """Columns of source and target, or of text and label: keys of JSONL; for TSV and CSV, numbers from 0, or names in
    the first line.

    Empty: 0 and 1; "source" and "target", or "text" and "label". With `template`, only the target's.
    """
    template: str = ""
    """A source made from columns in braces, such as "{question} | {passage}"; {{ and }} are braces."""
    train_source: Names = ()
    """Training files of the source side, one sentence per line."""
    train_target: Names = ()
    """Training files of the target side, line by line the translations of `train_source`."""
    train: Names = ()
    """TSV, CSV or JSONL training files with both sides, instead of `train_source` and `train_target`.

    For a language model, text files or JSONL files of documents.
    """
    valid_source: Names = ()
    """Validation files of the source side; without any, a sample of the training data is held out."""
    valid_target: Names = ()
    """Validation files of the target side."""
    valid: Names = ()
    """TSV, CSV or JSONL validation files with both sides; for a language model, text files."""
    weights: Numbers = ()
    """Number of times each training file is read in an epoch (2.5: twice, then half of it); empty: once each."""
    cleaning: CleaningSettings = CleaningSettings()

    @property
    def translation(self) -> bool:
        """Whether both languages are named and differ, so that a text can be translated sentence by sentence."""
        return bool(self.source_language and self.target_language) and self.source_language != self.target_language
