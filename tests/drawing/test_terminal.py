"""A trace in a terminal: every line shows the trace's numbers."""

from translume.drawing import trace_lines


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
    rows = shown[start + 1 + sources :]
    assert len(rows) == targets
    assert all(len(row) == 16 + sources for row in rows)


def test_without_attention_no_heat_map_is_drawn(make_trace):
    shown = [line.plain for line in trace_lines(make_trace("abc", show=()))]
    assert not any("cross-attention" in line for line in shown)
    assert len(shown) == 5 + len(make_trace("abc", show=()).steps)
