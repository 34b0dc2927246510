"""From a source, and perhaps a target, to a trace: parallel passes over the finished target compute all of it anew."""

import math
from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.config import DecodingSettings
from translume.decoding import reshaped
from translume.errors import SettingsError, nearest
from translume.inspection.attribution import input_gradient, log_probs_after, occluded
from translume.inspection.beliefs import Ruled, entropies, margins, ranks, ruled, tops
from translume.inspection.lens import lens
from translume.inspection.passes import Pass, Sentence, read
from translume.inspection.subject import Subject, subject_of
from translume.inspection.values import (
    Attention,
    Attribution,
    Facts,
    Heads,
    LensLayer,
    Matrix,
    Prior,
    Step,
    Term,
    Trace,
)
from translume.inspection.words import tokens_of, words_of
from translume.model.transformer import Transformer
from translume.text import Tokenizer
from translume.translator import TextHypothesis, Translator
from translume.translator.searching import temperature_of

Part = Literal[
    "attention",
    "lens",
    "prior",
    "terms",
    "occlusion",
    "occlusion-mask",
    "occlusion-unknown",
    "input-gradient",
    "integrated-gradients",
]
EVERYTHING: tuple[Part, ...] = ("attention", "lens", "prior", "terms", "occlusion")
"""What a trace shows unless told: all but a second method of attribution, which costs as much as all else together."""
METHODS: tuple[Part, ...] = (
    "occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients",
)  # fmt: skip
"""Parts that say what a target token owes to each source token."""
KNOWN: tuple[Part, ...] = (*EVERYTHING, *METHODS[1:])
DECIMALS = 6
"""Of attention weights and a head's own terms."""


def trace(
    translator: Translator,
    source: str,
    target: str | TextHypothesis | None = None,
    *,
    k: int = 5,
    settings: DecodingSettings | None = None,
    show: Collection[Part] = EVERYTHING,
) -> Trace:
    """What the model believed at every step of one sentence, and what decoding made of it.

    target: a text (read with its end mark), a hypothesis as it was found, or None for the model's own translation.
    k: how many of the likeliest tokens are listed; no other number depends on it.
    settings: of decoding, instead of the model's own: p_used is by them, and so is the translation.
    show: the parts that are computed besides the beliefs; "integrated-gradients" wants captum (translume[inspect]).
    The plain model computes, in its own dtype, whatever engine translates. Raises TranslationError for a blank source
    or a side that is longer than the model reads, SettingsError for settings or parts that do not fit.
    """
    _check(k, show)
    subject = subject_of(translator, source, target, settings)
    with torch.no_grad():
        return _traced(subject, k, frozenset(show))


def _check(k: int, show: Collection[Part]) -> None:
    if k < 1:
        raise SettingsError(f"k: found {k}, wanted at least 1")
    for part in show:
        if part not in KNOWN:
            raise SettingsError(f"show: found '{part}'{nearest(part, KNOWN)}")


def _traced(subject: Subject, k: int, show: frozenset[Part]) -> Trace:
    checkpoint, sentence = subject.checkpoint, subject.sentence()
    model, tokenizer = checkpoint.model, checkpoint.target_tokenizer
    found = read(model, sentence, attention="attention" in show)
    belief = model.head.next_token(found.hidden, found.context)
    log_probs = belief.log_probs().double()  # [t, V]
    steps = _steps(subject, sentence, (found, belief, log_probs), k, show)
    own = [step.log_p_model for step in steps]
    spelt = subject.target[:-1] if subject.finished_by == "eos" else subject.target
    source, target = checkpoint.source_tokenizer.normalise(subject.given), tokenizer.decode(spelt)
    source_tokens = tokens_of(
        checkpoint.source_tokenizer, subject.source, checkpoint.source_tokenizer.spans_in(subject.given)
    )
    target_tokens = tokens_of(tokenizer, subject.target, tokenizer.spans(spelt))
    return Trace(
        schema="trace/1",
        facts=_facts(subject, belief),
        given=subject.given,
        source=source,
        target=target,
        origin=subject.origin,
        finished_by=subject.finished_by,
        log_p=sum(own),
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        source_words=words_of(source, source_tokens, _marks(checkpoint.source_tokenizer)),
        target_words=words_of(target, target_tokens, _marks(tokenizer), own),
        steps=steps,
        attention=_attention(found) if "attention" in show else None,
        terms=_terms(model, found) if "terms" in show else (),
        attributions=_attributions(subject, sentence, found, show),
    )


def _marks(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that stand for no text."""
    return tokenizer.specials.pad, tokenizer.specials.bos, tokenizer.specials.eos


def _steps(
    subject: Subject, sentence: Sentence, found: tuple[Pass, NextToken, Tensor], k: int, show: frozenset[Part]
) -> tuple[Step, ...]:
    """The steps of the target, one for each of its tokens."""
    passed, belief, log_probs = found
    model, tokenizer = subject.checkpoint.model, subject.checkpoint.target_tokenizer
    labels = sentence.labels
    used = _ruled(subject, sentence, belief)
    lenses: list[tuple[LensLayer, ...]] = [()] * len(labels)
    if "lens" in show:
        lenses = lens(model, passed, labels, k, tokenizer)
    own = log_probs.gather(1, labels[:, None])[:, 0]
    priors = _priors(subject, sentence, own) if "prior" in show else [None] * len(labels)
    after = used.log_probs.gather(1, labels[:, None])[:, 0]
    models, afters = (tops(each, k, tokenizer, log_probs, used.log_probs) for each in (log_probs, used.log_probs))
    chosen = zip(own.tolist(), after.tolist(), strict=True)
    beside = list(
        zip(
            entropies(log_probs).tolist(),
            ranks(log_probs, labels).tolist(),
            margins(log_probs, labels).tolist(),
            strict=True,
        )
    )
    return tuple(
        Step(
            p_model=math.exp(before),
            log_p_model=before,
            p_used=math.exp(behind),
            log_p_used=behind,
            rules=used.effects[place],
            top_model=models[place],
            top_used=afters[place],
            entropy=beside[place][0],
            rank=beside[place][1],
            margin=beside[place][2],
            lens=lenses[place],
            prior=priors[place],
        )
        for place, (before, behind) in enumerate(chosen)
    )


def _ruled(subject: Subject, sentence: Sentence, belief: NextToken) -> Ruled:
    """The beliefs after what decoding makes of them."""
    settings = subject.settings

    def step(prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        return belief, state

    temperature = temperature_of(subject.checkpoint, settings)
    shaped, _ = reshaped(step, temperature=temperature, unsmooth=settings.unsmooth)(sentence.given[None], None)
    eos = subject.checkpoint.target_tokenizer.specials.eos
    return ruled(shaped, sentence, subject.rules(), limit=subject.limit(), eos=eos, settings=settings)


def _priors(subject: Subject, sentence: Sentence, own: Tensor) -> list[Prior | None]:
    """What is believed after nothing but the source's end mark.  own: [t], log p of the labels."""
    blank = log_probs_after(subject.checkpoint.model, sentence, sentence.source[None, -1:])[0].double()
    gains = own - blank
    rows = zip(blank.tolist(), gains.tolist(), gains.isfinite().tolist(), strict=True)
    return [Prior(log_p=log_p, gain=gain if finite else None) for log_p, gain, finite in rows]


def _attention(found: Pass) -> Attention:
    seen = found.seen
    return Attention(
        encoder=tuple(_heads(layer) for layer in seen.encoder),
        decoder=tuple(None if layer is None else _heads(layer) for layer in seen.decoder),
        cross=tuple(_heads(layer) for layer in seen.cross),
    )


def _heads(weights: Tensor) -> Heads:
    """[1, H, t, S] as a value."""
    return tuple(_matrix(head) for head in weights[0])


def _matrix(values: Tensor) -> Matrix:
    return tuple(map(tuple, values.double().round(decimals=DECIMALS).tolist()))


def _terms(model: Transformer, found: Pass) -> tuple[Term, ...]:
    terms = model.head.terms(found.hidden, found.context)
    return tuple(Term(name=name, values=_matrix(values)) for name, values in terms.items())


def _attributions(subject: Subject, sentence: Sentence, found: Pass, show: frozenset[Part]) -> tuple[Attribution, ...]:
    model = subject.checkpoint.model
    unknown = subject.checkpoint.source_tokenizer.specials.unk
    shown = []
    for method in ("occlusion", "occlusion-mask", "occlusion-unknown"):
        if method in show:
            shown.append(occluded(model, sentence, found, method, unknown))
    if "input-gradient" in show:
        shown.append(input_gradient(model, sentence))
    if "integrated-gradients" in show:
        try:
            from translume.inspection.integrated import integrated_gradients
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"show: 'integrated-gradients': {error.name} is not installed; pip install 'translume[inspect]'"
            ) from None
        shown.append(integrated_gradients(model, sentence))
    return tuple(shown)


def _facts(subject: Subject, belief: NextToken) -> Facts:
    checkpoint, settings = subject.checkpoint, subject.settings
    weight = next(checkpoint.model.parameters())
    temperature = temperature_of(checkpoint, settings)
    if settings.strategy in ("sampling", "stochastic"):
        temperature *= settings.temperature
    return Facts(
        digest=checkpoint.digest,
        dtype=str(weight.dtype).removeprefix("torch."),
        device=str(weight.device),
        norm=checkpoint.config.model.norm,
        head=checkpoint.config.model.head.kind,
        normalised=belief.normalised,
        vocabulary=belief.size,
        smoothing_floor=_floor(subject, belief.size),
        temperature=temperature,
        reshaped="calibrated" if settings.calibrated else "unsmooth" if settings.unsmooth else "",
    )


def _floor(subject: Subject, size: int) -> float | None:
    """The share of label smoothing that each smoothed token has; None where the head spreads it otherwise."""
    training, specials = subject.checkpoint.config.training, subject.checkpoint.target_tokenizer.specials
    if not training.label_smoothing:
        return 0.0
    if not subject.checkpoint.model.head.exact_smoothing:
        return None
    if training.label_smoothing_over == "text":
        size -= len({each for each in (specials.pad, specials.bos, specials.unk) if each is not None})
    elif training.label_smoothing_over == "others":
        size -= 1
    return training.label_smoothing / size
