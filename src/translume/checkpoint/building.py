"""Build a network from settings, and initialise its word vectors and segment separators."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from translume.config import AdaptiveSettings, ClassifySettings, Config, ModelSettings, SourceKind, TextSettings
from translume.data.lines import read_lines
from translume.errors import DataError, SettingsError
from translume.kernels.allocator import return_memory
from translume.model import HeadSizes, Transformer
from translume.model.classifier import Classifier, Network, Pooling
from translume.model.ctc import Ctc
from translume.model.embedding import BandedTable, Embedding
from translume.model.frames import FrameEmbedding
from translume.model.transformer import Decoder, EmptyEncoder, Encoder
from translume.tasks import task_of
from translume.text import Labels, Tokenizer

INITIAL_HEAD_SCALE = 0.1
"""Factor on the initial weights of a classifier's head, so that its first loss is near that of a uniform guess."""
PROBE_TOKENS = 32
"""Number of random tokens with which the logits of an untrained network are measured."""
_WORD_START = "▁"


@contextmanager
def without_values() -> Iterator[None]:
    """Build networks whose parameters have shapes but no values, on torch's meta device; buffers are as usual.

    For networks that get all their parameters from elsewhere, by `assign` or `fill`: none is initialised first. Under
    `torch.device("meta")`, buffers would have no values, and drawing normal ones would import torch's compiler: 7 s.
    """
    thread = get_ident()

    def emptied(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.is_meta or get_ident() != thread:
            return parameter
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    handle = register_module_parameter_registration_hook(emptied)  # type: ignore[arg-type]  # may return a parameter
    try:
        with _Uninitialised():
            yield
    finally:
        handle.remove()


_DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.uniform_)


class _Uninitialised(TorchFunctionMode):
    """Draw no values for parameters on the meta device: torch draws them in Python, some by its compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func in _DRAWS and (tensor := options.get("tensor", *args[:1])).is_meta:
            return tensor
        return func(*args, **options)


def free(network: nn.Module) -> None:
    """Free the memory of a network that is no longer used, and return it to the system."""
    network.to("meta")
    return_memory()


_TEXT = TextSettings()


def build_model(
    settings: ModelSettings, source_size: int, target_size: int, source_kind: SourceKind = _TEXT
) -> Transformer:
    """Return a freshly initialised Transformer for vocabularies of the given sizes, or for sources without one.

    Its first loss is ln V to ln V + 1 nats per token, V = `target_size`. Raises SettingsError if `model.head.tie` is
    "all" or "embeddings" and the sizes differ, or if word vectors are to fill an embedding in bands.
    """
    tie = settings.head.tie
    if tie in ("all", "embeddings") and source_size != target_size:
        raise SettingsError(
            f"model.head.tie: '{tie}' needs one vocabulary for both sides, found {source_size} and {target_size} "
            "tokens; set tokenizer.shared = true or tie = 'target'"
        )
    source = resolve_name(source_kind.embedding).of_source(source_kind, source_size, settings.of_encoder)
    return _transformer(settings, source, source_size, target_size)


def build_language_model(
    settings: ModelSettings, source_size: int, target_size: int, source_kind: SourceKind = _TEXT
) -> Transformer:
    """Return a freshly initialised language model: a decoder without cross-attention, and its head.

    source_size, source_kind: ignored.
    """
    return _transformer(settings, None, target_size, target_size)


def _transformer(
    settings: ModelSettings, source: Embedding | FrameEmbedding | None, source_size: int, target_size: int
) -> Transformer:
    """Return a Transformer.  source: the encoder's embedding; None for a model without an encoder."""
    freezable = settings.freeze_pretrained and bool(settings.pretrained_target)
    target = Embedding(target_size, settings, freezable=freezable, late_positions=settings.late_positions)
    head_settings, tie = settings.head, settings.head.tie
    text_source = source if isinstance(source, Embedding) else None
    if isinstance(head_settings, AdaptiveSettings) and tie in ("all", "target"):
        target.table = _in_bands(settings, head_settings, target_size)
        if text_source is not None and tie == "all":
            text_source.table = target.table
    elif text_source is not None and tie in ("all", "embeddings"):
        target.table = text_source.table
    for embedding in (source, target):
        if embedding is not None:
            embedding.keep_frozen()
    tied: Any = None
    if tie in ("all", "target"):
        tied = target.table if isinstance(head_settings, AdaptiveSettings) else target.table.weight
    sizes = HeadSizes(width=settings.width, vocabulary=target_size, source_vocabulary=source_size)
    head = resolve_name(head_settings.implementation)(head_settings, sizes, tied)
    if source is None:
        model = Transformer(EmptyEncoder(settings, target), Decoder(settings, target, crosses=False), head)
    else:
        encoder, decoder = Encoder(settings.of_encoder, source), Decoder(settings, target)
        model = Transformer(encoder, decoder, head, target_tags=settings.target_tags)
    if tied is not None:
        _limit_first_logits(model)
    return model


def build_classifier(
    settings: ModelSettings, source_size: int, classes: int, source_kind: SourceKind = _TEXT
) -> Classifier:
    """Return a freshly initialised classifier of sources."""
    head_settings = cast(ClassifySettings, settings.head)
    embedding = resolve_name(source_kind.embedding).of_source(source_kind, source_size, settings)
    embedding.keep_frozen()
    pooling = Pooling.from_settings(head_settings, settings.width)
    sizes = HeadSizes(width=pooling.size, vocabulary=classes, source_vocabulary=source_size)
    head = resolve_name(head_settings.implementation)(head_settings, sizes, None)
    with torch.no_grad():
        head.weight.mul_(INITIAL_HEAD_SCALE)
    return Classifier(Encoder(settings, embedding), pooling, settings.dropout, head)


def build_network(config: Config, source_size: int, target_size: int) -> Network:
    """Return a freshly initialised network for the task of the settings and for vocabularies of the given sizes.

    Raises SettingsError as `build_model` does.
    """
    network: Network = task_of(config).build_network(config.model, source_size, target_size, config.data.source)
    if config.training.ctc_weight and isinstance(network, Transformer):
        network.ctc = Ctc(config.model.of_encoder.width, target_size)
    return network


def _in_bands(settings: ModelSettings, head: AdaptiveSettings, size: int) -> nn.Embedding:
    for side in ("source", "target") if head.tie == "all" else ("target",):
        if getattr(settings, f"pretrained_{side}"):
            raise SettingsError(
                f"model.pretrained_{side}: an embedding that is tied to an adaptive head has vectors of several sizes; "
                "set model.head.tie = 'none'"
            )
    # Has the call interface of an nn.Embedding. Code that reads the weights of one is refused above or needs `plain`.
    return cast(nn.Embedding, BandedTable(size, settings.width, head.cutoffs, head.factor))


@torch.no_grad()
def _limit_first_logits(model: Transformer) -> None:
    """Lower the decoder's last gain below 1 if a tied head would be confidently wrong before training.

    A hidden state contains part of the embedding of the token just read. A head with the same weights turns it into a
    logit for this token, √D times as large, which in a wide and shallow network costs several nats per token. The gain
    limits that logit to ln V − 1, which costs about 0.2 nats; deep networks keep their gain. The logit is measured,
    because no simple formula gives it from depth, norm, activation and positions.
    """
    table = model.decoder.embedding.table
    if next(model.parameters()).is_meta:
        return
    last = list(model.decoder.stack)[-1].around_feed_forward.norm
    gain = getattr(last if isinstance(model.decoder.norm, nn.Identity) else model.decoder.norm, "weight", None)
    if not isinstance(gain, nn.Parameter):
        return  # a norm from outside without a gain
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        count = min(PROBE_TOKENS, *(side.embedding.positions.longest for side in (model.encoder, model.decoder)))
        source, mask = model.encoder.embedding.example(torch.ones(1, count, dtype=torch.bool), torch.default_generator)
        target = torch.randint(table.num_embeddings, (1, count))
    model.eval()
    hidden, _ = model.decoder(target, model.start(source, mask))
    model.train()
    logit = float((hidden[0] * table(target[0])).sum(-1).mean())
    most = math.log(table.num_embeddings) - 1
    if logit > most:
        gain.mul_(max(most, 0.0) / logit)


def load_pretrained(
    model: Network, settings: ModelSettings, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer | Labels
) -> list[str]:
    """Copy the word vectors that the settings name into an untrained model; return a line for each file.

    Rows are scaled so that the first layer reads the vectors of the file. Raises DataError if a file does not hold word
    vectors of the model's width, or holds no token of the vocabulary.
    """
    sides = [(settings.pretrained_source, cast(Embedding, model.encoder.embedding), source_tokenizer)]  # of text only
    if settings.pretrained_target:  # tasks without a decoder refuse this setting
        decoder = cast(Transformer, model).decoder
        sides.append((settings.pretrained_target, decoder.embedding, cast(Tokenizer, target_tokenizer)))
    return [_fill(Path(path), embedding, tokenizer) for path, embedding, tokenizer in sides if path]


def mark_separators(model: Network, settings: ModelSettings, source_tokenizer: Tokenizer) -> None:
    """Mark, in an untrained model with segments, the source tokens that end a segment.

    Raises SettingsError if no token spells the separator.
    """
    if not settings.segments:
        return
    separator = settings.segment_separator
    counts = [source_tokenizer.decode([id_]).count(separator) for id_ in range(len(source_tokenizer))]
    if not any(counts):
        raise SettingsError(
            f"model.segment_separator: no token of the source vocabulary holds {separator!r}, "
            "expected a character that separates segments in the training text"
        )
    cast(Embedding, model.encoder.embedding).separators.copy_(torch.tensor(counts))


def read_vectors(path: Path, width: int) -> Iterator[tuple[str, list[float]]]:
    """Yield words and vectors from a text file of GloVe, or of word2vec, whose first line has two counts.

    The file may be compressed. Blank lines are skipped. Raises DataError, naming the line, for other lines and for
    vectors without `width` finite numbers.
    """
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        word, *numbers = line.rstrip().split(" ")
        if number == 1 and declared_words(line) is not None:
            _refuse_width(f"{path}:1", int(numbers[0]), width)
            continue
        if len(numbers) > width and number > 1:  # some words contain spaces
            word, numbers = " ".join([word, *numbers[:-width]]), numbers[-width:]
        _refuse_width(f"{path}:{number}", len(numbers), width)
        try:
            vector = [float(value) for value in numbers]
        except ValueError:
            raise DataError(f"{path}:{number}: not a word and {width} numbers") from None
        if not math.isfinite(sum(vector)):
            raise DataError(f"{path}:{number}: a number that is not finite")
        yield word, vector


def declared_words(line: str) -> int | None:
    """Return the number of words that the first line of a file of word2vec names; None for another line."""
    counts = line.rstrip().split(" ")
    return int(counts[0]) if len(counts) == 2 and all(map(str.isdecimal, counts)) else None


def _refuse_width(place: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise DataError(f"{place}: vectors of {found} numbers, expected {wanted}, the model's width")


@torch.no_grad()
def _fill(path: Path, embedding: Embedding, tokenizer: Tokenizer) -> str:
    table = embedding.table.weight
    specials = tokenizer.specials
    special = {specials.unk} | specials.marks
    pieces = {i: piece.removeprefix(_WORD_START) for i, piece in enumerate(tokenizer.pieces()) if i not in special}
    exact: dict[str, list[int]] = {}
    lowered: dict[str, list[int]] = {}
    for id_, piece in pieces.items():
        exact.setdefault(piece, []).append(id_)
        lowered.setdefault(piece.lower(), []).append(id_)
    filled: set[int] = set()
    declared, words = declared_words(next(read_lines(path), "")), 0
    for word, vector in read_vectors(path, table.size(1)):
        words += 1
        ids = {*exact.get(word, ()), *(id_ for id_ in lowered.get(word, ()) if id_ not in filled)}
        if ids:
            table[sorted(ids)] = (torch.tensor(vector) / embedding.scale).to(table.dtype)
            filled |= ids
    if not filled:
        raise DataError(f"{path}: none of its words is a token of the vocabulary, expected at least one")
    what = "word vectors"
    if embedding.frozen is not None:
        embedding.frozen[sorted(filled)] = True
        what = "word vectors, kept as they are,"
    missing = f"; its first line names {declared:,} words, found {words:,}" if declared not in (None, words) else ""
    return f"{path}: {what} for {len(filled):,} of {len(pieces):,} tokens{missing}"
