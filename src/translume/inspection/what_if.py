"""What if another token were forced, another text wanted, the source another one?"""

from collections.abc import Sequence
from difflib import get_close_matches

import torch

from translume.config import DecodingSettings
from translume.decoding import Hypothesis
from translume.errors import TranslationError
from translume.inspection.alternatives import Choice, Edited, Forced, Fork, Outcome, WhyNot
from translume.inspection.beliefs import ranks
from translume.inspection.passes import Sentence, read
from translume.inspection.searches import Searched
from translume.inspection.subject import check_alone, check_length
from translume.text import Tokenizer
from translume.text.tokenizer import MARK
from translume.translator import TextHypothesis, Translator


def force_token(
    translator: Translator,
    source: str,
    step: int,
    token: str | int,
    *,
    target: TextHypothesis | None = None,
    settings: DecodingSettings | None = None,
) -> Forced:
    """The translation with another token after the first `step` ones, decoded on from there.

    token: an id, a piece as `tokens` show it, or a text that several pieces make up. `▁` may be left out: where there
    is a piece with and one without, that is meant which begins a word if the one in its place does.
    target: what to part from, instead of the best translation. Raises TranslationError for a step that the target has
    not, a token that the vocabulary has not, or one that rules forbid.
    """
    check_alone(translator)
    searched = Searched.of(translator, source, settings)
    tokenizer = translator.checkpoint.target_tokenizer
    before = _outcome(searched.best(), tokenizer) if target is None else _of_text(target)
    if not 0 <= step < len(before.ids):
        raise TranslationError(f"step: found {step}, wanted 0 to {len(before.ids) - 1}, a token of the target")
    wanted = _ids(tokenizer, token, before.ids[step])
    after = searched.best([*before.ids[:step], *wanted])
    return Forced(
        schema="forced/1",
        source=source,
        before=before,
        fork=_fork(searched, before.ids[: step + 1], wanted[0]),
        after=_outcome(after, tokenizer),
    )


def why_not(translator: Translator, source: str, text: str, *, settings: DecodingSettings | None = None) -> WhyNot:
    """Why `text` is not the translation: where it first parts from it, what both believe there, how both go on."""
    check_alone(translator)
    searched = Searched.of(translator, source, settings)
    tokenizer = translator.checkpoint.target_tokenizer
    ids = (*tokenizer.encode(text), tokenizer.specials.eos)
    check_length(translator.checkpoint, "text", ids)
    found = searched.best()
    step = _parting(found.tokens, ids)
    worth = searched.worth(ids)
    fork, continued = None, None
    # The text ends with its end mark, so that it is the longer one where the other was cut at its limit.
    if step is not None and step < len(found.tokens):
        fork = _fork(searched, found.tokens[: step + 1], ids[step])
        goes_on = searched.best_or_none(ids[: step + 1])
        continued = None if goes_on is None else _outcome(goes_on, tokenizer)
    return WhyNot(
        schema="why-not/1",
        source=source,
        text=text,
        found=_outcome(found, tokenizer),
        fork=fork,
        continued=continued,
        wanted=None if worth is None else _outcome(worth, tokenizer),
    )


def edit_source(
    translator: Translator, source: str, edited: str, *, settings: DecodingSettings | None = None
) -> Edited:
    """What another source changes in the translation, and in what is believed about the old one's tokens."""
    check_alone(translator)
    tokenizer = translator.checkpoint.target_tokenizer
    one, other = (Searched.of(translator, text, settings) for text in (source, edited))
    before, after = one.best(), other.best()
    own, moved = (_log_probs(searched, before.tokens) for searched in (one, other))
    gains = (moved - own).tolist()
    known = (moved.isfinite() & own.isfinite()).tolist()
    return Edited(
        schema="edited/1",
        source=source,
        edited=edited,
        before=_outcome(before, tokenizer),
        after=_outcome(after, tokenizer),
        step=_parting(before.tokens, after.tokens),
        moves=tuple(gain if finite else None for gain, finite in zip(gains, known, strict=True)),
    )


def _parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """How many tokens two targets share before they part; None where they are the same."""
    if tuple(one) == tuple(other):
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _sentence(searched: Searched, ids: Sequence[int]) -> Sentence:
    checkpoint = searched.translator.checkpoint
    device = next(checkpoint.model.parameters()).device
    source, labels = (torch.tensor(each, device=device) for each in (searched.source, list(ids)))
    return Sentence(source, labels, checkpoint.target_tokenizer.specials.bos)


@torch.no_grad()
def _fork(searched: Searched, ids: Sequence[int], wanted: int) -> Fork:
    """The fork at the last of `ids`, which the target took."""
    model = searched.translator.checkpoint.model
    found = read(model, _sentence(searched, ids))
    context = None if found.context is None else found.context.select(found.hidden.new_tensor([len(ids) - 1]).long())
    log_probs = model.head.next_token(found.hidden[-1:], context).log_probs().double()
    chosen, other = (_choice(searched, log_probs, id_) for id_ in (ids[-1], wanted))
    return Fork(step=len(ids) - 1, chosen=chosen, wanted=other)


def _choice(searched: Searched, log_probs: torch.Tensor, id_: int) -> Choice:
    own = log_probs[0, id_]
    return Choice(
        id=id_,
        text=searched.translator.checkpoint.target_tokenizer.tokens([id_])[0],
        p_model=float(own.exp()),
        log_p_model=float(own),
        rank=int(ranks(log_probs, torch.tensor([id_], device=log_probs.device))),
    )


@torch.no_grad()
def _log_probs(searched: Searched, ids: Sequence[int]) -> torch.Tensor:
    """[t], fp64: what the model believes of a target's tokens after the source."""
    sentence = _sentence(searched, ids)
    model = searched.translator.checkpoint.model
    found = read(model, sentence)
    return model.head.score(found.hidden, sentence.labels, found.context).double()


def _ids(tokenizer: Tokenizer, token: str | int, replaced: int) -> tuple[int, ...]:
    """The id of a token, or the ids of a text of known tokens, in the place of another token.

    Raises TranslationError where there are none.
    """
    if isinstance(token, int):
        if not 0 <= token < len(tokenizer):
            raise TranslationError(f"token: found id {token}, wanted 0 to {len(tokenizer) - 1}")
        return (token,)
    pieces = {piece: id_ for id_, piece in enumerate(tokenizer.pieces())}
    begins = replaced == tokenizer.specials.eos or tokenizer.tokens([replaced])[0].startswith(MARK)
    for piece in (MARK + token, token) if begins else (token, MARK + token):
        if piece in pieces:
            return (pieces[piece],)
    spelt = tuple(tokenizer.encode(token))
    if spelt and tokenizer.specials.unk not in spelt:
        return spelt
    close = get_close_matches(token, [piece.removeprefix(MARK) for piece in pieces], n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    raise TranslationError(f"token: found '{token}', wanted a piece of the target's vocabulary{hint}")


def _outcome(found: Hypothesis, tokenizer: Tokenizer) -> Outcome:
    return _of_text(TextHypothesis.of(found, tokenizer))


def _of_text(found: TextHypothesis) -> Outcome:
    return Outcome(
        text=found.text,
        tokens=found.tokens,
        ids=found.ids,
        token_log_probs=found.token_log_probs,
        log_prob=found.log_prob,
        score=found.score,
        finished_by=found.finished_by,
    )
