"""The classifier: texts to labels with probabilities."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from translume.checkpoint import ClassifierCheckpoint
from translume.data.lengths import truncated_ids
from translume.engine import ClassEngine
from translume.kernels.loading import NativeError
from translume.lazy import no_grad
from translume.notebook import as_table
from translume.text import Labels
from translume.translator.loading import LoadedModel, network_of
from translume.translator.planning import Line, LineError, batches, padded_arrays, tensors_of, windows
from translume.translator.translator import up_to_an_error

LABEL_THRESHOLD = 0.5
"""Where a text may have several labels, those with a higher probability are assigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The labels of a text and their probabilities.

    labels: the likeliest label; where a text may have several, all above `LABEL_THRESHOLD`, possibly none.
    probabilities: of every label, the likeliest first; they sum to one unless a text may have several labels.
    """

    source: str
    labels: tuple[str, ...]
    probabilities: tuple[tuple[str, float], ...]
    separator: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The label; several are joined by the separator of the training data."""
        return self.separator.join(self.labels)

    def __str__(self) -> str:
        return self.label

    def _repr_html_(self) -> str:
        """Return the label, a table of probabilities and warnings for notebooks."""
        return as_table(("label", "probability"), self.probabilities, text=self.label, notes=self.warnings)

    def to_dict(self, nbest: int = 0) -> dict[str, Any]:
        """The classification as a JSON object, with the `nbest` likeliest labels; 0 for all."""
        return {
            "source": self.source,
            "label": self.label,
            "labels": list(self.labels),
            "probabilities": dict(self.probabilities[: nbest or None]),
            "warnings": list(self.warnings),
        }


class Classifier(LoadedModel[ClassifierCheckpoint]):
    """A model that classifies texts. No call changes it, so threads may share it."""

    checkpoint_class = ClassifierCheckpoint
    has_engine = False

    def _facts(self) -> tuple[str, list[str]]:
        model, language = self.config.model, self.config.data.source_language
        layers = f"{model.encoder_layers} {'layer' if model.encoder_layers == 1 else 'layers'}"
        return language and f"of {language}", [layers, f"width {model.width}", f"{len(self.labels.names)} labels"]

    def with_checkpoint(self, checkpoint: ClassifierCheckpoint) -> "Classifier":
        """A classifier of the same model with other settings."""
        other = Classifier(checkpoint)
        other.options = self.options
        return other

    @property
    def labels(self) -> Labels:
        """The classes."""
        return self.checkpoint.labels

    def classify(self, text: str) -> Classification:
        """Classify one text. Raises TranslationError if it is longer than the model can read and must not be cut.

        A text is cut, with a warning, if the training texts were (`data.cleaning.too_long`) or
        `decoding.max_length_action` is "truncate".
        """
        return self._window([Line(number=0, text=text)])[0]

    def classify_all(self, texts: Iterable[str]) -> Iterator[Classification]:
        """One classification a text, in order, whatever the number of texts; see `classify`.

        Up to some thousand texts are read ahead. An error names the number of its text as the line; the results of all
        texts before it are returned first.
        """
        if isinstance(texts, str):
            raise TypeError("classify_all: found one string, expected many; use classify")
        lines = ((Line(number=number, text=text.rstrip("\r\n")), len(text)) for number, text in enumerate(texts, 1))
        for window in windows(lines):
            yield from up_to_an_error(self._window, window)

    def _window(self, lines: Sequence[Line]) -> list[Classification]:
        encoded = self.checkpoint.source_tokenizer.encode_all([line.text for line in lines])
        cut = [self._cut(line, ids) for line, ids in zip(lines, encoded, strict=True)]
        done: list[Classification | None] = [None] * len(lines)
        for batch in batches([len(ids) + 1 for ids, _ in cut], self.config.decoding.max_tokens):
            for index, row in zip(batch, self._probabilities([cut[index][0] for index in batch]), strict=True):
                done[index] = self._classification(lines[index].text, row, cut[index][1])
        return [each for each in done if each is not None]

    def reading(self, text: str) -> tuple[list[int], list[int], tuple[str, ...]]:
        """The ids of a text that `classify` reads, their positions among all its ids, and a warning if it is cut."""
        ids = self.checkpoint.source_tokenizer.encode(text)
        places, warnings = self._cut(Line(number=0, text=text), list(range(len(ids))))
        return [ids[place] for place in places], places, warnings

    def _cut(self, line: Line, ids: list[int]) -> tuple[list[int], tuple[str, ...]]:
        """The ids that fit the model, and a warning if that is not all of them."""
        cleaning, decoding = self.config.data.cleaning, self.config.decoding
        longest = self.config.model.max_positions - 1
        cuts = cleaning.too_long != "drop"
        limit = min(longest, cleaning.max_tokens) if cuts else longest
        if len(ids) <= limit:
            return ids, ()
        if not cuts and decoding.max_length_action == "error":
            raise LineError(
                line,
                f"the text has {len(ids):,} tokens, expected at most {limit:,}; "
                'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it',
            )
        keep = cleaning.too_long if cleaning.too_long != "drop" else "keep_first"
        end = "first" if keep == "keep_first" else "last"
        return truncated_ids(ids, limit, keep), (f"truncated: {len(ids):,} tokens were cut to the {end} {limit:,}",)

    @cached_property
    def class_engine(self) -> ClassEngine | None:
        """The engine of a model that was loaded for a CPU; None if there is none for it."""
        options = self.options
        if options is None or options.engine == "plain" or options.dtype == "bf16" or not self.checkpoint.on_cpu:
            return None
        try:
            return ClassEngine(network_of(self.checkpoint))
        except NativeError:
            return None

    @no_grad()
    def _probabilities(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        specials = self.checkpoint.source_tokenizer.specials
        arrays = padded_arrays([[*row, specials.eos] for row in rows], specials.pad)
        if (engine := self.class_engine) is not None:
            return list(engine.probabilities(*arrays).tolist())
        source, mask = tensors_of(arrays, self.checkpoint.device)
        return list(self.checkpoint.model.belief(source, mask).log_probs().exp().tolist())

    def _classification(self, text: str, row: list[float], warnings: tuple[str, ...]) -> Classification:
        names, separator = self.labels.names, self.labels.separator
        order = sorted(range(len(row)), key=lambda index: -row[index])
        chosen = [index for index in range(len(row)) if row[index] > LABEL_THRESHOLD] if separator else order[:1]
        return Classification(
            source=text,
            labels=tuple(names[index] for index in chosen),
            probabilities=tuple((names[index], row[index]) for index in order),
            separator=separator,
            warnings=warnings,
        )
