"""What-if questions: force another token, explain why a text was not the translation, edit the source."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from numbers import Integral

from translume.config import DecodingSettings
from translume.decoding import Hypothesis
from translume.errors import TranslationError, closest, suggest_keywords
from translume.inspection.inputs import SentenceSearch, check_length, single_model
from translume.inspection.passes import forward, ranks
from translume.inspection.values import Choice, Edited, Forced, Fork, Outcome, WhyNot
from translume.lazy import Tensor, no_grad, torch
from translume.text import Tokenizer
from translume.text.imported import SPACE
from translume.translator import TextHypothesis, Translator
from translume.translator.translator import Source

FORCED_TOGETHER = 16
"""Maximum number of forced tokens whose searches run together."""
POSITIONS_TOGETHER = 2048
"""Maximum number of encoder positions of such searches. Each has a copy of the source; a recording has 1,500."""


@suggest_keywords
def force_token(
    translator: Translator,
    source: Source,
    step: int,
    token: str | int,
    *,
    target: TextHypothesis | None = None,
    settings: DecodingSettings | None = None,
) -> Forced:
    """Force a token after the first `step` tokens, and continue decoding from there.

    token: an id, a piece as `tokens` shows it, or a text of several pieces. `▁` may be left out: if the vocabulary has
    the piece with and without it, the one that matches the replaced token is used.
    target: the target to change (default: the best translation). Raises TranslationError if the target has no such
    step, the vocabulary has no such token, or rules forbid it.
    """
    search, before = _before(translator, source, target, settings)
    tokenizer = search.translator.checkpoint.target_tokenizer
    wanted = _wanted(tokenizer, before, step, token)
    after = search.best([*before.ids[:step], *wanted])
    [fork] = _forks(search, before.ids[: step + 1], [(step, wanted[0])])
    return Forced(schema="forced/1", source=search.text, before=before, fork=fork, after=_outcome(after, tokenizer))


@suggest_keywords
def force_tokens(
    translator: Translator,
    source: Source,
    choices: Sequence[tuple[int, str | int]],
    *,
    target: TextHypothesis | None = None,
    settings: DecodingSettings | None = None,
) -> Iterator[Forced | None]:
    """Yield the result of `force_token` for each pair of a step and a token; None if rules forbid it.

    Searches for several pairs run together, which takes a fraction of the time. Errors are raised when the first value
    is read.
    """
    search, before = _before(translator, source, target, settings)
    tokenizer = search.translator.checkpoint.target_tokenizer
    wanted = [_wanted(tokenizer, before, step, token) for step, token in choices]
    steps = [step for step, _ in choices]
    forks = _forks(search, before.ids, [(step, ids[0]) for step, ids in zip(steps, wanted, strict=True)])
    together = max(1, min(FORCED_TOGETHER, POSITIONS_TOGETHER // max(1, len(search.piece.ids))))
    for begin in range(0, len(choices), together):
        part = slice(begin, begin + together)
        prefixes = [[*before.ids[:step], *ids] for step, ids in zip(steps[part], wanted[part], strict=True)]
        for fork, after in zip(forks[part], search.best_of_each(prefixes), strict=True):
            if after is None:
                yield None
                continue
            outcome = _outcome(after, tokenizer)
            yield Forced(schema="forced/1", source=search.text, before=before, fork=fork, after=outcome)


@suggest_keywords
def why_not(translator: Translator, source: Source, text: str, *, settings: DecodingSettings | None = None) -> WhyNot:
    """Compare `text` with the translation: the first difference, both probabilities there, and both continuations."""
    translator = single_model(translator)
    search = SentenceSearch.from_source(translator, source, settings)
    tokenizer = translator.checkpoint.target_tokenizer
    ids = (*tokenizer.encode(text), tokenizer.specials.eos)
    check_length(translator.checkpoint, "text", ids)
    best = search.best()
    step = _shared_tokens(best.tokens, ids)
    forced = search.forced(ids)
    fork, continued = None, None
    # If the translation was cut at its length limit, the text may continue it: there is no fork then.
    if step is not None and step < len(best.tokens):
        [fork] = _forks(search, best.tokens[: step + 1], [(step, ids[step])])
        (continuation,) = search.best_of_each([ids[: step + 1]])
        continued = None if continuation is None else _outcome(continuation, tokenizer)
    return WhyNot(
        schema="why-not/1",
        source=search.text,
        text=text,
        found=_outcome(best, tokenizer),
        fork=fork,
        continued=continued,
        wanted=None if forced is None else _outcome(forced, tokenizer),
    )


@suggest_keywords
def edit_source(
    translator: Translator, source: Source, edited: Source, *, settings: DecodingSettings | None = None
) -> Edited:
    """Translate an edited source, and measure how the log-probabilities of the original translation change."""
    translator = single_model(translator)
    tokenizer = translator.checkpoint.target_tokenizer
    original, changed = (SentenceSearch.from_source(translator, text, settings) for text in (source, edited))
    before, after = original.best(), changed.best()
    own, moved = (_log_probs(search, before.tokens) for search in (original, changed))
    gains = (moved - own).tolist()
    known = (moved.isfinite() & own.isfinite()).tolist()
    return Edited(
        schema="edited/1",
        source=original.text,
        edited=changed.text,
        before=_outcome(before, tokenizer),
        after=_outcome(after, tokenizer),
        step=_shared_tokens(before.tokens, after.tokens),
        moves=tuple(gain if finite else None for gain, finite in zip(gains, known, strict=True)),
    )


def _shared_tokens(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Return the number of tokens that two targets share at the beginning; None if they are equal."""
    if tuple(first) == tuple(second):
        return None
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def _before(
    translator: Translator, source: Source, target: TextHypothesis | None, settings: DecodingSettings | None
) -> tuple[SentenceSearch, Outcome]:
    """Return the search for a source, and the target in which tokens are forced."""
    search = SentenceSearch.from_source(single_model(translator), source, settings)
    tokenizer = search.translator.checkpoint.target_tokenizer
    return search, _outcome(search.best(), tokenizer) if target is None else _of_text(target)


def _wanted(tokenizer: Tokenizer, before: Outcome, step: int, token: str | int) -> tuple[int, ...]:
    """Return the ids to be forced at a step. Raises TranslationError for an unknown step or token."""
    if not isinstance(step, Integral) or isinstance(step, bool):
        raise TypeError(f"step: found {type(step).__name__}, expected an integer")
    if not isinstance(token, str | Integral) or isinstance(token, bool):
        raise TypeError(f"token: found {type(token).__name__}, expected an id or a text")
    if not 0 <= step < len(before.ids):
        raise TranslationError(f"step: found {step}, expected 0 to {len(before.ids) - 1}, a token of the target")
    return _ids(tokenizer, token, before.ids[step])


@no_grad()
def _forks(search: SentenceSearch, ids: Sequence[int], choices: Sequence[tuple[int, int]]) -> list[Fork]:
    """Return for each pair of a step and an id the fork of a target, `ids`, there."""
    model = search.translator.checkpoint.model
    computed = forward(model, search.sentence(ids))
    forks = []
    for step, wanted in choices:
        context = (
            None if computed.context is None else computed.context.select(computed.hidden.new_tensor([step]).long())
        )
        log_probs = model.head.next_token(computed.hidden[step, None], context).log_probs().double()
        chosen, other = (_choice(search, log_probs, id_) for id_ in (ids[step], wanted))
        forks.append(Fork(step=step, chosen=chosen, wanted=other))
    return forks


def _choice(search: SentenceSearch, log_probs: Tensor, id_: int) -> Choice:
    own = log_probs[0, id_]
    return Choice(
        id=id_,
        text=search.translator.checkpoint.target_tokenizer.tokens([id_])[0],
        p_model=float(own.exp()),
        log_p_model=float(own),
        rank=int(ranks(log_probs, torch.tensor([id_], device=log_probs.device))),
    )


@no_grad()
def _log_probs(search: SentenceSearch, ids: Sequence[int]) -> Tensor:
    """Return log-probabilities [t], fp64, of a target's tokens."""
    sentence = search.sentence(ids)
    model = search.translator.checkpoint.model
    computed = forward(model, sentence)
    return model.head.score(computed.hidden, sentence.labels, computed.context).double()


def _ids(tokenizer: Tokenizer, token: str | int, replaced: int) -> tuple[int, ...]:
    """Return the id of a token, or the ids of a text, to be put in the place of the id `replaced`.

    Raises TranslationError for an unknown token.
    """
    if isinstance(token, int):
        if not 0 <= token < len(tokenizer):
            raise TranslationError(f"token: found id {token}, expected 0 to {len(tokenizer) - 1}")
        return (token,)
    if not token.strip():
        raise TranslationError("token: found a blank text, expected a piece of the target's vocabulary")
    pieces = {piece: id_ for id_, piece in enumerate(tokenizer.pieces())}
    begins = replaced == tokenizer.specials.eos or tokenizer.tokens([replaced])[0].startswith(SPACE)
    for piece in (SPACE + token, token) if begins else (token, SPACE + token):
        if piece in pieces:
            return (pieces[piece],)
    spelt = tuple(tokenizer.encode(token))
    if spelt and tokenizer.specials.unk not in spelt:
        return spelt
    close = closest(token, [piece.removeprefix(SPACE) for piece in pieces])
    hint = f"; did you mean '{close}'?" if close else ""
    raise TranslationError(f"token: found '{token}', expected a piece of the target's vocabulary{hint}")


def _outcome(hypothesis: Hypothesis, tokenizer: Tokenizer) -> Outcome:
    return _of_text(TextHypothesis.from_hypothesis(hypothesis, tokenizer))


def _of_text(hypothesis: TextHypothesis) -> Outcome:
    return Outcome(**{each.name: getattr(hypothesis, each.name) for each in fields(Outcome)})
