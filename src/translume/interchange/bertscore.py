"""BERTScore (Zhang et al. 2020): how well the states of a pretrained encoder match between a text and its reference."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from translume.atomic import digest
from translume.config import EvaluationSettings
from translume.errors import SettingsError, needed_by
from translume.evaluation import Score
from translume.evaluation.scores import Counts, References
from translume.evaluation.segment_metrics import Row, SegmentMetric

BATCH = 32
"""Texts that the encoder reads at a time."""
PLACE = "evaluation.bertscore"


class BertScore(SegmentMetric):
    """The F1 of greedy matching by cosines, without weights by idf and without rescaling, in per cent.

    It equals that of the package bert-score: [CLS] and [SEP] can be matched but do not count, and a text longer than
    the model reads is cut. The signature says how many were.
    """

    name, title = "bertscore", "BERTScore"

    def __init__(self, settings: EvaluationSettings) -> None:
        """Load the model. Raises SettingsError if it is not there or has not so many layers."""
        chosen = settings.bertscore
        with needed_by(PLACE):
            from transformers import AutoModel, AutoTokenizer, logging
        path = chosen.model.removeprefix("hf://")
        if not chosen.model.startswith("hf://") and not (Path(path) / "config.json").is_file():
            raise SettingsError(f"{PLACE}.model: found '{path}', expected a folder of transformers, or hf://owner/name")
        logging.disable_progress_bar()
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
            self._model: Any = AutoModel.from_pretrained(path, dtype=torch.float32).eval()
        except (OSError, ValueError) as error:
            raise SettingsError(f"{PLACE}.model: {path}: {str(error).strip().splitlines()[0]}") from None
        layers = self._model.config.num_hidden_layers
        self._layer = chosen.layer or layers
        if self._layer > layers:
            raise SettingsError(f"{PLACE}.layer: found {self._layer}, expected at most {layers}, the layers of {path}")
        weights = Path(path) / "model.safetensors"
        version = f"sha256:{digest(weights)[:16]}" if weights.is_file() else self._model.config._commit_hash
        self._definition = f"model:{Path(path).name}|{version}|layer:{self._layer}"
        self._limit = min(self._tokenizer.model_max_length, self._model.config.max_position_embeddings)
        self._cut = 0

    def definition(self) -> str:
        """Return the model, the digest of its weights and the layer."""
        return self._definition

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 2]: the best rating of each text, and 1."""
        read = [text for side in (texts, *references) for text in side if text is not None]
        self._cut = sum(len(ids) > self._limit for ids in self._tokenizer(read, verbose=False)["input_ids"])
        return super().count(texts, references, sources)

    def score(self, total: Counts) -> Score:
        """Return the mean, and in the signature how many texts and references were cut."""
        score = super().score(total)
        return replace(score, signature=f"{score.signature}|cut:{self._cut}") if self._cut else score

    def compute(self, rows: Sequence[Row]) -> list[float]:
        """Return the F1 of each row."""
        states = dict(self._states(sorted({text for _, *sides in rows for text in sides}, key=len)))
        return [100 * _f1(*states[text], *states[reference]) for _, text, reference in rows]

    def _states(self, texts: Sequence[str]) -> Iterator[tuple[str, tuple[NDArray[np.float32], NDArray[np.bool_]]]]:
        """Yield each text with the states [n, D] of its tokens, of length 1, and which of them count [n]."""
        skipped = [self._tokenizer.cls_token_id, self._tokenizer.sep_token_id]
        for begin in range(0, len(texts), BATCH):
            part = texts[begin : begin + BATCH]
            stripped, limits = [*map(str.strip, part)], {"truncation": True, "max_length": self._limit}
            read = self._tokenizer(stripped, return_tensors="pt", padding=True, **limits)
            with torch.no_grad():
                hidden = self._model(**read, output_hidden_states=True).hidden_states[self._layer]
            hidden = torch.nn.functional.normalize(hidden, dim=-1).numpy()
            for text, own, given, mask in zip(part, hidden, read["input_ids"], read["attention_mask"], strict=True):
                length = int(mask.sum())
                yield text, (own[:length], ~np.isin(given[:length].numpy(), skipped))


def _f1(
    text: NDArray[np.float32], counts: NDArray[np.bool_], reference: NDArray[np.float32], wanted: NDArray[np.bool_]
) -> float:
    """Return 2PR / (P + R): the means of the best cosine of each token of the text, and of the reference."""
    cosines = text @ reference.T
    precision = float(cosines.max(1)[counts].mean()) if counts.any() else 0.0
    recall = float(cosines.max(0)[wanted].mean()) if wanted.any() else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
