"""The model card, README.md of a model folder: kind of model, base model, data, recipe, scores, licence."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from translume.atomic import replace_file
from translume.config import Config, CorpusSettings, DataSettings, Directions
from translume.errors import ModelFolderError, reason_of, refused
from translume.tasks import task_of

NAME = "README.md"
UNKNOWN_LICENCE = "unknown"
TRAINED = "validation "
"""Prefix of the scores that training measured."""
_SCORES = "## Scores\n\n"
_LICENCE = re.compile(r"^license:[ \t]*(.*?)[ \t]*$", re.MULTILINE)


class CardWords(NamedTuple):
    """The phrases of a model card that depend on the task.

    kind: what the model is.  tag: the task's name on model hubs.  output: the file in the example command.
    layers, vocabulary: phrases for the recipe.
    """

    kind: str
    tag: str
    output: str
    layers: str
    vocabulary: str


def describe_transformer(config: Config) -> CardWords:
    """Return the words for an encoder-decoder Transformer."""
    model, source = config.model, config.data.source
    directions = Directions.from_settings(config.data, model)
    direction = directions.describe() if directions.several else f"{source.medium} to text"
    if directions.default.source and directions.default.target:
        direction = f"{directions.default.source} to {directions.default.target}"
    if config.data.noise:
        direction = "noisy text to text"
    layers = f"{model.encoder_layers} + {model.decoder_layers}"
    vocabulary = "one vocabulary for both sides" if config.tokenizer.shared else "a vocabulary for each side"
    return CardWords(f"An encoder-decoder Transformer, {direction}", source.hub_task, "target", layers, vocabulary)


def describe_classifier(config: Config) -> CardWords:
    """Return the words for a classifier of texts."""
    layers = str(config.model.encoder_layers)
    return CardWords("A classifier of texts", "text-classification", "labels", layers, "of texts")


def describe_language_model(config: Config) -> CardWords:
    """Return the words for a language model."""
    return CardWords("A language model", "text-generation", "text", str(config.model.decoder_layers), "of documents")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The content of a model card besides the settings.

    parameters: number of weights, tied ones once.  data: counts of the training pairs.  scores: lines with signatures,
    as from `str(score)`.  licence: an SPDX name; empty keeps that of the present card.  trained: whether the model was
    trained with the settings of [training].  trained_parameters: number of weights, or of those of low-rank adapters,
    that were trained.  base, base_digest: folder of the fine-tuned model and the SHA-256 of its weights file; empty for
    a model trained from the beginning.
    """

    parameters: int = 0
    data: str = ""
    scores: Sequence[str] = ()
    licence: str = ""
    trained: bool = True
    trained_parameters: int = 0
    base: str = ""
    base_digest: str = ""


def write_card(folder: Path, config: Config, card: Card) -> None:
    """Write README.md into `folder`. Only the licence is ever read back."""
    path = folder / NAME
    with refused(path, "cannot be written", ModelFolderError):
        licence = card.licence or licence_of(folder)
        replace_file(path, render_card(folder.resolve().name, config, card, licence).encode())


def rewrite_scores(folder: Path, measured: Sequence[str]) -> None:
    """Replace the scores in the card, except those that training measured. A missing card is not made."""
    path = folder / NAME
    try:
        before, _, after = path.read_text(encoding="utf-8").partition(_SCORES)
        section, below, following = after.partition("\n## ")
        trained = [line for line in section.splitlines() if line.startswith(TRAINED)]
        body = _scores([*trained, *measured])
        replace_file(path, f"{before.rstrip()}\n\n{_SCORES}{body}\n{below}{following}".encode())
    except FileNotFoundError:
        return
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be written: {reason_of(error)}") from None
    except UnicodeDecodeError:
        raise ModelFolderError(f"{path}: not UTF-8 text") from None


def licence_of(folder: Path) -> str:
    """Return the licence that the card in a folder names, or "unknown"."""
    try:
        text = (folder / NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return UNKNOWN_LICENCE
    front = text.split("\n---", 1)[0] if text.startswith("---\n") else ""
    match = _LICENCE.search(front)
    return match.group(1) if match and match.group(1) else UNKNOWN_LICENCE


def render_card(name: str, config: Config, card: Card, licence: str) -> str:
    """Return the card as Markdown, with the front matter that model hubs read."""
    task = task_of(config)
    words: CardWords = task.describe_model(config)
    languages = dict.fromkeys(
        code for data in _corpora(config) for code in (data.source_language, data.target_language) if code
    )
    front = ["---", f"license: {licence}", *(["language:", *(f"- {code}" for code in languages)] if languages else [])]
    front += ["library_name: translume", "tags:", f"- {words.tag}", "---"]
    counts = f"\n\n```\n{card.data.strip()}\n```" if card.data.strip() else ""
    stated = f"{licence}, as stated in the first lines of this file."
    if licence == UNKNOWN_LICENCE:
        stated = "Not stated. Write it after `license:` in the first lines of this file; it is kept from then on."
    sections = [
        "\n".join(front),
        f"# {name}",
        f"{words.kind}, made with Translume.",
        f"```\ntranslume {task.command} {shlex.quote(name)} < source > {words.output}\n```",
        *([f"## Base model\n\n{_base(config, card)}"] if card.base else []),
        f"## Licence\n\n{stated}",
        f"## Data\n\n{_files(config)}{counts}",
        f"## Recipe\n\n{_recipe(config, words, card)}",
        _SCORES + _scores(card.scores),
    ]
    return "\n\n".join(sections) + "\n"


def _corpora(config: Config) -> list[DataSettings | CorpusSettings]:
    return [config.data, *config.data.corpus]


def _scores(lines: Sequence[str]) -> str:
    return "\n".join(["```", *lines, "```"]) if lines else "None measured yet."


def _base(config: Config, card: Card) -> str:
    digest = f"; SHA-256 of its weights: `{card.base_digest}`" if card.base_digest else ""
    adapters = describe_adapters(config, card.trained_parameters)
    how = f" {adapters[0].upper()}{adapters[1:]}, merged into the weights." if adapters else ""
    return f"Fine-tuned from `{Path(card.base).resolve().name}`{digest}.{how}"


def describe_adapters(config: Config, parameters: int) -> str:
    """Return what was trained instead of the weights, or an empty string if these were."""
    settings = config.training
    if not settings.lora_rank:
        return ""
    norms = ", and the norms" if settings.lora_norms else ""
    return (
        f"low-rank adapters (LoRA) of rank {settings.lora_rank} of {', '.join(settings.lora_targets)}{norms}: "
        f"{parameters:,} parameters trained"
    )


def _files(config: Config) -> str:
    rows = []
    for data in _corpora(config):
        place = f"{data.source_language}→{data.target_language}, " if isinstance(data, CorpusSettings) else ""
        for part, name in (("train", "training"), ("valid", "validation")):
            for end, side in (("_source", "source"), ("_target", "target"), ("", "both")):
                if files := getattr(data, part + end):
                    names = ", ".join(f"`{Path(file).name}`" for file in files)
                    rows.append(f"- {place}{name}, {side}: {names}")
    return "\n".join(rows) or "Not stated."


def _recipe(config: Config, words: CardWords, card: Card) -> str:
    model, training, tokenizer = config.model, config.training, config.tokenizer
    target = f" ({tokenizer.target_kind} tokens in the target)" if tokenizer.target_kind else ""
    rows = [
        f"- {words.layers} layers, {model.width} wide, feed-forward {model.feed_forward}, {model.attention_heads} "
        f"attention heads, {model.norm}-norm, {model.positions} positions",
        f"- output head: {model.head.kind}",
        f"- {tokenizer.kind} tokens{target}, size {tokenizer.size:,}, {words.vocabulary}",
    ]
    if card.parameters or not card.trained:
        rows.insert(0, f"- {card.parameters:,} parameters")
    log = ""
    if card.trained:
        log = ", the log is in `history.jsonl`"
        rows.append(
            f"- {training.updates:,} updates of {training.batch_tokens * training.accumulate:,} tokens, "
            f"{training.optimizer}, learning rate {training.learning_rate:g} ({training.schedule}), "
            f"dropout {model.dropout:g}, label smoothing {training.label_smoothing:g}, seed {training.seed}"
        )
    return "\n".join(rows) + f"\n\nAll settings are in `config-….toml`{log}."
