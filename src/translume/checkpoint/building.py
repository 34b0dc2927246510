"""Build a network from settings, and initialise its word vectors and segment separators."""

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from translume.config import AdaptiveSettings, ClassifySettings, Config, ModelSettings, SourceKind, TextSettings
from translume.errors import DataError, SettingsError
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

    For networks that get all their parameters from elsewhere, after `allocate`: none is initialised first.
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


class _Uninitialised(TorchFunctionMode):
    """Draw no normal values for parameters on the meta device, for which torch would import its compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is nn.init.normal_ and given["tensor"].is_meta:
            return given["tensor"]
        return func(*args, **given)


@torch.no_grad()
def allocate(network: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Give memory to the parameters of a network that was built `without_values`, and move its buffers.

    dtype: of floating-point tensors. The parameters are undefined until they are copied into.
    """
    for parameter in list(network.parameters()):
        made = nn.Parameter(torch.empty(parameter.shape, device=device, dtype=dtype), parameter.requires_grad)
        # A tied parameter stays one object.
        torch.utils.swap_tensors(parameter, made)  # type: ignore[no-untyped-call]  # torch has no types for it
    for buffer in network.buffers():
        buffer.data = buffer.to(device, dtype if buffer.is_floating_point() else buffer.dtype)


@torch.no_grad()
def adopt(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Make `weights` the parameters of a network that was built `without_values`, and empty the dictionary.

    The tensors are not copied, except those that another parameter has already.
    """
    places = network.state_dict(keep_vars=True)
    if places.keys() != weights.keys():
        raise ValueError(f"weights: found other names than the network has: {places.keys() ^ weights.keys()}")
    used: set[int] = set()
    for name, place in places.items():
        tensor = weights.pop(name)
        if not place.is_meta:  # a buffer, or a tied parameter that has its values already
            place.copy_(tensor)
            continue
        tensor = tensor.clone() if tensor.data_ptr() in used else tensor.contiguous()
        used.add(tensor.data_ptr())
        made = nn.Parameter(tensor, place.requires_grad)
        torch.utils.swap_tensors(place, made)  # type: ignore[no-untyped-call]  # torch has no types for it


def free(network: nn.Module) -> None:
    """Free the memory of a network that is no longer used, and return it to the system."""
    network.to("meta")
    trim_memory()


def trim_memory() -> None:
    """Return freed memory to the system. glibc keeps it, in holes between tensors that are used."""
    with suppress(AttributeError, OSError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


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
    freeze = settings.freeze_pretrained
    source: Embedding | FrameEmbedding = resolve_name(source_kind.embedding).of_source(
        source_kind, source_size, settings
    )
    target = Embedding(target_size, settings, freezable=freeze and bool(settings.pretrained_target))
    ties_head = tie in ("all", "target")
    if ties_head and isinstance(settings.head, AdaptiveSettings):
        shared = source if tie == "all" and isinstance(source, Embedding) else target
        shared.table = _in_bands(settings, settings.head, target_size)
    if tie in ("all", "embeddings") and isinstance(source, Embedding):
        target.table = source.table
    for embedding in (source, target):
        embedding.keep_frozen()
    banded = isinstance(settings.head, AdaptiveSettings)
    tied = None if not ties_head else target.table if banded else target.table.weight
    sizes = HeadSizes(width=settings.width, vocabulary=target_size, source_vocabulary=source_size)
    head = resolve_name(settings.head.implementation)(settings.head, sizes, tied)
    model = Transformer(Encoder(settings, source), Decoder(settings, target), head, target_tags=settings.target_tags)
    if tied is not None:
        _limit_first_logits(model)
    return model


def build_language_model(
    settings: ModelSettings, source_size: int, target_size: int, source_kind: SourceKind = _TEXT
) -> Transformer:
    """Return a freshly initialised language model: a decoder without cross-attention, and its head.

    source_size, source_kind: ignored.
    """
    embedding = Embedding(
        target_size, settings, freezable=settings.freeze_pretrained and bool(settings.pretrained_target)
    )
    ties_head, banded = settings.head.tie in ("all", "target"), isinstance(settings.head, AdaptiveSettings)
    if ties_head and isinstance(settings.head, AdaptiveSettings):
        embedding.table = _in_bands(settings, settings.head, target_size)
    embedding.keep_frozen()
    tied = None if not ties_head else embedding.table if banded else embedding.table.weight
    sizes = HeadSizes(width=settings.width, vocabulary=target_size, source_vocabulary=target_size)
    head = resolve_name(settings.head.implementation)(settings.head, sizes, tied)
    model = Transformer(EmptyEncoder(settings, embedding), Decoder(settings, embedding, crosses=False), head)
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
    pooling = Pooling.of(head_settings, settings.width)
    sizes = HeadSizes(width=pooling.size, vocabulary=classes, source_vocabulary=source_size)
    head = resolve_name(head_settings.implementation)(head_settings, sizes, None)
    with torch.no_grad():
        head.weight.mul_(INITIAL_HEAD_SCALE)
    return Classifier(Encoder(settings, embedding), pooling, settings.dropout, head)


def build_network(config: Config, source_size: int, target_size: int) -> Network:
    """Return a freshly initialised network for the task of the settings and for vocabularies of the given sizes.

    Raises SettingsError as `build_model` does.
    """
    network: Network = task_of(config).part("network")(config.model, source_size, target_size, config.data.source)
    if config.training.ctc_weight and isinstance(network, Transformer):
        network.ctc = Ctc(config.model.width, target_size)
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
    gain = last.weight if isinstance(model.decoder.norm, nn.Identity) else model.decoder.norm.weight
    assert isinstance(gain, nn.Parameter)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        longest = (side.embedding.positions.longest for side in (model.encoder, model.decoder))
        count = min(PROBE_TOKENS, *longest)
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

    Blank lines are skipped. Raises DataError, naming the line, for other lines and for vectors without `width` finite
    numbers.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                word, *numbers = line.rstrip().split(" ")
                if number == 1 and len(numbers) == 1 and word.isdecimal() and numbers[0].isdecimal():
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
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None


def _refuse_width(place: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise DataError(f"{place}: vectors of {found} numbers, expected {wanted}, the model's width")


@torch.no_grad()
def _fill(path: Path, embedding: Embedding, tokenizer: Tokenizer) -> str:
    table = embedding.table.weight
    specials = tokenizer.specials
    special = {specials.pad, specials.bos, specials.eos, specials.unk}
    pieces = {i: piece.removeprefix(_WORD_START) for i, piece in enumerate(tokenizer.pieces()) if i not in special}
    exact: dict[str, list[int]] = {}
    lowered: dict[str, list[int]] = {}
    for id_, piece in pieces.items():
        exact.setdefault(piece, []).append(id_)
        lowered.setdefault(piece.lower(), []).append(id_)
    found: set[int] = set()
    for word, vector in read_vectors(path, table.size(1)):
        ids = {*exact.get(word, ()), *(id_ for id_ in lowered.get(word, ()) if id_ not in found)}
        if ids:
            table[sorted(ids)] = (torch.tensor(vector) / embedding.scale).to(table.dtype)
            found |= ids
    if not found:
        raise DataError(f"{path}: none of its words is a token of the vocabulary, expected at least one")
    what = "word vectors"
    if embedding.frozen is not None:
        embedding.frozen[sorted(found)] = True
        what = "word vectors, kept as they are,"
    return f"{path}: {what} for {len(found):,} of {len(pieces):,} tokens"
