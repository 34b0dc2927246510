"""Views of a classification trace: terminal, page, notebook and figure show its numbers."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import translume
from translume.checkpoint import ClassifierCheckpoint
from translume.checkpoint.building import build_classifier
from translume.config import ClassifySettings, Config, ModelSettings, TokenizerSettings
from translume.drawing import class_lines, class_notebook, class_page, plot_evidence
from translume.errors import SettingsError
from translume.text import Labels, train_tokenizer
from translume.translator import Classifier

TEXT = 'the <b> 早 owl & </script> "hen"'
NAMES = ("animal", "colour", "fruit", "sound", "tool")


@pytest.fixture(scope="module")
def make():
    def build(several=False):
        tokenizer = train_tokenizer(
            TokenizerSettings(kind="character", size=61, unknown="token"), ['abcdefghi owl<>/&"']
        )
        head = ClassifySettings(pooling="attention", labels="several" if several else "one")
        settings = ModelSettings(
            width=22, feed_forward=29, encoder_layers=1, attention_heads=11, max_positions=41, head=head
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            network = build_classifier(settings, len(tokenizer), len(NAMES)).eval()
            for parameter in network.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
        task = ("data.task=classification", "data.label_separator=+", "training.label_smoothing=0.0")
        labels = Labels(NAMES, "+" if several else "")
        return Classifier(
            ClassifierCheckpoint(
                config=Config(model=settings).change(*task), model=network, source_tokenizer=tokenizer, labels=labels
            )
        )

    return build


@pytest.fixture(scope="module")
def found(make):
    return translume.trace_classification(make(), TEXT)


def test_the_terminal_shows_classes_with_others_and_a_line_of_evidence_per_token(found):
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


def test_the_terminal_reports_several_classes_truncation_and_missing_evidence(make):
    trace = translume.trace_classification(make(several=True), "an owl", k=1, show=("occlusion",))
    shown = [line.plain for line in class_lines(replace(trace, warnings=("truncated: …",)))]
    assert shown[1].startswith(f"class   {', '.join(trace.labels) or 'none'}; margin ")
    assert shown[2].strip() == "truncated: …"
    assert f"4 others, each at most {trace.classes[1].p:.3f}" in shown
    none = tuple(replace(each, given=False) for each in trace.classes)
    bare = replace(trace, evidence=(), pooling=None, classes=none)
    shown = [line.plain for line in class_lines(bare)]
    assert shown[1].startswith("class   none; ")
    assert not any("evidence of each token" in line for line in shown)


def test_a_page_holds_the_whole_trace_and_needs_no_network(found):
    html = class_page(found)
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(|XMLHttp", html)
    assert html.count("</script>") == 2
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert translume.ClassTrace.from_dict(json.loads(text)["trace"]) == found


def test_a_figure_shows_the_evidence_for_each_class(found):
    for method in (None, "input-gradient"):
        figure = found.plot_evidence(method)
        values = next(each.values for each in found.evidence if each.method == (method or "occlusion"))
        np.testing.assert_allclose(figure.axes[0].images[0].get_array(), np.array(values))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == [f"{each.label} {each.p:.3f}" for each in found.classes[:3]]
    with pytest.raises(SettingsError) as error:
        plot_evidence(found, "oclusion")
    assert str(error.value) == "method: found 'oclusion'; did you mean 'occlusion'?"
    with pytest.raises(SettingsError) as error:
        plot_evidence(replace(found, evidence=()))
    assert str(error.value) == (
        "evidence: not in the trace; request it with trace_classification(…, show=('occlusion',))"
    )


def test_a_notebook_shows_the_unchanged_text_and_the_classes(found):
    html = found._repr_html_()
    assert html == class_notebook(found)
    root = ElementTree.fromstring(html)
    assert [each.text for each in root[0]] == [found.shown(token) for token in found.source_tokens]
    told = "".join(root[1].itertext())
    assert told.startswith(found.classes[0].label)
    assert all(f"{each.label} {each.p:.3f}" in told for each in found.classes)
    strongest = max(range(len(found.source_tokens)), key=lambda place: abs(found.evidence[0].values[0][place]))
    assert ",0.750)" in root[0][strongest].get("style")
    assert class_notebook(replace(found, evidence=())).count(",0.000)") == len(found.source_tokens)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_works_by_mouse_and_keyboard_at_any_width(open_page, found, width, scheme):
    tab = open_page(class_page(found), width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    shown = tab.locator("#source .token").all_inner_texts()
    assert shown == [found.shown(token) for token in found.source_tokens]
    bars = tab.locator("#bars .bar")
    assert sum(float(each.get_attribute("data-p")) for each in bars.all()) == pytest.approx(1.0, abs=1e-6)
    assert bars.last.locator(".name").inner_text() == "2 others"

    def column_texts(column):
        return [cell.inner_text() for cell in tab.locator(f"#evidence tbody td:nth-child({column})").all()]

    def told(values):
        return ["0.00" if abs(each) < 0.005 else f"{each:+.2f}".replace("-", "−") for each in values]

    assert column_texts(2) == told(found.evidence[0].values[0])
    tab.click("#bars [data-class='1']")
    assert column_texts(2) == told(found.evidence[0].values[1])
    tab.keyboard.press("ArrowDown")
    assert tab.get_attribute("#bars [data-class='2']", "aria-selected") == "true"
    assert column_texts(3) == told(found.evidence[1].values[2])
    assert column_texts(4) == [f"{each:.3f}" for each in found.pooling]
    tab.select_option("#shade", "pooling")
    tab.select_option("#shade", "none")
