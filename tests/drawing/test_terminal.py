"""A trace in a terminal: every line shows the trace's numbers."""

from dataclasses import replace

from translume.drawing import trace_lines
from translume.drawing.terminal import column
from translume.inspection.values import Attribution


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


def test_the_heat_map_has_a_row_per_target_token_and_a_column_per_source_token(make_trace):
    found = make_trace("abc")
    shown = [line.plain for line in trace_lines(found)]
    start = next(place for place, line in enumerate(shown) if line.startswith("cross-attention, layer 2, mean of 11"))
    sources, targets = len(found.source_tokens), len(found.target_tokens)
    rows = shown[start + 1 + sources : shown.index("", start)]
    assert len(rows) == targets
    assert all(len(row) == 16 + sources for row in rows)


def test_without_attention_no_heat_map_is_drawn(make_trace):
    shown = [line.plain for line in trace_lines(make_trace("abc", show=()))]
    assert not any("cross-attention" in line for line in shown)
    assert len(shown) == 5 + len(make_trace("abc", show=()).steps)


def test_source_tokens_are_listed_by_their_effect_on_each_token_largest_first(make_trace):
    found = make_trace("abc", show=())
    columns = [token.text for token in found.source_tokens]
    assert len(columns) == 4
    row = (0.5, -2.0, 0.1, None)
    attribution = Attribution(method="occlusion", values=(row,) * len(found.steps), baseline="", error=None)
    shown = [line.plain for line in trace_lines(replace(found, attributions=(attribution,)))]
    start = shown.index("source tokens with the largest effect on each token (occlusion, nats)")
    assert shown[start + 1 :] == [
        f"{column(token.text)}  {columns[1]} -2.00, {columns[0]} +0.50" for token in found.target_tokens
    ]


def test_a_token_without_any_effect_has_an_empty_list(make_trace):
    found = make_trace("abc", show=())
    none = Attribution(method="occlusion", values=((0.0,) * 4,) * len(found.steps), baseline="", error=None)
    shown = [line.plain for line in trace_lines(replace(found, attributions=(none,)))]
    assert shown[-1] == column(found.target_tokens[-1].text).rstrip()


def test_the_effects_of_a_trace_are_shown_by_default(make_trace):
    shown = [line.plain for line in trace_lines(make_trace("abc"))]
    assert "source tokens with the largest effect on each token (occlusion, nats)" in shown


def test_wide_characters_take_two_cells_of_a_column():
    assert column("加拿大元") == "加拿大元      "
    assert column("加拿大元加拿大元") == "加拿大元加拿 …"
    assert column("a" * 14) == "a" * 14
    assert column("a" * 15) == "a" * 13 + "…"
