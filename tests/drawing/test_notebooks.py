"""A trace in a notebook: well-formed HTML with the trace's numbers and without external resources."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from translume.drawing import notebook
from translume.inspection.values import Token

SOURCE = "a <b> & \"you\" 'n' </div><script>"


@pytest.fixture(scope="module")
def found(make_trace):
    return make_trace(SOURCE, k=3)


def elements(trace):
    return ElementTree.fromstring(notebook(trace))


def test_repr_html_is_the_notebook_view(found):
    assert found._repr_html_() == notebook(found)


def test_tokens_are_escaped_and_nothing_is_executed_or_fetched(found):
    html = notebook(found)
    assert not re.search(r"<script|<style|src=|href=|url\(|\bon\w+=", html)
    source, target = list(elements(found))[:2]
    assert [each.text for each in source] == [token.text for token in found.source_tokens]
    assert [each.text for each in target] == [token.text for token in found.target_tokens]


def test_a_less_likely_token_has_a_stronger_background(found):
    target = list(elements(found))[1]
    shares = [float(re.search(r"rgba\(214,93,14,([\d.]+)\)", each.get("style"))[1]) for each in target]
    by_share = [step.log_p_model for _, step in sorted(zip(shares, found.steps, strict=True), key=lambda pair: pair[0])]
    assert by_share == sorted(by_share, reverse=True)
    sure = replace(found.steps[0], log_p_model=0.0)
    impossible = replace(found.steps[1], log_p_model=-float("inf"))
    spans = list(list(elements(replace(found, steps=(sure, impossible, *found.steps[2:]))))[1])
    assert "rgba(214,93,14,0.000)" in spans[0].get("style")
    assert "rgba(214,93,14,0.850)" in spans[1].get("style")


def test_tooltips_and_table_show_the_numbers_with_the_tail(found):
    root = elements(found)
    for span, step in zip(root[1], found.steps, strict=True):
        told = span.get("title").split("\n")
        assert told[0] == f"p {step.p_model:.3f}, rank {step.rank}"
        assert told[-1] == f"others {step.top_model.tail:.3f}"
    rows = list(root.iter("tr"))[1:]
    assert len(rows) == len(found.steps)
    for row, token, step in zip(rows, found.target_tokens, found.steps, strict=True):
        cells = ["".join(cell.itertext()) for cell in row]
        assert cells[0] == token.text
        assert cells[1] == f"{step.p_model:.3f}"
        assert cells[3] == str(step.rank)
        assert cells[5] == f"{step.prior.gain:+.1f}"
        listed = [f"{each.text} {each.p_model:.3f}" for each in step.top_model.candidates]
        assert cells[6] == ", ".join([*listed, f"others {step.top_model.tail:.3f}"])


def test_a_trace_without_a_prior_and_with_html_in_tokens_is_shown(make_trace):
    trace = make_trace("abc", show=())
    strange = replace(trace, source_tokens=(Token(id=0, text="\"><img src=x onerror='alert(1)'>", begin=0, end=3),))
    root = elements(strange)
    assert root[0][0].text == strange.source_tokens[0].text
    assert root.find(".//img") is None
