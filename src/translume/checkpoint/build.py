"""From settings to a network."""

import math
from typing import cast

import torch
from torch import nn

from translume.config import AdaptiveSettings, ClassifySettings, ModelSettings
from translume.config.implementation import implementation
from translume.errors import SettingsError
from translume.model import HeadSizes, Transformer
from translume.model.classifier import Classifier, Network, Pooling
from translume.model.embedding import BandedTable, Embedding
from translume.model.transformer import Decoder, Encoder

UNDECIDED = 0.1
"""What the weights of a fresh classifier's head are multiplied by, so that its first loss is about that of guessing."""
PROBE_TOKENS = 32
"""Random tokens that tell how a fresh network begins."""


def build_model(settings: ModelSettings, source_size: int, target_size: int) -> Transformer:
    """A freshly initialised network for vocabularies of the given sizes.

    Its first loss is ln V to ln V + 1 nats a token, of V = `target_size`. Raises SettingsError if `model.head.tie` is
    "all" and the sizes differ, or if word vectors are to go into an embedding in bands.
    """
    tie = settings.head.tie
    if isinstance(settings.head, ClassifySettings):
        raise SettingsError("model.head.kind: 'classify' has no decoder, wanted a head that writes")
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
    if tie != "none" and isinstance(settings.head, AdaptiveSettings):
        (source if tie == "all" else target).table = _in_bands(settings, settings.head, target_size)
    if tie == "all":
        target.table = source.table
    for embedding in (source, target):
        embedding.keep_frozen()
    banded = isinstance(settings.head, AdaptiveSettings)
    tied = None if tie == "none" else target.table if banded else target.table.weight
    sizes = HeadSizes(width=settings.width, vocabulary=target_size, source_vocabulary=source_size)
    head = implementation(settings.head.implementation)(settings.head, sizes, tied)
    model = Transformer(Encoder(settings, source), Decoder(settings, target), head)
    if tied is not None:
        _quieten(model)
    return model


def build_network(settings: ModelSettings, source_size: int, target_size: int) -> Network:
    """A freshly initialised network of either kind; of a classifier `target_size` is the number of classes.

    Raises SettingsError as `build_model` does.
    """
    if not isinstance(settings.head, ClassifySettings):
        return build_model(settings, source_size, target_size)
    freezable = settings.freeze_pretrained and bool(settings.pretrained_source)
    embedding = Embedding(source_size, settings, segments=settings.segments, freezable=freezable)
    embedding.keep_frozen()
    pooling = Pooling.of(settings.head, settings.width)
    sizes = HeadSizes(width=pooling.size, vocabulary=target_size, source_vocabulary=source_size)
    head = implementation(settings.head.implementation)(settings.head, sizes, None)
    with torch.no_grad():
        head.weight.mul_(UNDECIDED)
    return Classifier(Encoder(settings, embedding), pooling, settings.dropout, head)


def _in_bands(settings: ModelSettings, head: AdaptiveSettings, size: int) -> nn.Embedding:
    for side in ("source", "target") if head.tie == "all" else ("target",):
        if getattr(settings, f"pretrained_{side}"):
            raise SettingsError(
                f"model.pretrained_{side}: an embedding that is tied to an adaptive head has vectors of several sizes; "
                "set model.head.tie = 'none'"
            )
    # Called as an nn.Embedding is; what reads the weights of one is refused above, or asks the head to be `plain`.
    return cast(nn.Embedding, BandedTable(size, settings.width, head.cutoffs, head.factor))


@torch.no_grad()
def _quieten(model: Transformer) -> None:
    """Begin the decoder's last gain below 1 where a tied head would be sure, and wrong, before it has learnt anything.

    A hidden state keeps part of the embedding it began as. A head of the same weights sees that part as a logit for the
    token just read, of √D times the part: enough, in a wide and shallow network, to cost several nats a token. The gain
    brings that logit to at most ln V − 1, where it adds about 0.2 nats; deep networks stay as they are. It is measured,
    since it follows from depth, norm, activation and positions in no simple way.
    """
    table = model.decoder.embedding.table
    last = list(model.decoder.stack)[-1].around_feed_forward.norm
    gain = last.weight if isinstance(model.decoder.norm, nn.Identity) else model.decoder.norm.weight
    assert isinstance(gain, nn.Parameter)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        count = min(PROBE_TOKENS, model.encoder.embedding.positions.longest)
        source = torch.randint(model.encoder.embedding.table.num_embeddings, (1, count))
        target = torch.randint(table.num_embeddings, (1, count))
    model.eval()
    hidden, _ = model.decoder(target, model.start(source, torch.ones_like(source, dtype=torch.bool)))
    model.train()
    logit = float((hidden[0] * table(target[0])).sum(-1).mean())
    most = math.log(table.num_embeddings) - 1
    if logit > most:
        gain.mul_(max(most, 0.0) / logit)
