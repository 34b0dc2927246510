"""Inspection results in a terminal: every line shows their numbers."""

from dataclasses import replace

import pytest

from translume.inspection import edit_source, force_token, trace_classification, why_not
from translume.inspection.terminal import (
    class_lines,
    column,
    corpus_lines,
    edited_lines,
    forced_lines,
    trace_lines,
    why_not_lines,
)
from translume.inspection.values import Attribution

from .conftest import build_text_classifier

SOURCE = "hello you"


def test_every_step_is_a_line_with_its_numbers(make_trace, make_beam):
    found, beam = make_trace("hello you", k=3), make_beam("hello you")
    shown = [line.plain for line in trace_lines(found, beam=beam)]
    assert shown[0] == f"source  {found.source}"
    assert shown[2] == f"log p   {found.log_p:.3f} nats, finished by {found.finished_by}"
    for place, (token, step, line) in enumerate(zip(found.target_tokens, found.steps, shown[5:], strict=False)):
        assert line.startswith(f"{place:4}  {token.text:14}  {step.p_model:6.3f} {step.rank:5d} {step.entropy:5.2f} ")
        assert f"others {step.top_model.tail:.3f}" in line
        for candidate in step.top_model.candidates:
            assert f"{candidate.text} {candidate.p_model:.3f}" in line
    assert any(line.startswith(f"search: beam, width 3; {len(beam.nodes)} hypotheses") for line in shown)


EFFECTS = "source tokens with the largest effect on each token (occlusion, nats)"


def test_the_heat_map_has_a_row_per_target_token_and_a_column_per_source_token(make_trace):
    found = make_trace("abc")
    shown = [line.plain for line in trace_lines(found)]
    start = next(place for place, line in enumerate(shown) if line.startswith("cross-attention, layer 2, mean of 11"))
    sources, targets = len(found.source_tokens), len(found.target_tokens)
    rows = shown[start + 1 + sources : shown.index("", start)]
    assert len(rows) == targets
    assert all(len(row) == 16 + sources for row in rows)
    assert EFFECTS in shown  # by default
    bare = make_trace("abc", show=())
    shown = [line.plain for line in trace_lines(bare)]
    assert not any("cross-attention" in line for line in shown)
    assert len(shown) == 5 + len(bare.steps)


def test_source_tokens_are_listed_by_their_effect_on_each_token_largest_first(make_trace):
    found = make_trace("abc", show=())
    columns = [token.text for token in found.source_tokens]
    assert len(columns) == 4
    row = (0.5, -2.0, 0.1, None)
    attribution = Attribution(method="occlusion", values=(row,) * len(found.steps), baseline="", error=None)
    shown = [line.plain for line in trace_lines(replace(found, attributions=(attribution,)))]
    start = shown.index(EFFECTS)
    assert shown[start + 1 :] == [
        f"{column(token.text)}  {columns[1]} -2.00, {columns[0]} +0.50" for token in found.target_tokens
    ]
    none = replace(attribution, values=((0.0,) * 4,) * len(found.steps))
    shown = [line.plain for line in trace_lines(replace(found, attributions=(none,)))]
    assert shown[-1] == column(found.target_tokens[-1].text).rstrip()


def test_wide_characters_take_two_cells_of_a_column():
    assert column("加拿大元") == "加拿大元      "
    assert column("加拿大元加拿大元") == "加拿大元加拿 …"
    assert column("a" * 14) == "a" * 14
    assert column("a" * 15) == "a" * 13 + "…"


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
    parting = "stays the same" if edited.step is None else f"changes at step {edited.step}"
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


def test_rare_tokens_and_bytes_of_unknown_characters_are_explained(translator):
    forced = force_token(translator, SOURCE, 2, "q")
    wanted = replace(forced.fork.wanted, p_model=2.5e-9, text="<0xE6>")
    lines = plain_lines(forced_lines(replace(forced, fork=replace(forced.fork, wanted=wanted))))
    assert "  p 2.50e-09, rank " in lines[5]
    assert lines[6] == "  <0xE6> is a byte of a character that the target vocabulary lacks"


def test_the_terminal_shows_classes_with_others_and_a_line_of_evidence_per_token(class_trace):
    found = class_trace
    shown = [line.plain for line in class_lines(found)]
    assert shown[0] == f"text    {found.source}"
    assert shown[1] == f"class   {found.classes[0].label}; margin {found.margin:.3f}, entropy {found.entropy:.2f} nats"
    for each, line in zip(found.classes[:3], shown[3:6], strict=True):
        assert line.split()[:2] == [each.label, f"{each.p:.3f}"]
    assert shown[6].startswith("2 others")
    assert f"{sum(each.p for each in found.classes[3:]):.3f}" in shown[6]
    assert shown[9].split() == ["occlusion", "input-gradient", "pooling"]
    names = [each.label for each in found.classes[:3]]
    assert shown[10].split() == ["token", *names, *names, "attention"]
    rows = shown[11:]
    assert len(rows) == len(found.source_tokens)
    for place, (token, line) in enumerate(zip(found.source_tokens, rows, strict=True)):
        numbers = [f"{row[place]:+z.2f}" for each in found.evidence for row in each.values]
        assert line.split()[-7:] == [*numbers, f"{found.pooling[place]:.3f}"]
        assert line.startswith(found.shown(token))


def test_the_terminal_reports_several_classes_truncation_and_missing_evidence():
    trace = trace_classification(build_text_classifier(several=True), "an owl", k=1, show=("occlusion",))
    shown = [line.plain for line in class_lines(replace(trace, warnings=("truncated: …",)))]
    assert shown[1].startswith(f"class   {', '.join(trace.labels) or 'none'}; margin ")
    assert shown[2].strip() == "truncated: …"
    assert f"4 others, each at most {trace.classes[1].p:.3f}" in shown
    none = tuple(replace(each, given=False) for each in trace.classes)
    bare = replace(trace, evidence=(), pooling=None, classes=none)
    shown = [line.plain for line in class_lines(bare)]
    assert shown[1].startswith("class   none; ")
    assert not any("evidence of each token" in line for line in shown)


def test_the_terminal_shows_the_numbers_of_the_lens(lens):
    shown = [line.plain for line in corpus_lines(lens)]
    assert shown[0] == f"{lens.pairs} pairs, {lens.tokens} target tokens, {lens.nll:.3f} nats per token"
    assert shown[1] == f"1 pairs left out as longer than the model reads, the first at line {lens.pairs + 1}"
    (overall,) = (line for line in shown if line.strip().startswith("all "))
    assert overall.split()[-4:] == [
        f"{lens.reliability.count:,}", f"{lens.reliability.confidence:.3f}", f"{lens.reliability.accuracy:.3f}",
        f"{lens.reliability.ece:.3f}",
    ]  # fmt: skip
    (end,) = (line for line in shown if line.strip().startswith("EOS"))
    assert end.split()[-1] == f"{lens.end.ece:.3f}"
    for each in lens.reliability.bins:
        if each.count:
            assert any(f" {each.count:,d}  {each.confidence:.3f}  {each.accuracy:.3f}" in line for line in shown)
    for view in lens.places:
        assert any(line.split()[:4] == [str(view.place), str(view.tokens), f"{view.nll:.3f}", f"{view.entropy:.3f}"]
                   for line in shown)  # fmt: skip
    for pair in (*lens.suspects, *lens.hardest):
        assert any(line.startswith(f"  line {pair.line}: gain {pair.gain:+6.2f}") for line in shown)
        assert f"    {pair.source}\n    {pair.target}" in shown
    assert any(f"{lens.never_types:,} of {lens.types:,} tokens, {lens.never_tokens:,} occurrences" in x for x in shown)
    assert sum(line.startswith("  line ") and "by the other model" in line for line in shown) == len(
        lens.comparison.partings
    )
    for gap in lens.comparison.gaps:
        assert any(line.startswith(f"  line {gap.line}: log p {gap.log_p:.2f}, other {gap.other_log_p:.2f}")
                   for line in shown)  # fmt: skip


def test_the_length_of_a_reliability_bar_is_the_accuracy(lens):
    drawn = [line.plain for line in corpus_lines(lens) if "│" in line.plain and line.plain.startswith("  0.")]
    bins = [each for each in lens.reliability.bins if each.count]
    assert len(drawn) == len(bins)
    for line, each in zip(drawn, bins, strict=True):
        cells = line[13 : 13 + 40]
        assert cells.index("│") == min(39, round(40 * each.confidence))
        assert abs(cells.count("█") - round(40 * each.accuracy)) <= 1
