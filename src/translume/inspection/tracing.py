"""Trace a translation: recompute every step's distribution with parallel passes over the finished target."""

import math
from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.checkpoint import Checkpoint
from translume.config import Config, DecodingSettings
from translume.decoding import reshaped
from translume.errors import SettingsError, suggest_keywords
from translume.inspection.attribution import DECIMALS, input_gradient, integrated_gradients, log_probs_after, occluded
from translume.inspection.frames import traced_frames
from translume.inspection.inputs import (
    TraceInputs,
    check_parts,
    joined,
    special_tokens,
    tokens_of,
    trace_inputs,
    words_of,
)
from translume.inspection.passes import Pass, Sentence, forward, positions_in
from translume.inspection.step_distributions import (
    UsedDistributions,
    entropies,
    logit_lens,
    margins,
    ranks,
    top_candidates,
    used_distributions,
)
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
from translume.model.transformer import Transformer
from translume.text import SpecialIds
from translume.translator import TextHypothesis, Translator
from translume.translator.search import temperature_of
from translume.translator.translator import Source

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
DEFAULT_PARTS: tuple[Part, ...] = ("attention", "lens", "prior", "terms", "occlusion")
"""Parts of a trace by default: all but further attribution methods, each as expensive as everything else."""
FRAME_PARTS: tuple[Part, ...] = ("attention", "lens", "prior", "terms", "occlusion-mask")
"""The same for sources of frames, from which a position cannot be removed or replaced by an unknown one."""
ATTRIBUTION_METHODS: tuple[Part, ...] = (
    "occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients",
)  # fmt: skip
"""Parts that attribute target tokens to source tokens."""
MOST_WEIGHTS = 1 << 22
"""Maximum number of attention weights of all encoder layers, and of all cross-attention, in a trace of frames."""
PARTS: tuple[Part, ...] = (*DEFAULT_PARTS, *ATTRIBUTION_METHODS[1:])


@suggest_keywords
def trace(
    translator: Translator,
    source: Source,
    target: str | TextHypothesis | None = None,
    *,
    k: int = 5,
    settings: DecodingSettings | None = None,
    show: Collection[Part] | None = None,
) -> Trace:
    """Return the predicted distribution of every step of one translation, and the effect of decoding on it.

    source: a text; for a model of audio, images or features what `Translator.translate` takes, such as a path.
    target: a text, a hypothesis, or None for the model's own translation.
    k: how many of the likeliest tokens are listed; no other number depends on it.
    settings: decoding settings for the translation and for p_used (default: the model's own).
    show: further parts to compute; None for `default_parts`. "integrated-gradients" requires captum
    (translume[inspect]).
    The numbers come from the PyTorch model in its own dtype, whatever engine translates. Raises TranslationError for a
    blank source or a side that is longer than the model reads, SettingsError for invalid settings or parts, DataError
    for a file that cannot be read.
    """
    check_parts(k, show or (), PARTS)
    inputs = trace_inputs(translator, source, target, settings)
    reads = inputs.checkpoint.config.data.source
    if reads.reader:
        for part in ("occlusion", "occlusion-unknown"):
            if part in (show or ()):
                raise SettingsError(
                    f"show: found '{part}', expected 'occlusion-mask', 'input-gradient' or 'integrated-gradients' "
                    f"with data.source = '{reads.kind}'"
                )
    with torch.no_grad():
        return _traced(inputs, k, frozenset(default_parts(inputs.checkpoint.config) if show is None else show))


def default_parts(config: Config) -> tuple[Part, ...]:
    """Return the parts of a trace by default for a model with these settings."""
    return FRAME_PARTS if config.data.source.reader else DEFAULT_PARTS


def _traced(inputs: TraceInputs, k: int, show: frozenset[Part]) -> Trace:
    checkpoint, sentence = inputs.checkpoint, inputs.sentence()
    model, tokenizer = checkpoint.model, checkpoint.target_tokenizer
    found = forward(model, sentence, attention="attention" in show)
    belief = model.head.next_token(found.hidden, found.context)
    log_probs = belief.log_probs().double()  # [t, V]
    steps = _steps(inputs, sentence, found, belief, log_probs, k, show)
    own = [step.log_p_model for step in steps]
    spelt = inputs.target[:-1] if inputs.finished_by == "eos" else inputs.target
    target = tokenizer.decode(spelt)
    if inputs.piece.frames is None:
        source = checkpoint.source_tokenizer.normalise(inputs.given)
        tokens = tokens_of(checkpoint.source_tokenizer, inputs.source, inputs.source_spans())
        source_tokens = joined(tokens, positions_in(model.encoder, sentence.source).tolist())
        source_words = words_of(source, source_tokens, special_tokens(checkpoint.source_tokenizer))
        frames = None
    else:
        source, source_words = inputs.given, ()
        source_tokens, frames = traced_frames(inputs, found)
    target_tokens = tokens_of(tokenizer, inputs.target, tokenizer.spans(spelt))
    return Trace(
        schema="trace/1",
        facts=_facts(inputs, belief),
        given=inputs.given,
        source=source,
        target=target,
        origin=inputs.origin,
        finished_by=inputs.finished_by,
        log_p=sum(own),
        source_tokens=source_tokens,
        target_tokens=target_tokens,
        source_words=source_words,
        target_words=words_of(target, target_tokens, special_tokens(tokenizer), own),
        steps=steps,
        attention=_attention(found) if "attention" in show else None,
        terms=_terms(model, found) if "terms" in show else (),
        attributions=_attributions(inputs, sentence, found, show),
        frames=frames,
        warnings=inputs.piece.warnings,
    )


def _steps(
    inputs: TraceInputs,
    sentence: Sentence,
    found: Pass,
    belief: NextToken,
    log_probs: Tensor,
    k: int,
    show: frozenset[Part],
) -> tuple[Step, ...]:
    """Return one step per target token; log_probs: [t, V], of `belief`."""
    model, tokenizer = inputs.checkpoint.model, inputs.checkpoint.target_tokenizer
    labels = sentence.labels
    used = _used(inputs, sentence, belief)
    lenses: list[tuple[LensLayer, ...]] = [()] * len(labels)
    if "lens" in show:
        lenses = logit_lens(model, found, labels, k, tokenizer)
    own = log_probs.gather(1, labels[:, None])[:, 0]
    priors = _priors(inputs, sentence, own) if "prior" in show else [None] * len(labels)
    own_used = used.log_probs.gather(1, labels[:, None])[:, 0]
    tops_model, tops_used = (
        top_candidates(each, k, tokenizer, log_probs, used.log_probs) for each in (log_probs, used.log_probs)
    )
    columns = (own, own_used, entropies(log_probs), ranks(log_probs, labels), margins(log_probs, labels))
    return tuple(
        Step(
            p_model=math.exp(log_p_model),
            log_p_model=log_p_model,
            p_used=math.exp(log_p_used),
            log_p_used=log_p_used,
            rules=used.effects[place],
            top_model=tops_model[place],
            top_used=tops_used[place],
            entropy=entropy,
            rank=rank,
            margin=margin,
            lens=lenses[place],
            prior=priors[place],
        )
        for place, (log_p_model, log_p_used, entropy, rank, margin) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    )


def _used(inputs: TraceInputs, sentence: Sentence, belief: NextToken) -> UsedDistributions:
    """Return the distributions after reshaping, rules, temperature and truncation."""
    settings = inputs.settings

    def step(prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        return belief, state

    temperature = temperature_of(inputs.checkpoint, settings)
    shaped, _ = reshaped(step, temperature=temperature, unsmooth=settings.unsmooth)(sentence.given[None], None)
    eos = inputs.checkpoint.target_tokenizer.specials.eos
    return used_distributions(shaped, sentence, inputs.rules(), limit=inputs.limit(), eos=eos, settings=settings)


def _priors(inputs: TraceInputs, sentence: Sentence, own: Tensor) -> list[Prior | None]:
    """Return the predictions for an empty source; see `Sentence.blank`.  own: [t], log p of the labels."""
    model = inputs.checkpoint.model
    blank = log_probs_after(model, sentence, sentence.blank(model.encoder)[None])[0].double()
    gains = own - blank
    rows = zip(blank.tolist(), gains.tolist(), gains.isfinite().tolist(), strict=True)
    return [Prior(log_p=log_p, gain=gain if finite else None) for log_p, gain, finite in rows]


def _attention(found: Pass) -> Attention:
    layers = found.layers
    encoder = layers.encoder if sum(layer.numel() for layer in layers.encoder) <= MOST_WEIGHTS else []
    cross = layers.cross
    if sum(layer.numel() for layer in cross) > MOST_WEIGHTS:
        cross = [layer.mean(1, keepdim=True) for layer in cross]
    return Attention(
        encoder=tuple(_heads(layer) for layer in encoder),
        decoder=tuple(None if layer is None else _heads(layer) for layer in layers.decoder),
        cross=tuple(_heads(layer) for layer in cross),
    )


def _heads(weights: Tensor) -> Heads:
    """Convert weights [1, H, t, S] to nested tuples."""
    return tuple(_matrix(head) for head in weights[0])


def _matrix(values: Tensor) -> Matrix:
    return tuple(map(tuple, values.double().round(decimals=DECIMALS).tolist()))


def _terms(model: Transformer, found: Pass) -> tuple[Term, ...]:
    terms = model.head.terms(found.hidden, found.context)
    return tuple(Term(name=name, values=_matrix(values)) for name, values in terms.items())


def _attributions(
    inputs: TraceInputs, sentence: Sentence, found: Pass, show: frozenset[Part]
) -> tuple[Attribution, ...]:
    model = inputs.checkpoint.model
    unknown = inputs.checkpoint.source_tokenizer.specials.unk
    shown = []
    for method in ("occlusion", "occlusion-mask", "occlusion-unknown"):
        if method in show:
            shown.append(occluded(model, sentence, found, method, unknown))
    if "input-gradient" in show:
        shown.append(input_gradient(model, sentence))
    if "integrated-gradients" in show:
        shown.append(integrated_gradients(model, sentence))
    return tuple(shown)


def _facts(inputs: TraceInputs, belief: NextToken) -> Facts:
    checkpoint, settings = inputs.checkpoint, inputs.settings
    temperature = temperature_of(checkpoint, settings)
    if settings.strategy in ("sampling", "stochastic"):
        temperature *= settings.temperature
    changed: Literal["", "calibrated", "unsmooth"] = (
        "calibrated" if settings.calibrated else "unsmooth" if settings.unsmooth else ""
    )
    specials = checkpoint.target_tokenizer.specials
    return model_facts(checkpoint, specials, belief, temperature=temperature, changed=changed)


def model_facts(
    checkpoint: Checkpoint,
    specials: SpecialIds,
    belief: NextToken,
    *,
    temperature: float = 1.0,
    changed: Literal["", "calibrated", "unsmooth"] = "",
) -> Facts:
    """Return the facts of a model whose predicted distributions are `belief`."""
    weight = next(checkpoint.model.parameters())
    return Facts(
        digest=checkpoint.digest,
        dtype=str(weight.dtype).removeprefix("torch."),
        device=str(weight.device),
        norm=checkpoint.config.model.norm,
        head=checkpoint.config.model.head.kind,
        normalised=belief.normalised,
        vocabulary=belief.size,
        smoothing_floor=_floor(checkpoint, specials, belief.size),
        temperature=temperature,
        reshaped=changed,
    )


def _floor(checkpoint: Checkpoint, specials: SpecialIds, size: int) -> float | None:
    """Return the probability that label smoothing gives each token; None if the head spreads it differently."""
    training = checkpoint.config.training
    if not training.label_smoothing:
        return 0.0
    if not checkpoint.model.head.exact_smoothing:
        return None
    if training.label_smoothing_over == "text":
        size -= len(specials.outside_targets)
    elif training.label_smoothing_over == "others":
        size -= 1
    return training.label_smoothing / size
