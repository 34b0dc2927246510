"""Trace a text of a language model: the predicted distribution before each of its tokens."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import torch

from translume.errors import TranslationError, suggest_keywords
from translume.inspection.attribution import DECIMALS
from translume.inspection.inputs import check_parts, special_tokens, tokens_of, words_of
from translume.inspection.json_values import to_json_values
from translume.inspection.passes import Sentence, forward
from translume.inspection.step_distributions import entropies, logit_lens, margins, ranks, top_candidates
from translume.inspection.tracing import model_facts
from translume.inspection.values import Facts, Heads, LensLayer, Token, Top, Word
from translume.translator import Generator

TextPart = Literal["attention", "lens"]
PARTS: tuple[TextPart, ...] = ("attention", "lens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStep:
    """The predicted distribution before one token y.

    p, log_p: of y.  top: the k likeliest tokens.  entropy: in nats.  rank: of y, from 1, ties by smaller id.  margin: p
    of y minus the largest other p.  lens: the predictions after each layer; empty if not computed.
    """

    p: float
    log_p: float
    top: Top
    entropy: float
    rank: int
    margin: float
    lens: tuple[LensLayer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTrace:
    """The predicted distributions of a language model along a text, whose last token is the end mark.

    log_p: of the whole text, in nats, as `Generator.score` returns it.  steps: one for each of `tokens`.
    attention: for each layer and head [t, t]; column 0 is the begin mark, column j token j − 1; None for a layer
    without self-attention, and for the whole if not computed.  facts: of the model.
    """

    schema: Literal["text/1"]
    digest: str
    given: str
    text: str
    log_p: float
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    steps: tuple[TextStep, ...]
    attention: tuple[Heads | None, ...] | None
    facts: Facts

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as a JSON object."""
        values: dict[str, Any] = to_json_values(self)
        return values


@suggest_keywords
def trace_text(generator: Generator, text: str, *, k: int = 5, show: Collection[TextPart] = PARTS) -> TextTrace:
    """Return the predicted distribution before every token of a text and before its end mark.

    k: how many of the likeliest tokens are listed; no other number depends on it.  show: further parts to compute.
    The numbers come from the PyTorch model in its own dtype, whatever engine generates. Raises TranslationError for a
    text without tokens or longer than the model reads, SettingsError for unknown parts.
    """
    check_parts(k, show, PARTS)
    checkpoint, tokenizer = generator.checkpoint, generator.tokenizer
    ids = tokenizer.encode(text)
    if not ids:
        raise TranslationError("text: found a blank text, expected a text to inspect")
    if len(ids) >= generator.context:
        raise TranslationError(
            f"text: found {len(ids) + 1:,} tokens with the end mark, expected at most {generator.context:,}"
        )
    specials, model = tokenizer.specials, checkpoint.model
    device = next(model.parameters()).device
    labels = torch.tensor([*ids, specials.eos], device=device)
    with torch.no_grad():
        sentence = Sentence(labels[-1:], labels, specials.bos)
        found = forward(model, sentence, attention="attention" in show)
        belief = model.head.next_token(found.hidden, found.context)
        log_probs = belief.log_probs().double()
        lenses: list[tuple[LensLayer, ...]] = [()] * len(labels)
        if "lens" in show:
            lenses = logit_lens(model, found, labels, k, tokenizer)
        tops = top_candidates(log_probs, k, tokenizer, log_probs, None)
    own = log_probs.gather(1, labels[:, None])[:, 0].tolist()
    columns = (
        own,
        entropies(log_probs).tolist(),
        ranks(log_probs, labels).tolist(),
        margins(log_probs, labels).tolist(),
    )
    tokens = tokens_of(tokenizer, labels.tolist(), tokenizer.spans_in(text))
    normalised = tokenizer.normalise(text)
    attention = None
    if "attention" in show:
        attention = tuple(None if each is None else _heads(each) for each in found.layers.decoder)
    return TextTrace(
        schema="text/1",
        digest=checkpoint.digest,
        given=text,
        text=normalised,
        log_p=sum(own),
        tokens=tokens,
        words=words_of(normalised, tokens, special_tokens(tokenizer), own),
        steps=tuple(
            TextStep(p=math.exp(log_p), log_p=log_p, top=top, entropy=entropy, rank=rank, margin=margin, lens=lens)
            for (log_p, entropy, rank, margin), top, lens in zip(zip(*columns, strict=True), tops, lenses, strict=True)
        ),
        attention=attention,
        facts=model_facts(checkpoint, specials, belief),
    )


def _heads(weights: torch.Tensor) -> Heads:
    """Convert weights [1, H, t, t] to nested tuples."""
    return tuple(tuple(map(tuple, head.double().round(decimals=DECIMALS).tolist())) for head in weights[0])
