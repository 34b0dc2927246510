"""Answers to "what if?" for a terminal: where two targets part, what was believed there, and what both come to."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from translume.drawing.terminal import BAR, NARROW, cut
from translume.inspection import Edited, Forced, WhyNot
from translume.inspection.what_if import Choice, Fork, Outcome
from translume.text.tokenizer import MARK

STILL = 0.005
"""Nats: what moves less is shown as 0.00 and has no bar."""


def forced_lines(forced: Forced, said: str | None = None) -> Iterator[Text]:
    """The target with other words at a step, beside the one as it was. said: these words, where they are known."""
    yield Text(f"source   {forced.source}")
    yield Text(f"forced   {forced.fork.wanted.text if said is None else said}, at step {forced.fork.step}")
    yield from _fork(forced.fork, forced.before.tokens)
    yield from _outcomes([("as it was", forced.before), ("forced", forced.after)])


def why_not_lines(why: WhyNot) -> Iterator[Text]:
    """A wanted text beside the target that was found, and beside the best one that takes its turning."""
    yield Text(f"source   {why.source}")
    yield Text(f"why not  {why.text}")
    if why.fork is not None:
        yield from _fork(why.fork, why.found.tokens)
    elif why.wanted is not None and why.wanted.ids == why.found.ids:
        yield Text("         it is what the search found")
    else:
        yield Text("         the target that was found was cut at its limit before it could part from it")
    shown = [("found", why.found), ("wanted", why.wanted)]
    if why.fork is not None:
        shown.insert(1, (f"best with {why.fork.wanted.text}", why.continued))
    yield from _outcomes(shown)


def edited_lines(edited: Edited) -> Iterator[Text]:
    """Both translations, and what the edited source does to the belief in each token of the first."""
    yield Text(f"source   {edited.source}")
    yield Text(f"edited   {edited.edited}")
    parting = "stays the same" if edited.step is None else f"parts at step {edited.step}"
    yield Text(f"         the translation {parting}")
    yield from _outcomes([("before", edited.before), ("after", edited.after)])
    yield Text("")
    yield Text(f"step  {'token before':{NARROW}}  {'log p':>8} {'moved':>7}  (nats)", style="bold")
    most = max((abs(each) for each in edited.moves if each is not None), default=0.0)
    own = zip(edited.before.tokens, edited.before.token_log_probs, edited.moves, strict=True)
    for place, (token, log_p, move) in enumerate(own):
        line = Text(f"{place:4}  {cut(token):{NARROW}}  {log_p:8.3f} ")
        if move is None:
            yield line.append("   none")
            continue
        style = "" if abs(move) < STILL else "green" if move > 0 else "red"
        bar = "█" * round(BAR * abs(move) / most) if style else ""
        yield line.append(f"{move:+z7.2f}  {bar}".rstrip(), style=style)


def _fork(fork: Fork, tokens: Sequence[str]) -> Iterator[Text]:
    """What was believed of either token where two targets part, after the tokens they share."""
    shared = "".join(tokens[: fork.step]).replace(MARK, " ").strip()
    yield Text("")
    yield Text(f"step {fork.step}, after: {shared}" if fork.step else f"step {fork.step}, where the target begins")
    yield _choice("chosen", fork.chosen)
    yield _choice("wanted", fork.wanted)


def _choice(what: str, choice: Choice) -> Text:
    line = Text(f"  {what:6}  {cut(choice.text):{NARROW}}  p {choice.p_model:.6f}, rank {choice.rank:<5} ")
    return line.append("█" * round(BAR * choice.p_model), style="blue")


def _outcomes(shown: Sequence[tuple[str, Outcome | None]]) -> Iterator[Text]:
    """Whole targets with their prices; the best score is bold."""
    wide = max(len(name) for name, _ in shown)
    best = max(each.score for _, each in shown if each is not None)
    yield Text("")
    yield Text(f"{'':{wide + 2}}  {'score':>8} {'log p':>9}", style="bold")
    for name, each in shown:
        if each is None:
            yield Text(f"  {name:{wide}}  rules forbid it")
            continue
        style = "bold" if each.score == best else ""
        yield Text(f"  {name:{wide}}  {each.score:8.3f} {each.log_prob:9.3f}  {each.text}", style=style)
