"""Classification of texts without torch: the encoder by the kernels, pooling and the head by NumPy."""

from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from translume.config import ClassifySettings
from translume.engine.layers import Layers
from translume.engine.network import Array, Network
from translume.engine.packing import Dtype
from translume.kernels.loading import NativeError


class ClassEngine:
    """Computes what `model.classifier.Classifier` does, in fp32.

    Raises NativeError if the kernels are not available, or have no such encoder, source or head.
    """

    dtype: ClassVar[Dtype] = "fp32"

    def __init__(self, network: Network) -> None:
        head = cast(ClassifySettings, network.settings.head)
        # A classifier has no other side, so its [model] is that of the encoder.
        network = replace(network, settings=network.settings.model_copy(update={"encoder": {}}))
        if head.predicts != "classes" or not network.reads_ids:
            raise NativeError("the engine of classes reads texts only")
        self._network, self._head, self._encoder = network, head, Layers(network, "encoder", self.dtype)
        width = network.settings.width
        size = head.filters * len(head.ngrams) if head.pooling == "ngrams" else width
        self._weight, bias = network.linear("head", None, size, biased=head.bias)
        self._bias = np.zeros(len(self._weight), np.float32) if bias is None else bias
        self.probabilities(np.zeros((1, 1), np.int64), np.ones((1, 1), np.bool_))  # reads the other weights
        network.refuse_unread()

    def probabilities(self, source: Array, mask: Array) -> Array:
        """Return [B, C], the probabilities of the classes of sources [B, S] of ids where mask [B, S] is True."""
        states = np.zeros((*mask.shape, self._network.settings.width), np.float32)
        states[mask] = self._encoder.encode(self._network.embedded(source, mask), mask.sum(1))
        logits = self._pooled(states, mask) @ self._weight.T + self._bias
        probabilities: Array
        if self._head.labels == "several":
            probabilities = np.exp(-np.logaddexp(0.0, -logits))
        else:
            weights = np.exp(logits - logits.max(1, keepdims=True))
            probabilities = weights / weights.sum(1, keepdims=True)
        return probabilities

    def _pooled(self, states: Array, mask: Array) -> Array:
        """Return one vector [B, size] for states [B, S, D], as `model.classifier.Pooling`; those at padding are 0."""
        way, inside = self._head.pooling, mask[..., None]
        if way == "ngrams":
            responses = [self._responses(states, mask, number) for number in range(len(self._head.ngrams))]
            return np.concatenate(responses, 1)
        if way == "first":
            return states[:, 0]
        if way == "max":
            largest = np.where(inside, states, -np.inf).max(1)
            return np.where(inside.any(1), largest, np.float32(0.0))
        weights = inside.astype(np.float32)
        if way == "attention":
            width = states.shape[2]
            scores = states @ self._network.weight("pooling.query", width)[:, None] / np.sqrt(np.float32(width))
            scores = np.where(inside, scores, np.finfo(np.float32).min)
            weights *= np.exp(scores - scores.max(1, keepdims=True))
        total = weights.sum(1)
        pooled: Array = (states * weights).sum(1) / np.where(total, total, np.float32(1.0))
        return pooled

    def _responses(self, states: Array, mask: Array, number: int) -> Array:
        """Return the largest response [B, F] of each filter of a length, as `model.classifier.NGrams`."""
        length, filters, width = self._head.ngrams[number], self._head.filters, states.shape[2]
        name = f"pooling.ngrams.filters.{number}"
        weight, bias = self._network.weight(f"{name}.weight", filters, width, length), f"{name}.bias"
        around = [(0, 0), (length - 1, length - 1)]
        windows = sliding_window_view(np.pad(states, [*around, (0, 0)]), length, 1)  # [B, S + w − 1, D, w]
        responses = np.tensordot(windows, weight, ([2, 3], [1, 2])) + self._network.weight(bias, filters)
        held = np.any(sliding_window_view(np.pad(mask, around), length, 1), -1, keepdims=True)
        largest: Array = np.where(held, responses, np.float32(-np.inf)).max(1)
        return np.maximum(largest, 0.0)
