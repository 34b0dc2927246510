"""Forced tokens, "why not" and edited sources in a terminal."""

from dataclasses import replace

import pytest

from translume.drawing import edited_lines, forced_lines, why_not_lines
from translume.inspection import edit_source, force_token, why_not

SOURCE = "hello you"


def plain_lines(drawn):
    return [line.plain for line in drawn]


def score_line(name, outcome, wide):
    return f"  {name:{wide}}  {outcome.score:8.3f} {outcome.log_prob:9.3f}  {outcome.text}"


def test_a_forced_token_is_shown_beside_the_chosen_one(translator):
    forced = force_token(translator, SOURCE, 2, "q")
    chosen, before = forced.fork.chosen, "".join(forced.before.tokens[:2]).replace("▁", " ").strip()
    lines = plain_lines(forced_lines(forced))
    assert lines[:4] == [f"source   {SOURCE}", "forced   q, at step 2", "", f"step 2, after: {before}"]
    assert lines[4].startswith(f"  chosen  {chosen.text:14}  p {chosen.p_model:.6f}, rank {chosen.rank:<5} ")
    assert lines[5].startswith(f"  wanted  q               p {forced.fork.wanted.p_model:.6f}, rank ")
    assert lines[8:] == [score_line("before", forced.before, 6), score_line("forced", forced.after, 6)]
    assert plain_lines(forced_lines(forced, "queue"))[1] == "forced   queue, at step 2"


def test_the_best_score_is_bold(translator):
    forced = force_token(translator, SOURCE, 2, "q")
    low = replace(forced, after=replace(forced.after, score=forced.before.score - 1.0))
    high = replace(forced, after=replace(forced.after, score=forced.before.score + 1.0))
    styles = [[str(line.style) for line in forced_lines(each)][8:] for each in (low, high)]
    assert styles == [["bold", ""], ["", "bold"]]


def test_why_not_shows_both_continuations_and_the_given_text(translator):
    why = why_not(translator, SOURCE, "qx")
    lines = plain_lines(why_not_lines(why))
    assert lines[:4] == [f"source   {SOURCE}", "why not  qx", "", "step 0, at the beginning of the target"]
    assert lines[8:] == [
        score_line("found", why.found, 11),
        score_line("best with q", why.continued, 11),
        score_line("wanted", why.wanted, 11),
    ]
    forbidden = plain_lines(why_not_lines(replace(why, wanted=None)))
    assert forbidden[-1] == "  wanted       rules forbid it"


def test_without_a_fork_the_reason_is_shown(translator):
    why = why_not(translator, SOURCE, "qx")
    same = replace(why, fork=None, continued=None, wanted=why.found)
    assert plain_lines(why_not_lines(same))[2] == "         this is what the search found"
    cut = plain_lines(why_not_lines(replace(why, fork=None, continued=None)))
    assert cut[2] == "         the search's result was cut at its length limit before the two differ"
    assert [line.split()[0] for line in cut[5:]] == ["found", "wanted"]


def test_an_edited_source_shows_the_move_of_every_token_of_the_old_target(translator):
    edited = edit_source(translator, SOURCE, "hello me")
    lines = plain_lines(edited_lines(edited))
    parting = "stays the same" if edited.step is None else f"parts at step {edited.step}"
    assert lines[:3] == [f"source   {SOURCE}", "edited   hello me", f"         the translation {parting}"]
    assert lines[5:7] == [score_line("before", edited.before, 6), score_line("after", edited.after, 6)]
    rows = lines[9:]
    assert len(rows) == len(edited.before.tokens)
    for row, log_p, move in zip(rows, edited.before.token_log_probs, edited.moves, strict=True):
        assert row[20:38] == f"  {log_p:8.3f} {move:+z7.2f}"
    most = max(edited.moves, key=abs)
    assert rows[edited.moves.index(most)].count("█") == 20


@pytest.mark.parametrize(("move", "end"), [(None, "    none"), (0.001, "   +0.00"), (-3.0, "   -3.00  " + "█" * 20)])
def test_a_move_worked_by_hand(translator, move, end):
    edited = edit_source(translator, SOURCE, "hello me")
    moves = (0.004, *[0.0] * (len(edited.moves) - 2), move)
    assert plain_lines(edited_lines(replace(edited, moves=moves)))[-1].endswith(end)


def test_a_probability_below_a_ten_thousandth_is_not_shown_as_zero(translator):
    forced = force_token(translator, SOURCE, 2, "q")
    rare = replace(forced, fork=replace(forced.fork, wanted=replace(forced.fork.wanted, p_model=2.5e-9)))
    assert "  p 2.50e-09, rank " in plain_lines(forced_lines(rare))[5]


def test_a_byte_of_an_unknown_character_is_explained(translator):
    forced = force_token(translator, SOURCE, 2, "q")
    byte = replace(forced, fork=replace(forced.fork, wanted=replace(forced.fork.wanted, text="<0xE6>")))
    assert plain_lines(forced_lines(byte))[6] == "  <0xE6> is a byte of a character that the target vocabulary lacks"
