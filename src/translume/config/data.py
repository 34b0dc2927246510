"""[data]: which files are read, and what is left out of them."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from translume.config.base import Names, Numbers, OneOf, Settings


def _as_columns(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class CleaningSettings(Settings):
    """[data.cleaning]: rules that leave pairs out of training; each counts what it drops."""

    table: ClassVar[str] = "data.cleaning"

    max_tokens: int = Field(default=256, ge=1)
    """Pairs with a side of more tokens than this are dropped (after tokenization, end mark not counted)."""
    too_long: Literal["drop", "keep_first", "keep_last"] = "drop"
    """What becomes of such pairs; a text to classify may also be cut, at its end or its beginning, which is counted."""
    max_ratio: float = Field(default=0.0, ge=0.0)
    """Pairs whose longer side has more than this many times the tokens of the shorter are dropped; 0 keeps all."""
    identical: bool = False
    """Drop pairs whose two sides are the same text."""
    duplicates: bool = False
    """Drop pairs that stood in the training files before."""
    source_script: str = ""
    """Drop pairs whose source is mostly not in this script: "latin", "han", "cyrillic", …; empty keeps all."""
    target_script: str = ""
    """The same for the target."""


class DataSettings(Settings):
    """[data]: parallel text. Paths are relative to the TOML file; .gz and .zst are read as they are."""

    table: ClassVar[str] = "data"

    source_language: str = ""
    """Code of the source language, such as "en"; names outputs and chooses defaults."""
    target_language: str = ""
    """Code of the target language, such as "de"."""
    task: Annotated[str, AfterValidator(OneOf("translume.tasks:task_names"))] = "sequence"
    """What is learnt: text to text, or the label of a text, which stands where the target does."""
    label_separator: str = ","
    """What parts the labels of a text where `model.head.labels` is "several"."""
    columns: Annotated[tuple[int | str, ...], BeforeValidator(_as_columns)] = ()
    """Columns of TSV (numbers from 0) or keys of JSONL of source and target, or of text and label.

    Empty: 0 and 1; "source" and "target", or "text" and "label".
    """
    train_source: Names = ()
    """Training files of the source side, one sentence a line."""
    train_target: Names = ()
    """Training files of the target side, line by line the translations of `train_source`."""
    train: Names = ()
    """TSV or JSONL training files with both sides, instead of `train_source` and `train_target`."""
    valid_source: Names = ()
    """Validation files of the source side; without any, a sample of the training data is held out."""
    valid_target: Names = ()
    """Validation files of the target side."""
    valid: Names = ()
    """TSV or JSONL validation files with both sides."""
    weights: Numbers = ()
    """How often each training file is read in an epoch (2.5: twice, and half of it again); empty: once each."""
    cleaning: CleaningSettings = CleaningSettings()
