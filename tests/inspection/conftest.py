"""Small translators of every head and both norms, with random weights wide enough for distinct predictions."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from translume.checkpoint import Checkpoint, ClassifierCheckpoint, build_model
from translume.checkpoint.building import build_classifier
from translume.config import ClassifySettings, Config, ModelSettings, TokenizerSettings, heads
from translume.inspection import (
    BeamRecord,
    ClassTrace,
    CorpusLens,
    Forced,
    Trace,
    compare_on_corpus,
    force_token,
    inspect_corpus,
    record_beam,
    trace,
    trace_classification,
)
from translume.model import HeadData
from translume.text import Labels, train_tokenizer
from translume.translator import Classifier, Translator

SHORT = ("decoding.beam=3", "decoding.max_length_ratio=0.5", "decoding.max_length_extra=4")
"""Random weights hardly ever end a target."""
ALPHABET = "abcdefghijklm nopqrstuvwxyz.!?"
CLASSES = ("animal", "colour", "fruit", "sound", "tool")
MARKUP = ALPHABET + "<>/&\"'"


def kinds() -> list[type]:
    """The settings classes of all heads."""
    return [kind for kind in heads.HeadKind.kinds().values() if kind is not heads.ClassifySettings]


class Pairs:
    """Training pairs for heads that learn tables: sources and targets share ids; low ids are more frequent."""

    pairs = 53

    def __init__(self, size: int) -> None:
        self._ids = (np.random.default_rng(3).random((self.pairs, 7)) ** 2 * (size - 4)).astype(np.int64) + 4

    def source(self, index: int) -> np.ndarray:
        return self._ids[index]

    def target(self, index: int) -> np.ndarray:
        return self._ids[index][::-1]


@cache
def build(
    kind: type = heads.SoftmaxSettings,
    norm: str = "pre",
    options: tuple[str, ...] = (),
    seed: int = 3,
    alphabet: str = ALPHABET,
    **model,
) -> Translator:
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [alphabet])
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "max_positions": 41, **model}
    settings = ModelSettings(width=22, feed_forward=29, attention_heads=11, norm=norm, head=kind(), **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_model(settings, len(tokenizer), len(tokenizer)).eval()
        pieces = tokenizer.pieces()
        network.head.learn(
            HeadData(
                corpus=Pairs(len(tokenizer)),
                source_pieces=pieces,
                target_pieces=pieces,
                end=tokenizer.specials.eos,
                specials=frozenset(range(4)),
            )
        )
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    config = Config(model=settings).change(*SHORT, *options)
    return Translator(Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer))


@cache
def build_text_classifier(
    pooling: str = "attention",
    *,
    several: bool = False,
    options: tuple[str, ...] = (),
    alphabet: str = ALPHABET,
    **shape,
) -> Classifier:
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [alphabet])
    head = ClassifySettings(pooling=pooling, labels="several" if several else "one")
    settings = ModelSettings(
        width=22, feed_forward=29, attention_heads=11, head=head, dropout=0.3,
        **{"encoder_layers": 2, "max_positions": 19, **shape},
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = build_classifier(settings, len(tokenizer), len(CLASSES)).eval()
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    task = ("data.task=classification", "data.label_separator=+", "training.label_smoothing=0.0")
    config = Config(model=settings).change(*task, *options)
    labels = Labels(CLASSES, "+" if several else "")
    return Classifier(ClassifierCheckpoint(config=config, model=network, source_tokenizer=tokenizer, labels=labels))


@pytest.fixture(scope="session")
def make() -> Callable[..., Translator]:
    return build


@pytest.fixture(scope="session", params=kinds(), ids=lambda kind: kind.model_fields["kind"].default)
def translator_of_every_head(request: pytest.FixtureRequest) -> Translator:
    return build(request.param)


@pytest.fixture(scope="session", params=["pre", "post"])
def translator_of_both_norms(request: pytest.FixtureRequest) -> Translator:
    return build(norm=request.param)


@pytest.fixture(scope="session")
def translator() -> Translator:
    """A translator of texts with markup, to be drawn."""
    return build(options=("decoding.max_length=13",), alphabet=MARKUP)


@pytest.fixture(scope="session")
def make_trace(translator: Translator) -> Callable[..., Trace]:
    return lambda source, target=None, **options: trace(translator, source, target, **options)


@pytest.fixture(scope="session")
def make_beam(translator: Translator) -> Callable[..., BeamRecord]:
    return lambda source, **options: record_beam(translator, source, **options)


@pytest.fixture(scope="session")
def make_forced(translator: Translator) -> Callable[..., Forced]:
    return lambda source, step, token: force_token(translator, source, step, token)


@pytest.fixture(scope="session")
def class_trace() -> ClassTrace:
    """A trace of a text with markup and an unknown character."""
    classifier = build_text_classifier(alphabet='abcdefghi owl<>/&"', max_positions=41, encoder_layers=1)
    return trace_classification(classifier, 'the <b> 早 owl & </script> "hen"')


PAIRS = [
    ("hello <b> </script> & you", 'b & "c" </script>'),
    *((f"{one} {other}", f"{other} {one}") for one in ("abc", "de", "fghi", "j") for other in ("klm", "nop.", "q!")),
]


@pytest.fixture(scope="session")
def lens_alone(translator: Translator) -> CorpusLens:
    return inspect_corpus(translator, [*PAIRS, ("a" * 41, "b")])


@pytest.fixture(scope="session")
def lens(translator: Translator, lens_alone: CorpusLens) -> CorpusLens:
    """A corpus lens with the comparison of two models."""
    other = copy.deepcopy(translator.checkpoint.model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for parameter in other.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    opponent = Translator(replace(translator.checkpoint, model=other))
    return replace(lens_alone, comparison=compare_on_corpus(translator, opponent, PAIRS))


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def strings(tokenizer, generator: torch.Generator, count: int, length: int) -> torch.Tensor:
    """[count, length]: ids of strings without repeated letters."""
    letters = torch.tensor(tokenizer.encode(LETTERS))
    return torch.stack([letters[torch.randperm(26, generator=generator)[:length]] for _ in range(count)])


@pytest.fixture(scope="session")
def backwards() -> Translator:
    """A model partly trained to write words backwards, so that the correct alignment of every letter is known."""
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [LETTERS])
    settings = ModelSettings(
        width=48, feed_forward=96, encoder_layers=1, decoder_layers=1, attention_heads=4, max_positions=31, dropout=0.0
    )
    updates, rate, specials = 280, 4e-3, tokenizer.specials
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build_model(settings, len(tokenizer), len(tokenizer))
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(1)
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (update + 1) / 50) * (1 - update / updates)
        length = int(torch.randint(3, 9, (1,), generator=generator))
        text = strings(tokenizer, generator, 32, length)
        begin, end = (torch.full((32, 1), each) for each in (specials.bos, specials.eos))
        source, labels = torch.cat([text, end], 1), torch.cat([text.flip(1), end], 1)
        given = torch.cat([begin, labels[:, :-1]], 1)
        mask = torch.ones_like(source, dtype=torch.bool)
        loss = model.loss(source, mask, given, labels, mask)
        optimizer.zero_grad()
        (loss.objective / loss.tokens).backward()
        optimizer.step()
    return Translator(
        Checkpoint(
            config=Config(model=settings), model=model.eval(), source_tokenizer=tokenizer, target_tokenizer=tokenizer
        )
    )


@pytest.fixture(scope="session")
def words(backwards: Translator) -> list[str]:
    """Random strings, most of them not in the training data."""
    tokenizer, generator = backwards.checkpoint.source_tokenizer, torch.Generator().manual_seed(99)
    lengths = torch.randint(3, 9, (40,), generator=generator).tolist()
    return [tokenizer.decode(strings(tokenizer, generator, 1, length)[0].tolist()) for length in lengths]
