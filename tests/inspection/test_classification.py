"""A classifier's trace: class probabilities equal the classifier's, attributions equal one-by-one references."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.errors import raises
from torch.nn import functional

import translume
from translume.errors import TranslumeError
from translume.inspection.classification import PARTS
from translume.model.classifier import Pooling

from .conftest import CLASSES, build_text_classifier
from .test_schema import problems

TEXT = "the cat sat."
WAYS = ("mean", "max", "first", "attention")
PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "trace.schema.json"
EVIDENCE = PARTS[1:]


@pytest.fixture(params=[(way, several) for way in (*WAYS, "ngrams") for several in (False, True)], ids=str)
def classifier(request):
    way, several = request.param
    return build_text_classifier(way, several=several)


def ids_of(classifier, text=TEXT):
    tokenizer = classifier.checkpoint.source_tokenizer
    return [*tokenizer.encode(text), tokenizer.specials.eos]


def log_p(classifier, ids):
    """Log-probabilities [C] of one text."""
    source = torch.tensor([ids])
    with torch.no_grad():
        found = classifier.checkpoint.model.belief(source, torch.ones_like(source, dtype=torch.bool))
    return found.log_probs()[0].double()


def evidence_of(trace, method):
    (found,) = (each for each in trace.evidence if each.method == method)
    return torch.tensor(found.values, dtype=torch.float64)


def order_of(classifier, trace):
    return [classifier.labels.names.index(each.label) for each in trace.classes]


def test_classes_equal_those_of_classify_and_of_the_loss(classifier):
    trace = translume.trace_classification(classifier, TEXT, show=())
    answer = classifier.classify(TEXT)
    assert sorted(trace.labels) == sorted(answer.labels)
    found = [(each.label, each.p) for each in trace.classes]
    assert [name for name, _ in found] == [name for name, _ in answer.probabilities]
    assert [p for _, p in found] == pytest.approx([p for _, p in answer.probabilities], abs=1e-6)
    assert [each.p for each in trace.classes] == pytest.approx([math.exp(each.log_p) for each in trace.classes])
    source = torch.tensor([ids_of(classifier)])
    mask = torch.ones_like(source, dtype=torch.bool)
    several = classifier.labels.several
    for each in trace.classes:
        own = classifier.labels.names.index(each.label)
        label = torch.tensor([[own]])
        if several:
            label = functional.one_hot(label, len(CLASSES))
        loss = classifier.checkpoint.model.loss(source, mask, source, label, mask)
        no = sum(math.log1p(-other.p) for other in trace.classes if other.label != each.label) if several else 0.0
        assert -float(loss.nll) == pytest.approx(each.log_p + no, rel=1e-5, abs=1e-5)


def test_probabilities_margin_and_entropy_of_single_and_multi_label_classifiers(classifier):
    trace = translume.trace_classification(classifier, TEXT, show=())
    chances = [each.p for each in trace.classes]
    assert chances == sorted(chances, reverse=True)
    if classifier.labels.several:
        assert [each.given for each in trace.classes] == [p > 0.5 for p in chances]
        assert trace.margin == min(abs(p - 0.5) for p in chances)
        assert trace.entropy == pytest.approx(-sum(p * math.log(p) + (1 - p) * math.log(1 - p) for p in chances))
    else:
        assert sum(chances) == pytest.approx(1.0, abs=1e-6)
        assert [each.given for each in trace.classes] == [True, False, False, False, False]
        assert trace.margin == chances[0] - chances[1]
        assert trace.entropy == pytest.approx(-sum(p * math.log(p) for p in chances))


@pytest.mark.parametrize("method", ["occlusion", "occlusion-mask", "occlusion-unknown"])
def test_occlusion_equals_leaving_out_each_token_in_turn(classifier, method):
    trace = translume.trace_classification(classifier, TEXT, k=2, show=(method,))
    ids, model = ids_of(classifier), classifier.checkpoint.model
    whole, columns = log_p(classifier, ids), []
    for place in range(len(ids)):
        if method == "occlusion":
            without = log_p(classifier, [*ids[:place], *ids[place + 1 :]])
        elif method == "occlusion-unknown":
            unknown = classifier.checkpoint.source_tokenizer.specials.unk
            without = log_p(classifier, [*ids[:place], unknown, *ids[place + 1 :]])
        else:
            source = torch.tensor([ids])
            memory = model.encoder(source, torch.ones_like(source, dtype=torch.bool))
            mask = torch.tensor([[each != place for each in range(len(ids))]])
            without = model.head.next_token(model.pooling(memory, mask), None).log_probs()[0].double().detach()
        columns.append((whole - without)[order_of(classifier, trace)[:2]])
    torch.testing.assert_close(evidence_of(trace, method), torch.stack(columns, 1), rtol=1e-4, atol=2e-5)


def test_input_times_gradient_is_the_derivative_along_each_tokens_vector(classifier):
    trace = translume.trace_classification(classifier, TEXT, k=3, show=("input-gradient",))
    found, model = evidence_of(trace, "input-gradient"), classifier.checkpoint.model
    vectors = []
    handle = model.encoder.embedding.table.register_forward_hook(
        lambda _, inputs, output: vectors.append(output) or output.requires_grad_()
    )
    source = torch.tensor([ids_of(classifier)])
    belief = model.belief(source, torch.ones_like(source, dtype=torch.bool)).log_probs()[0]
    handle.remove()
    for row, class_ in enumerate(order_of(classifier, trace)[:3]):
        (slope,) = torch.autograd.grad(belief[class_], vectors[0], retain_graph=True)
        expected = (slope * vectors[0]).sum(-1).detach().double().flatten()
        torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-5)


def test_integrated_gradients_sum_to_the_difference_from_the_baseline(classifier):
    pytest.importorskip("captum")
    trace = translume.trace_classification(classifier, TEXT, k=5, show=("integrated-gradients",))
    model, source = classifier.checkpoint.model, torch.tensor([ids_of(classifier)])
    handle = model.encoder.embedding.table.register_forward_hook(lambda _, inputs, output: torch.zeros_like(output))
    with torch.no_grad():
        blank = model.belief(source, torch.ones_like(source, dtype=torch.bool)).log_probs()[0].double()
    handle.remove()
    order = order_of(classifier, trace)
    gaps = (
        evidence_of(trace, "integrated-gradients").sum(1) - (log_p(classifier, source[0].tolist()) - blank)[order]
    ).abs()
    assert float(gaps.max()) == pytest.approx(trace.evidence[0].error, abs=1e-4)
    smooth = classifier.config.model.head.pooling not in (
        "max",
        "ngrams",
    )  # a maximum is not smooth, so 32 points give a larger error
    assert float(gaps.max()) < (0.03 if smooth else 0.5) * float(
        (log_p(classifier, source[0].tolist()) - blank).abs().max()
    )


@pytest.mark.parametrize("way", WAYS)
def test_pooling_weights_give_each_states_contribution(way):
    torch.manual_seed(5)
    memory, mask = torch.randn(3, 7, 11), torch.arange(7) < torch.tensor([[7], [4], [0]])
    pooling = Pooling(way, 11)
    if pooling.query is not None:
        pooling.query.data.normal_()
    weights = pooling.weights(memory, mask)
    torch.testing.assert_close(weights.sum(1), torch.tensor([1.0, 1.0, 0.0]))
    assert not bool(weights[~mask].any())
    if way == "max":
        for row, length in enumerate((7, 4)):
            best = memory[row, :length].argmax(0)
            expected = torch.bincount(best, minlength=7).float() / 11
            torch.testing.assert_close(weights[row], expected)
    else:
        torch.testing.assert_close((weights[..., None] * memory).sum(1), pooling(memory, mask))


def test_pooling_is_in_the_trace(classifier):
    trace = translume.trace_classification(classifier, TEXT, show=("pooling",))
    assert len(trace.pooling) == len(trace.source_tokens)
    assert sum(trace.pooling) == pytest.approx(1.0, abs=1e-5)
    source = torch.tensor([ids_of(classifier)])
    mask = torch.ones_like(source, dtype=torch.bool)
    memory = classifier.checkpoint.model.encoder(source, mask).detach()
    if classifier.config.model.head.pooling not in ("max", "ngrams"):
        pooled = (torch.tensor(trace.pooling)[:, None] * memory[0]).sum(0)
        torch.testing.assert_close(
            pooled, classifier.checkpoint.model.pooled(source, mask)[0].detach(), rtol=1e-4, atol=1e-5
        )


def test_no_number_depends_on_the_number_of_classes_shown():
    few, many = (translume.trace_classification(build_text_classifier(), TEXT, k=k, show=EVIDENCE) for k in (1, 50))
    assert (few.classes, few.margin, few.entropy) == (many.classes, many.margin, many.entropy)
    for one, other in zip(few.evidence, many.evidence, strict=True):
        assert (len(one.values), len(other.values)) == (1, len(CLASSES))
        assert one.values[0] == pytest.approx(other.values[0], abs=2e-5)


def test_leaving_out_many_tokens_in_chunks_gives_the_same_result(monkeypatch):
    from translume.inspection import attribution

    show = ("occlusion", "occlusion-mask", "occlusion-unknown")
    whole = translume.trace_classification(build_text_classifier(), TEXT, show=show).evidence
    monkeypatch.setattr(attribution, "MAX_NUMBERS", 29)
    parts = translume.trace_classification(build_text_classifier(), TEXT, show=show).evidence
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(torch.tensor(one.values), torch.tensor(other.values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep", ["keep_first", "keep_last"])
def test_a_truncated_text_is_read_as_classify_reads_it(keep):
    classifier = build_text_classifier(options=(f"data.cleaning.too_long={keep}",))
    text = "a long text that is cut somewhere"
    trace = translume.trace_classification(classifier, text)
    answer = classifier.classify(text)
    assert trace.warnings == answer.warnings
    assert len(trace.warnings) == 1
    assert [each.p for each in trace.classes] == pytest.approx([p for _, p in answer.probabilities], abs=1e-6)
    kept = trace.source[trace.source_tokens[0].begin : trace.source_tokens[-2].end]
    assert kept == (text[:18] if keep == "keep_first" else text[-18:])
    assert len(trace.source_tokens) == 19


def test_a_trace_follows_the_published_schema_and_can_be_read_back(classifier):
    trace = translume.trace_classification(
        classifier, "The <b> cat & co.", show=("pooling", "occlusion", "input-gradient")
    )
    content = json.loads(json.dumps(trace.to_dict(), allow_nan=False))
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert problems(content, schema, schema["$defs"]) == []
    assert translume.ClassTrace.from_dict(content) == trace


def test_tokens_are_shown_as_written_including_unknown_ones():
    trace = translume.trace_classification(build_text_classifier(), "an 早 owl", show=())
    assert "<unk>" in [token.text for token in trace.source_tokens]
    shown = [trace.shown(token) for token in trace.source_tokens]
    assert "早" in shown
    assert shown[-1] == "</s>"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "text: found a blank text, expected a text to classify"),
        (" \t", {}, "text: found a blank text, expected a text to classify"),
        ("a" * 40, {}, "text: the text has 40 tokens, expected at most 18; "
         'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it'),
        (TEXT, {"k": 0}, "k: found 0, expected at least 1"),
        (TEXT, {"show": ("oclusion",)}, "show: found 'oclusion'; did you mean 'occlusion'?"),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_in_one_line(text, options, message):
    with raises(TranslumeError, message):
        translume.trace_classification(build_text_classifier(), text, **options)


@pytest.mark.parametrize("normalization", ["layer", "rms"])
def test_gradients_are_of_normalised_vectors_where_the_norm_stands_on_the_embeddings(normalization):
    # As in recipes/trec6.toml.
    classifier = build_text_classifier("ngrams", encoder_layers=0, positions="none", normalization=normalization)
    model = classifier.checkpoint.model
    trace = translume.trace_classification(classifier, TEXT, k=2, show=("input-gradient",))
    found = evidence_of(trace, "input-gradient")
    assert found.abs().max() > 0.01

    source = torch.tensor(ids_of(classifier))
    with torch.no_grad():
        vectors = model.encoder.norm(model.encoder.embedding.table(source) * model.encoder.embedding.scale)
        zero = model.encoder.norm(torch.zeros_like(vectors))
    mask = torch.ones_like(source[None], dtype=torch.bool)
    first = order_of(classifier, trace)[0]

    def score(shares: torch.Tensor) -> torch.Tensor:
        """log p of the likeliest class, with each token's normalised vector moved towards that of no token."""
        moved = zero + shares[:, None] * (vectors - zero)
        return model.head.score(model.pooling(moved[None], mask), torch.tensor([first]), None)[0]

    shares = torch.ones(len(source), requires_grad=True)
    (slopes,) = torch.autograd.grad(score(shares), shares)
    torch.testing.assert_close(found[0], slopes.double(), atol=2e-5, rtol=1e-3)
