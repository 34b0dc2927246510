"""Trace a translation, or a text of a language model: recompute every step's distribution in parallel passes."""

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from translume.belief import NextToken
from translume.checkpoint import Checkpoint
from translume.config import Config, DecodingSettings, FrameSettings
from translume.config.sources import ImageSettings
from translume.decoding import reshaped
from translume.errors import SettingsError, TranslationError, suggest_keywords
from translume.inspection.attribution import gradients, log_probs_after, matrix, occluded
from translume.inspection.inputs import (
    TraceInputs,
    check_parts,
    joined,
    special_tokens,
    tokens_of,
    trace_inputs,
    words_of,
)
from translume.inspection.passes import (
    Pass,
    Sentence,
    UsedDistributions,
    forward,
    logit_lens,
    positions_in,
    statistics_of,
    top_candidates,
    used_distributions,
)
from translume.inspection.values import (
    Attention,
    Attribution,
    Facts,
    Frames,
    Heads,
    Method,
    Prior,
    Step,
    Term,
    TextStep,
    TextTrace,
    Token,
    Trace,
)
from translume.lazy import Tensor, no_grad, torch
from translume.text import SpecialIds
from translume.translator import Generator, TextHypothesis, Translator
from translume.translator.search import temperature_of
from translume.translator.translator import Source

if TYPE_CHECKING:
    from translume.model.transformer import Transformer

Part = Literal["attention", "lens", "prior", "terms"] | Method
DEFAULT_PARTS: tuple[Part, ...] = ("attention", "lens", "prior", "terms", "occlusion")
"""Parts of a trace by default: all but further attribution methods, each as expensive as everything else."""
FRAME_PARTS: tuple[Part, ...] = ("attention", "lens", "prior", "terms", "occlusion-mask")
"""The same for sources of frames, from which a position cannot be removed or replaced by an unknown one."""
ATTRIBUTION_METHODS: tuple[Method, ...] = (
    "occlusion", "occlusion-mask", "occlusion-unknown", "input-gradient", "integrated-gradients",
)  # fmt: skip
"""Parts that attribute target tokens to source tokens."""
PARTS: tuple[Part, ...] = (*DEFAULT_PARTS, *ATTRIBUTION_METHODS[1:])
TextPart = Literal["attention", "lens"]
TEXT_PARTS: tuple[TextPart, ...] = ("attention", "lens")
_LEVELS = 255


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
    config = inputs.search.checkpoint.config
    reads = config.data.source
    if reads.reader:
        for part in ("occlusion", "occlusion-unknown"):
            if part in (show or ()):
                raise SettingsError(
                    f"show: found '{part}', expected 'occlusion-mask', 'input-gradient' or 'integrated-gradients' "
                    f"with data.source = '{reads.kind}'"
                )
    with no_grad():
        return _traced(inputs, k, frozenset(default_parts(config) if show is None else show))


def default_parts(config: Config) -> tuple[Part, ...]:
    """Return the parts of a trace by default for a model with these settings."""
    return FRAME_PARTS if config.data.source.reader else DEFAULT_PARTS


def _traced(inputs: TraceInputs, k: int, show: frozenset[Part]) -> Trace:
    search, sentence = inputs.search, inputs.sentence()
    checkpoint, piece = search.checkpoint, search.piece
    model, tokenizer = checkpoint.model, checkpoint.target_tokenizer
    computed = forward(model, sentence, attention="attention" in show)
    belief = model.head.next_token(computed.hidden, computed.context)
    steps = _steps(inputs, sentence, computed, belief, k, show)
    own = [step.log_p_model for step in steps]
    spelt = inputs.target[:-1] if inputs.finished_by == "eos" else inputs.target
    target = tokenizer.decode(spelt)
    if piece.frames is None:
        source = checkpoint.source_tokenizer.normalise(search.text)
        tokens = tokens_of(checkpoint.source_tokenizer, inputs.source, inputs.source_spans())
        source_tokens = joined(tokens, positions_in(model.encoder, sentence.source).tolist())
        source_words = words_of(source, source_tokens, special_tokens(checkpoint.source_tokenizer))
        frames = None
    else:
        source, source_words = search.text, ()
        source_tokens, frames = _frames(inputs, piece.frames, computed)
    target_tokens = tokens_of(tokenizer, inputs.target, tokenizer.spans(spelt))
    return Trace(
        schema="trace/1",
        facts=_facts(inputs, belief),
        given=search.text,
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
        attention=_attention(computed) if "attention" in show else None,
        terms=_terms(model, computed) if "terms" in show else (),
        attributions=_attributions(inputs, sentence, computed, show),
        frames=frames,
        warnings=piece.warnings,
    )


def _steps(
    inputs: TraceInputs, sentence: Sentence, computed: Pass, belief: NextToken, k: int, show: frozenset[Part]
) -> tuple[Step, ...]:
    """Return one step per target token."""
    model, tokenizer = inputs.search.checkpoint.model, inputs.search.checkpoint.target_tokenizer
    labels, log_probs = sentence.labels, belief.log_probs().double()  # [t, V]
    used = _used(inputs, sentence, belief)
    statistics = statistics_of(log_probs, labels)
    log_p_used: list[float] = used.log_probs.gather(1, labels[:, None])[:, 0].tolist()
    tops_model, tops_used = (
        top_candidates(each, k, tokenizer, log_probs, used.log_probs) for each in (log_probs, used.log_probs)
    )
    lenses = logit_lens(model, computed, labels, k, tokenizer) if "lens" in show else [()] * len(labels)
    priors: list[Prior | None] = [None] * len(labels)
    if "prior" in show:
        priors = _priors(model, sentence, [each.log_p for each in statistics])
    return tuple(
        Step(
            p_model=math.exp(of_model.log_p),
            log_p_model=of_model.log_p,
            p_used=math.exp(log_p_used[index]),
            log_p_used=log_p_used[index],
            rules=used.effects[index],
            top_model=tops_model[index],
            top_used=tops_used[index],
            entropy=of_model.entropy,
            rank=of_model.rank,
            margin=of_model.margin,
            lens=lenses[index],
            prior=priors[index],
        )
        for index, of_model in enumerate(statistics)
    )


def _used(inputs: TraceInputs, sentence: Sentence, belief: NextToken) -> UsedDistributions:
    """Return the distributions after reshaping, rules, temperature and truncation."""
    checkpoint, settings = inputs.search.checkpoint, inputs.search.settings

    def step(prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        return belief, state

    temperature = temperature_of(checkpoint, settings)
    shaped, _ = reshaped(step, temperature=temperature, unsmooth=settings.unsmooth)(sentence.given[None], None)
    eos = checkpoint.target_tokenizer.specials.eos
    return used_distributions(shaped, sentence, inputs.rules(), limit=inputs.limit(), eos=eos, settings=settings)


def _priors(model: "Transformer", sentence: Sentence, log_probs: Sequence[float]) -> list[Prior | None]:
    """Return the predictions for an empty source; see `Sentence.blank`.  log_probs: [t], of the labels."""
    blank: list[float] = log_probs_after(model, sentence, sentence.blank(model.encoder)[None])[0].double().tolist()
    gains = [log_p - without for log_p, without in zip(log_probs, blank, strict=True)]
    return [
        Prior(log_p=without, gain=gain if math.isfinite(gain) else None)
        for without, gain in zip(blank, gains, strict=True)
    ]


def _attention(computed: Pass) -> Attention:
    layers = computed.layers
    return Attention(
        encoder=tuple(map(_heads, layers.encoder)),
        decoder=tuple(None if layer is None else _heads(layer) for layer in layers.decoder),
        cross=tuple(map(_heads, layers.cross)),
    )


def _heads(weights: Tensor) -> Heads:
    """Convert weights [1, H, t, S] to nested tuples."""
    return tuple(map(matrix, weights[0]))


def _terms(model: "Transformer", computed: Pass) -> tuple[Term, ...]:
    terms = model.head.terms(computed.hidden, computed.context)
    return tuple(Term(name=name, values=matrix(values)) for name, values in terms.items())


def _attributions(
    inputs: TraceInputs, sentence: Sentence, computed: Pass, show: frozenset[Part]
) -> tuple[Attribution, ...]:
    model, unknown = inputs.search.checkpoint.model, inputs.search.checkpoint.source_tokenizer.specials.unk
    return tuple(
        occluded(model, sentence, computed, method, unknown)
        if method.startswith("occlusion")
        else gradients(model, sentence, method)
        for method in ATTRIBUTION_METHODS
        if method in show
    )


def _facts(inputs: TraceInputs, belief: NextToken) -> Facts:
    checkpoint, settings = inputs.search.checkpoint, inputs.search.settings
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


def _frames(inputs: TraceInputs, frames: NDArray[np.float32], computed: Pass) -> tuple[tuple[Token, ...], Frames]:
    """Return the positions of a source of frames as tokens, and the source itself."""
    settings = inputs.search.checkpoint.config.data.source
    assert isinstance(settings, FrameSettings)
    if settings.window:
        frames = frames[: _end_of_sound(frames)]
    stride, before = settings.stride, settings.positions_of(0)  # before: learned vectors
    tokens = []
    for place in range(computed.memory.size(1)):
        begin, end = (min(max(0, each - before) * stride, len(frames)) for each in (place, place + 1))
        text = f"{place * stride / settings.rate:.2f}" if settings.rate else str((place - before) * stride)
        tokens.append(Token(id=0, text=text, begin=begin, end=end))
    spans, aligned_by = _spans(inputs, computed)
    low, high = (0.0, 1.0) if settings.kind == "image" else (float(frames.min()), float(frames.max()))
    levels = np.rint((frames - low) * (_LEVELS / ((high - low) or 1.0))).astype(int)
    return tuple(tokens), Frames(
        kind=settings.kind,
        per_second=float(settings.rate),
        colors=settings.size // settings.height if isinstance(settings, ImageSettings) else 1,
        low=low,
        high=high,
        levels=tuple(map(tuple, levels.tolist())),
        spans=tuple((tokens[first].begin, tokens[last - 1].end) if last > first else (0, 0) for first, last in spans),
        aligned_by=aligned_by,
    )


def _end_of_sound(frames: NDArray[np.float32]) -> int:
    """Return the number of frames before the silence with which a window is filled up; at least 1."""
    sounding = np.flatnonzero(frames.max(1) > frames.min())
    return int(sounding[-1]) + 1 if len(sounding) else 1


def _spans(inputs: TraceInputs, computed: Pass) -> tuple[list[tuple[int, int]], Literal["", "ctc", "attention"]]:
    """Return the positions [first, last) of each target token, and how they were found."""
    model, specials = inputs.search.checkpoint.model, inputs.search.checkpoint.target_tokenizer.specials
    count = len(inputs.target) - (inputs.finished_by == "eos")
    end = [(0, 0)] * (len(inputs.target) - count)
    if model.ctc is not None:
        log_probs = model.ctc.log_probs(computed.memory)[0].double().cpu().numpy()
        spans = ctc_alignment(log_probs, inputs.target[:count], specials.bos)
        if spans is not None:
            return spans + end, "ctc"
    if not computed.layers.cross:
        return [(0, 0)] * len(inputs.target), ""
    weights = computed.layers.cross[max(0, len(computed.layers.cross) - 2)][0].mean(0)  # [t, S]
    return [(place, place + 1) for place in torch.argmax(weights[:count], 1).tolist()] + end, "attention"


def ctc_alignment(log_probs: NDArray[np.float64], target: Sequence[int], blank: int) -> list[tuple[int, int]] | None:
    """Return the positions [first, last) of each token in the most likely alignment of a target with its source.

    log_probs: [S, V], of tokens and the blank.  None if the target needs more positions than the source has.
    """
    states = [blank]
    for id_ in target:
        states += [id_, blank]
    scores = log_probs[:, states]  # [S, 2t + 1]
    count = len(states)
    skips = np.array([place % 2 == 1 and place > 1 and states[place] != states[place - 2] for place in range(count)])
    best = np.full(count, -np.inf)
    best[:2] = scores[0, :2]
    moves = np.zeros(scores.shape, np.int8)
    for place in range(1, len(scores)):
        options = np.full((3, count), -np.inf)
        options[0] = best
        options[1, 1:] = best[:-1]
        options[2, 2:] = np.where(skips[2:], best[:-2], -np.inf)
        moves[place] = options.argmax(0)
        best = options.max(0) + scores[place]
    state = count - 1 if count == 1 or best[-1] >= best[-2] else count - 2
    if best[state] == -np.inf:
        return None
    spans = [(0, 0)] * len(target)
    for place in range(len(scores) - 1, -1, -1):
        if state % 2:
            spans[state // 2] = (place, spans[state // 2][1] or place + 1)
        state -= int(moves[place][state])
    return spans


@suggest_keywords
def trace_text(generator: Generator, text: str, *, k: int = 5, show: Collection[TextPart] = TEXT_PARTS) -> TextTrace:
    """Return the predicted distribution before every token of a text and before its EOS.

    k: how many of the likeliest tokens are listed; no other number depends on it.  show: further parts to compute.
    The numbers come from the PyTorch model in its own dtype, whatever engine generates. Raises TranslationError for a
    text without tokens or longer than the model reads, SettingsError for unknown parts.
    """
    check_parts(k, show, TEXT_PARTS)
    checkpoint, tokenizer = generator.checkpoint, generator.tokenizer
    ids = tokenizer.encode(text)
    if not ids:
        raise TranslationError("text: found a blank text, expected a text to inspect")
    if len(ids) >= generator.context:
        raise TranslationError(f"text: found {len(ids) + 1:,} tokens with EOS, expected at most {generator.context:,}")
    specials, model = tokenizer.specials, checkpoint.model
    labels = torch.tensor([*ids, specials.eos], device=next(model.parameters()).device)
    with no_grad():
        computed = forward(model, Sentence(labels[-1:], labels, specials.bos), attention="attention" in show)
        belief = model.head.next_token(computed.hidden, computed.context)
        log_probs = belief.log_probs().double()
        lenses = logit_lens(model, computed, labels, k, tokenizer) if "lens" in show else [()] * len(labels)
        tops, statistics = top_candidates(log_probs, k, tokenizer, log_probs), statistics_of(log_probs, labels)
    log_p = [each.log_p for each in statistics]
    tokens = tokens_of(tokenizer, labels.tolist(), tokenizer.spans_in(text))
    normalised = tokenizer.normalise(text)
    attention = None
    if "attention" in show:
        attention = tuple(None if each is None else _heads(each) for each in computed.layers.decoder)
    return TextTrace(
        schema="text/1",
        digest=checkpoint.digest,
        given=text,
        text=normalised,
        log_p=sum(log_p),
        tokens=tokens,
        words=words_of(normalised, tokens, special_tokens(tokenizer), log_p),
        steps=tuple(
            TextStep(
                p=math.exp(each.log_p),
                log_p=each.log_p,
                top=top,
                entropy=each.entropy,
                rank=each.rank,
                margin=each.margin,
                lens=lens,
            )
            for each, top, lens in zip(statistics, tops, lenses, strict=True)
        ),
        attention=attention,
        facts=model_facts(checkpoint, specials, belief),
    )
