"""From settings to a network."""

import math
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn

from translume.config import ModelSettings
from translume.errors import SettingsError
from translume.model import HeadSizes, Transformer
from translume.model.decoder import Decoder
from translume.model.embedding import Embedding
from translume.model.encoder import Encoder

PROBE_TOKENS = 32
"""Random tokens that tell how a fresh network begins."""


def build_model(settings: ModelSettings, source_size: int, target_size: int) -> Transformer:
    """A freshly initialised network for vocabularies of the given sizes.

    Its first loss is ln V to ln V + 1 nats a token, of V = `target_size`. Raises SettingsError if `model.head.tie` is
    "all" and the sizes differ.
    """
    tie = settings.head.tie
    if tie == "all" and source_size != target_size:
        raise SettingsError(
            f"model.head.tie: 'all' needs one vocabulary for both sides, found {source_size} and {target_size} tokens; "
            "set tokenizer.shared = true or tie = 'target'"
        )
    freeze = settings.freeze_pretrained
    source = Embedding(
        source_size, settings, segments=settings.segments, freezable=freeze and bool(settings.pretrained_source)
    )
    target = Embedding(target_size, settings, freezable=freeze and bool(settings.pretrained_target))
    if tie == "all":
        target.table = source.table
    for embedding in (source, target):
        embedding.keep_frozen()
    tied = cast(nn.Parameter, target.table.weight) if tie in ("all", "target") else None
    sizes = HeadSizes(width=settings.width, vocabulary=target_size, source_vocabulary=source_size)
    head = implementation(settings.head.implementation)(settings.head, sizes, tied)
    model = Transformer(Encoder(settings, source), Decoder(settings, target), head)
    if tied is not None:
        _quieten(model)
    return model


@torch.no_grad()
def _quieten(model: Transformer) -> None:
    """Begin the decoder's last gain below 1 where a tied head would be sure, and wrong, before it has learnt anything.

    A hidden state keeps part of the embedding it began as. A head of the same weights sees that part as a logit for the
    token just read, of √D times the part: enough, in a wide and shallow network, to cost several nats a token. The gain
    brings that logit to at most ln V − 1, where it adds about 0.2 nats; deep networks stay as they are. It is measured,
    since it follows from depth, norm, activation and positions in no simple way.
    """
    table = model.decoder.embedding.table.weight
    last = list(model.decoder.stack)[-1].around_feed_forward.norm
    gain = last.weight if isinstance(model.decoder.norm, nn.Identity) else model.decoder.norm.weight
    assert isinstance(gain, nn.Parameter)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        count = min(PROBE_TOKENS, model.encoder.embedding.positions.longest)
        source = torch.randint(model.encoder.embedding.table.num_embeddings, (1, count))
        target = torch.randint(table.size(0), (1, count))
    model.eval()
    hidden, _ = model.decoder(target, model.start(source, torch.ones_like(source, dtype=torch.bool)))
    model.train()
    logit = float((hidden[0] * table[target[0]]).sum(-1).mean())
    most = math.log(table.size(0)) - 1
    if logit > most:
        gain.mul_(max(most, 0.0) / logit)


def implementation(name: str) -> Any:
    """The class that a settings class names as "package.module:Class"."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
