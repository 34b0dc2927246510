"""Trace a translation: recompute every step's distribution with parallel passes over the finished target."""

import math
from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.config import DecodingSettings
from translume.decoding import reshaped
from translume.errors import SettingsError, nearest
from translume.inspection.attribution import input_gradient, integrated_gradients, log_probs_after, occluded
from translume.inspection.distributions import (
    UsedDistributions,
    entropies,
    lens,
    margins,
    ranks,
    top_candidates,
    used_distributions,
)
from translume.inspection.inputs import Subject, subject_of
from translume.inspection.passes import Pass, Sentence, forward
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
"""Parts of a trace by default: all but further attribution methods, each as expensive as everything else."""
METHODS: tuple[Part, ...] = (
    "occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients",
)  # fmt: skip
"""Parts that attribute target tokens to source tokens."""
KNOWN: tuple[Part, ...] = (*EVERYTHING, *METHODS[1:])
DECIMALS = 6
"""Decimals of attention weights and of a head's own terms."""


def trace(
    translator: Translator,
    source: str,
    target: str | TextHypothesis | None = None,
    *,
    k: int = 5,
    settings: DecodingSettings | None = None,
    show: Collection[Part] = EVERYTHING,
) -> Trace:
    """Return the predicted distribution of every step of one translation, and the effect of decoding on it.

    target: a text, a hypothesis, or None for the model's own translation.
    k: how many of the likeliest tokens are listed; no other number depends on it.
    settings: decoding settings for the translation and for p_used (default: the model's own).
    show: further parts to compute; "integrated-gradients" requires captum (translume[inspect]).
    The numbers come from the PyTorch model in its own dtype, whatever engine translates. Raises TranslationError for a
    blank source or a side that is longer than the model reads, SettingsError for invalid settings or parts.
    """
    _check(k, show)
    subject = subject_of(translator, source, target, settings)
    with torch.no_grad():
        return _traced(subject, k, frozenset(show))


def _check(k: int, show: Collection[Part]) -> None:
    if k < 1:
        raise SettingsError(f"k: found {k}, expected at least 1")
    for part in show:
        if part not in KNOWN:
            raise SettingsError(f"show: found '{part}'{nearest(part, KNOWN)}")


def _traced(subject: Subject, k: int, show: frozenset[Part]) -> Trace:
    checkpoint, sentence = subject.checkpoint, subject.sentence()
    model, tokenizer = checkpoint.model, checkpoint.target_tokenizer
    found = forward(model, sentence, attention="attention" in show)
    belief = model.head.next_token(found.hidden, found.context)
    log_probs = belief.log_probs().double()  # [t, V]
    steps = _steps(subject, sentence, found, belief, log_probs, k, show)
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
    """Ids of special tokens without text."""
    return tokenizer.specials.pad, tokenizer.specials.bos, tokenizer.specials.eos


def _steps(
    subject: Subject,
    sentence: Sentence,
    found: Pass,
    belief: NextToken,
    log_probs: Tensor,
    k: int,
    show: frozenset[Part],
) -> tuple[Step, ...]:
    """Return one step per target token; log_probs: [t, V], of `belief`."""
    model, tokenizer = subject.checkpoint.model, subject.checkpoint.target_tokenizer
    labels = sentence.labels
    used = _used(subject, sentence, belief)
    lenses: list[tuple[LensLayer, ...]] = [()] * len(labels)
    if "lens" in show:
        lenses = lens(model, found, labels, k, tokenizer)
    own = log_probs.gather(1, labels[:, None])[:, 0]
    priors = _priors(subject, sentence, own) if "prior" in show else [None] * len(labels)
    after = used.log_probs.gather(1, labels[:, None])[:, 0]
    models, afters = (
        top_candidates(each, k, tokenizer, log_probs, used.log_probs) for each in (log_probs, used.log_probs)
    )
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


def _used(subject: Subject, sentence: Sentence, belief: NextToken) -> UsedDistributions:
    """Return the distributions after reshaping, rules, temperature and truncation."""
    settings = subject.settings

    def step(prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        return belief, state

    temperature = temperature_of(subject.checkpoint, settings)
    shaped, _ = reshaped(step, temperature=temperature, unsmooth=settings.unsmooth)(sentence.given[None], None)
    eos = subject.checkpoint.target_tokenizer.specials.eos
    return used_distributions(shaped, sentence, subject.rules(), limit=subject.limit(), eos=eos, settings=settings)


def _priors(subject: Subject, sentence: Sentence, own: Tensor) -> list[Prior | None]:
    """Return the predictions for an empty source (its end mark alone).  own: [t], log p of the labels."""
    blank = log_probs_after(subject.checkpoint.model, sentence, sentence.source[None, -1:])[0].double()
    gains = own - blank
    rows = zip(blank.tolist(), gains.tolist(), gains.isfinite().tolist(), strict=True)
    return [Prior(log_p=log_p, gain=gain if finite else None) for log_p, gain, finite in rows]


def _attention(found: Pass) -> Attention:
    layers = found.layers
    return Attention(
        encoder=tuple(_heads(layer) for layer in layers.encoder),
        decoder=tuple(None if layer is None else _heads(layer) for layer in layers.decoder),
        cross=tuple(_heads(layer) for layer in layers.cross),
    )


def _heads(weights: Tensor) -> Heads:
    """Convert weights [1, H, t, S] to nested tuples."""
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
    """Return the probability that label smoothing gives each token; None if the head spreads it differently."""
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
