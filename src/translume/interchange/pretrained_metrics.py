"""Metrics of pretrained models of transformers: BERTScore (Zhang et al. 2020) and MetricX (Juraska et al. 2023).

BERTScore says how well the states of an encoder match between a text and its reference. MetricX is an mT5 that was
trained to state the error of a translation.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from translume.atomic import digest
from translume.config import EvaluationSettings
from translume.config.evaluation import METRICX_FIELDS
from translume.errors import SettingsError, needed_by
from translume.evaluation import Score
from translume.evaluation.scores import Counts, References
from translume.evaluation.segment_metrics import Row, SegmentMetric

BATCH = 32
"""Texts that a model reads at a time."""
ERROR_TOKEN, MAX_ERROR, MAX_TOKENS = 250_089, 25.0, 1536
"""MetricX: mT5's token <extra_id_10>, whose logit is the error; the largest error; tokens that are read."""


class _Pretrained(SegmentMetric):
    """A metric by a model of transformers, `evaluation.NAME.model`: a folder or hf://owner/name."""

    def _load(self, kind: str, place: str, path: str) -> Any:
        """Return what the class of transformers loads; `place` is the setting.

        Raises SettingsError if there is no such folder or model.
        """
        with needed_by(place.rpartition(".")[0]):
            import transformers
        local = path.removeprefix("hf://")
        if local == path and not any(Path(path or "?").glob("*.json")):
            raise SettingsError(f"{place}: found '{path}', expected a folder of transformers, or hf://owner/name")
        transformers.logging.disable_progress_bar()
        try:
            return getattr(transformers, kind).from_pretrained(local)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{place}: {path}: {str(error).strip().splitlines()[0]}") from None

    def _load_model(self, kind: str, path: str) -> Any:
        """Return the model in fp32; from now on, `definition` has its name and digest."""
        model = self._load(kind, f"evaluation.{self.name}.model", path).float().eval()
        folder = Path(path.removeprefix("hf://"))
        weights = folder / "model.safetensors"
        version = f"sha256:{digest(weights)[:16]}" if weights.is_file() else model.config._commit_hash
        self._definition = f"model:{folder.name}|{version}"
        return model

    def definition(self) -> str:
        """Return the model, the digest of its weights, and how it is used."""
        return self._definition


class BertScore(_Pretrained):
    """The F1 of greedy matching by cosines, without weights by idf and without rescaling, in per cent.

    It equals that of the package bert-score: [CLS] and [SEP] can be matched but do not count, and a text longer than
    the model reads is cut. The signature says how many were.
    """

    name, title = "bertscore", "BERTScore"

    def __init__(self, settings: EvaluationSettings) -> None:
        """Load the model. Raises SettingsError if it is not there or has not so many layers."""
        path = settings.bertscore.model
        self._model = self._load_model("AutoModel", path)
        self._tokenizer = self._load("AutoTokenizer", "evaluation.bertscore.model", path)
        layers = self._model.config.num_hidden_layers
        self._layer = settings.bertscore.layer or layers
        if self._layer > layers:
            expected = f"expected at most {layers}, the layers of {path}"
            raise SettingsError(f"evaluation.bertscore.layer: found {self._layer}, {expected}")
        self._definition += f"|layer:{self._layer}"
        self._limit = min(self._tokenizer.model_max_length, self._model.config.max_position_embeddings)
        self._cut = 0

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


class MetricX(_Pretrained):
    """The mean error that MetricX predicts, from 0 (none) to 25, with the sign changed, so that larger is better.

    The template says what the model reads, and thus whether the metric reads sources and references.
    """

    name, title = "metricx", "−MetricX"

    def __init__(self, settings: EvaluationSettings) -> None:
        """Load the model. Raises SettingsError if it or its tokenizer is not there, or if it is no mT5."""
        chosen = settings.metricx
        self._template = chosen.template
        self.reads_sources, self.reads_references = "{source}" in self._template, "{reference}" in self._template
        self._tokenizer = self._load("AutoTokenizer", "evaluation.metricx.tokenizer", chosen.tokenizer)
        self._model = self._load_model("MT5ForConditionalGeneration", chosen.model)
        rows = self._model.config.vocab_size
        if rows <= ERROR_TOKEN:
            found = f"{chosen.model} has a vocabulary of {rows:,}, expected one of mT5"
            raise SettingsError(f"evaluation.metricx.model: {found}, more than {ERROR_TOKEN:,}")
        head = torch.nn.Linear(self._model.config.d_model, 1, bias=False)
        head.weight = torch.nn.Parameter(self._model.lm_head.weight[ERROR_TOKEN : ERROR_TOKEN + 1].clone())
        self._model.lm_head = head  # no other row is read, of 250,112
        self._definition += f"|template:{self._template}"

    def compute(self, rows: Sequence[Row]) -> list[float]:
        """Return the errors of the rows with the sign changed."""
        inputs = [self._read(row) for row in rows]
        self.cut = [len(ids) > MAX_TOKENS for ids in inputs]
        errors = [0.0] * len(rows)
        order = sorted(range(len(rows)), key=lambda number: len(inputs[number]))
        for begin in range(0, len(order), BATCH):
            part = order[begin : begin + BATCH]
            padded = self._tokenizer.pad({"input_ids": [inputs[n][:MAX_TOKENS] for n in part]}, return_tensors="pt")
            first = torch.zeros(len(part), 1, dtype=torch.long)
            with torch.no_grad():
                logits = self._model(**padded, decoder_input_ids=first).logits[:, 0, 0]
            for number, error in zip(part, logits.clamp(0.0, MAX_ERROR).tolist(), strict=True):
                errors[number] = -error
        return errors

    def _read(self, row: Row) -> list[int]:
        """Return the tokens of a row, without EOS, as in the training of MetricX."""
        sides = dict(zip(METRICX_FIELDS, row, strict=True))
        text = re.sub(r"{(.*?)}", lambda field: sides[field[1]], self._template)
        ids: list[int] = self._tokenizer(text, verbose=False)["input_ids"]
        return ids[:-1]
