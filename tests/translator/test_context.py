"""A sentence is translated after those before it in its document, and their translations."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume.config import DataSettings
from translume.config.data import CleaningSettings, ContextSettings
from translume.errors import SettingsError, TranslationError
from translume.translator import Translator
from translume.translator.context import Context

Make = Callable[..., Translator]
SENTENCE = st.text("abcd", min_size=1, max_size=6)
DOCUMENTS = st.lists(st.lists(SENTENCE, min_size=1, max_size=4), min_size=1, max_size=3)


def in_context(translator: Translator, source: int, target: int, **data: object) -> Translator:
    """Return the translator as if trained with context."""
    found = ContextSettings(source=source, target=target)
    settings = DataSettings(source_language="en", target_language="de", documents="blank_line", context=found, **data)
    config = translator.config.model_copy(update={"data": settings})
    return Translator(replace(translator.checkpoint, config=config))


@pytest.fixture(scope="module")
def reading(make: Make) -> Callable[..., Translator]:
    """Return translators by the context that they read; one that has the kernels."""
    plain = make(
        "decoding.beam=2",
        "decoding.letterless=translate",
        "decoding.max_length=7",
        "decoding.min_length=2",
        max_positions=61,
    )
    return lambda source, target, **data: in_context(plain, source, target, **data)


def by_hand(translator: Translator, document: list[str]) -> list[str]:
    """Translate the sentences of a document with a model of the same weights that has no context, given the prompts.

    Checks the log-probabilities of the hypotheses by forced decoding.
    """
    checkpoint, settings = translator.checkpoint, translator.config.data.context
    reads, writes = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    texts: list[str] = []
    found = list(translator.translate_all(document))
    for place, (source, each) in enumerate(zip(document, found, strict=True)):
        begin = [max(0, place - count) for count in (settings.source, settings.target)]
        ids = [
            id_ for text in [*document[begin[0] : place], source] for id_ in [*reads.encode(text), reads.specials.eos]
        ]
        given_ids = [id_ for text in texts[begin[1] : place] for id_ in [*writes.encode(text), writes.specials.eos]]
        for hypothesis in each.hypotheses:
            labels = torch.tensor([[*given_ids, *hypothesis.ids]])
            target = torch.tensor([[writes.specials.bos, *labels[0, :-1].tolist()]])
            encoded = torch.tensor([ids])
            scores = checkpoint.model.score(
                encoded, torch.ones_like(encoded, dtype=torch.bool), target, labels, labels >= 0
            )
            own = scores[0, len(given_ids) :]
            assert hypothesis.log_prob == pytest.approx(float(own.sum()), abs=1e-4)
            assert hypothesis.token_log_probs == pytest.approx(own.tolist(), abs=1e-4)
            assert hypothesis.text == writes.decode(hypothesis.ids)
        texts.append(each.text)
    return texts


@pytest.mark.parametrize("compiled", [False, True])
@given(documents=DOCUMENTS, source=st.integers(0, 2), target=st.integers(0, 2))
def test_lines_are_translated_after_those_before_them(reading, documents, source, target, compiled) -> None:
    translator = reading(source or int(not target), target)
    translator = translator.compile() if compiled else translator
    lines = [line for document in documents for line in (*document, "")]
    found = list(translator.translate_all(lines))
    assert [each.source for each in found] == lines
    assert [each.text for each in found] == [
        text for document in documents for text in (*by_hand(translator, document), "")
    ], "documents are translated side by side as one after another"


def test_the_first_line_of_a_document_has_no_context(reading, make: Make) -> None:
    texts = ["abc", "d", "", "bca"]
    alone = [each.text for each in in_context(reading(1, 1), 0, 0).translate_all(texts)]
    found = [each.text for each in reading(2, 2).translate_all(texts)]
    assert (found[0], found[3]) == (alone[0], alone[3])
    assert found[1] != alone[1]
    assert [str(reading(2, 2).translate(text)) for text in texts] == alone


def test_documents_may_be_named(reading) -> None:
    translator, texts = reading(1, 1), ["abc", "d", "bca", "abd"]
    found = list(translator.translate_all(texts, documents=["x", "x", "y", "y"]))
    wanted = list(translator.translate_all(["abc", "d", "", "bca", "abd"]))
    assert [each.text for each in found] == [each.text for each in wanted if each.source]


def test_a_learned_utility_rates_the_sentences_themselves(reading, monkeypatch) -> None:
    from translume.translator import ranking

    class Short:
        reads_sources, reads_references = True, False

        def rate(self, rows):
            rated.append({source for source, _, _ in rows})
            return [-float(len(text)) for _, text, _ in rows]

    rated: list[set[str]] = []
    monkeypatch.setattr(ranking, "utility_metric", lambda decoding, evaluation: Short())
    translator = reading(1, 1)
    found = list(translator.translate_all(["abc", "d", "bca"], utility="chrf", nbest=2, beam=2))
    assert rated == [{"abc"}, {"d"}, {"bca"}]
    for before, each in itertools.pairwise(found):
        again = translator.translate(
            each.source, before=[(before.source, before.text)], utility="chrf", nbest=2, beam=2
        )
        assert again.hypotheses == each.hypotheses, "the target that was chosen is the context"


def test_an_error_on_a_device_names_its_line_after_a_line_with_constraints(reading, monkeypatch) -> None:
    from translume.decoding import SearchError
    from translume.translator import search
    from translume.translator.device_searcher import DeviceSearcher

    plain, together = reading(1, 1), search.search_together
    translator = Translator(plain.checkpoint, DeviceSearcher(plain.checkpoint.model))

    def failing(checkpoint, pieces, groups, *others):
        if 3 in groups[0]:
            raise SearchError("broken", sentence=3, token=1)
        return together(checkpoint, pieces, groups, *others)

    monkeypatch.setattr(search, "search_together", failing)
    found = translator.translate_all(
        ["abc", "d", "bca", "abd"], documents=["x", "x", "y", "y"], constraints=[["c"], [], [], []]
    )
    with pytest.raises(TranslationError) as caught:
        list(found)
    assert str(caught.value) == "line 4: token 1: broken"


def test_evaluations_are_of_documents(reading) -> None:
    from translume.evaluation import evaluate
    from translume.inspection import compare_on_corpus

    translator, texts = reading(1, 1), ["abc", "d", "bca", "abd"]
    names = ["x", "x", "y", "y"]
    found = evaluate(translator, texts, texts, documents=names)
    assert list(found.translations) == [each.text for each in translator.translate_all(texts, documents=names)]
    alone = in_context(translator, 0, 0)
    compared = compare_on_corpus(translator, alone, list(zip(texts, texts, strict=True)))
    assert compared.same == compared.pairs, "inspect reads each sentence without context"


def test_the_sentences_of_a_line_are_context_of_each_other(reading) -> None:
    translator = reading(1, 1)
    whole = translator.translate("Abc def. Ghi jkl!", split="always")
    parts = list(translator.translate_all(["Abc def.", "Ghi jkl!"], split="always"))
    assert whole.text == " ".join(each.text for each in parts)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_windows_of_lines_do_not_cut_documents(reading, monkeypatch, count) -> None:
    from translume.translator import planning

    translator, lines = reading(2, 1), ["abc", "d", "", "bca", "abd", "da", "", "cd"]
    whole = [each.text for each in translator.translate_all(lines)]
    monkeypatch.setitem(planning.windows.__kwdefaults__, "lines", count)
    assert [each.text for each in translator.translate_all(lines)] == whole


def test_context_that_does_not_fit_is_dropped_from_its_far_end_with_a_warning(reading) -> None:
    translator = reading(2, 0, cleaning=CleaningSettings(max_tokens=8))
    lines = ["abc", "ab", "cd", "abcdabcd", "ab"]
    found = list(translator.translate_all(lines))
    assert [each.text for each in found[:2]] == [each.text for each in reading(2, 0).translate_all(lines[:2])]
    dropped = "sentences before it, to fit the model's limit"
    assert [each.warnings for each in found] == [
        (), (), (f"context_dropped: 1 of 2 {dropped}",), (f"context_dropped: 2 of 2 {dropped}",),
        (f"context_dropped: 2 of 2 {dropped}",),
    ]  # fmt: skip
    found = list(reading(0, 2, cleaning=CleaningSettings(max_tokens=11)).translate_all(lines))
    for place, each in enumerate(found):  # a target counts as its source
        room, kept = 11 - len(lines[place]), 0
        before = [len(other.hypotheses[0].ids) + 1 for other in found[max(0, place - 2) : place]]
        while kept < len(before) and sum(before[len(before) - kept - 1 :]) <= room:
            kept += 1
        warning = f"context_dropped: {len(before) - kept} of {len(before)} {dropped}"
        assert each.warnings == ((warning,) if kept < len(before) else ())
    assert [bool(each.warnings) for each in found] == [False, False, True, True, True]
    narrow = in_context(translator, 0, 8)
    rooms = list(narrow.translate_all(["abcdabcd"] * 12, stop="optimal"))
    texts = [len(each.hypotheses[0].ids) for each in rooms]
    assert any(each.warnings for each in rooms) == (sum(texts) > 61 - 7)


@pytest.mark.parametrize(
    ("names", "found"),
    [("x", "line 2: found no documents for the text"), ("xyz", "line 3: found no text for the documents")],
)
def test_each_text_needs_a_document(reading, names, found) -> None:
    with pytest.raises(TranslationError) as caught:
        list(reading(1, 1).translate_all(["abc", "d"], documents=iter(names)))
    assert str(caught.value) == f"{found}, expected as many documents as texts"


def test_models_of_an_ensemble_read_the_same_context(reading) -> None:
    with pytest.raises(SettingsError) as caught:
        reading(1, 1).ensemble_with(reading(1, 0))
    assert str(caught.value) == "ensemble: model 2 has another data.context than model 1, expected the same"


def test_an_error_names_its_line_and_keeps_those_before(reading) -> None:
    translator = reading(1, 1)
    lines = ["abc", "d", "a" * 99, "b"]
    found = translator.translate_all(lines, split="never")
    assert [next(found).source for _ in range(2)] == ["abc", "d"]
    with pytest.raises(TranslationError, match=r"^line 3: "):
        next(found)


def test_workers_translate_whole_documents(reading) -> None:
    from translume.translator.planning import numbered_lines
    from translume.translator.workers import outcomes

    translator, lines = reading(1, 1), ["abc", "d", "a" * 99, *["b", "ab", "ca", "d"] * 8]
    numbered = [line for line, _ in numbered_lines(lines, documents=True)]
    found = list(outcomes(Translator.translate_lines, translator.config.decoding, translator, numbered))
    assert isinstance(found[2], TranslationError)
    rest = list(translator.translate_all(lines[3:]))
    assert [str(each) for each in found[3:]] == [each.text for each in rest], "a line that fails ends the context"


def test_context_may_be_given(reading) -> None:
    translator = reading(2, 1)
    found = list(translator.translate_all(["abc", "d", "bca"]))
    before = [(each.source, each.text) for each in found[:2]]
    again = translator.translate("bca", before=before)
    assert again.hypotheses == found[2].hypotheses
    assert translator.translate("bca").text != again.text


@given(document=st.lists(st.text("abcd", min_size=1, max_size=3), min_size=1, max_size=4), source=st.integers(0, 2))
def test_a_score_given_context_is_that_of_the_search(reading, document, source) -> None:
    translator = reading(source, 1)
    found = list(translator.translate_all(document))
    before = [(each.source, each.text) for each in found[:-1]]
    for hypothesis in found[-1].hypotheses:
        score = translator.score(document[-1], hypothesis, before=before)
        assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=1e-4)
        assert len(score.tokens) == len(hypothesis.tokens)


@given(documents=DOCUMENTS, source=st.integers(0, 2), target=st.integers(0, 2))
def test_pairs_are_scored_after_those_before_them_in_their_document(reading, documents, source, target) -> None:
    translator = reading(source, target)
    named = [(number, text) for number, document in enumerate(documents) for text in document]
    pairs = [(text, text[::-1]) for _, text in named]
    befores = [
        [pair for at, pair in enumerate(pairs[:end]) if named[at][0] == named[end][0]] for end in range(len(pairs))
    ]
    wanted = [translator.score(*pair, before=each).log_prob for pair, each in zip(pairs, befores, strict=True)]
    found = translator.score_all(pairs, documents=(name for name, _ in named))
    assert [each.log_prob for each in found] == pytest.approx(wanted, abs=1e-4)
    parted = [pair for document in documents for pair in [*((text, text[::-1]) for text in document), ("", "")]]
    found = translator.score_all(parted, documents=True)
    kept = [each.log_prob for each, (text, _) in zip(found, parted, strict=True) if text]
    assert kept == pytest.approx(wanted, abs=1e-4)
    judged = translator.beliefs(parted, documents=True)
    total = sum(float(belief.log_prob_of(labels[:, None]).sum()) for belief, labels in judged)
    ends = [each.log_prob for each, (text, _) in zip(translator.score_all(parted), parted, strict=True) if not text]
    assert total == pytest.approx(sum(wanted) + sum(ends), abs=1e-3)
    alone = [each.log_prob for each in translator.score_all(pairs)]
    assert alone == pytest.approx([translator.score(*pair).log_prob for pair in pairs], abs=1e-4)


def test_each_pair_needs_a_document(reading) -> None:
    with pytest.raises(TranslationError) as caught:
        list(reading(1, 1).score_all([("a", "b"), ("c", "d")], documents=["x"]))
    assert str(caught.value) == "line 2: found no documents for the pair, expected as many documents as pairs"


def test_nll_and_calibration_are_of_documents(reading) -> None:
    from translume.evaluation import evaluate, fit_temperature, measure_calibration

    translator, texts = reading(1, 1), ["abc", "d", "bca", "abd"]
    scores = translator.score_all([(text, text) for text in texts], documents="xxyy")
    total = -sum(each.log_prob for each in scores)
    found = {
        each.name: each.value for each in evaluate(translator, texts, texts, nll=True, documents=iter("xxyy")).scores
    }
    mean = total / sum(len(text) + 1 for text in texts)
    assert found["nll"] == pytest.approx(mean, abs=1e-4)
    assert measure_calibration(translator, texts, texts, documents="xxyy").nll == pytest.approx(mean, abs=1e-4)
    assert fit_temperature(translator, texts, texts, documents="xxyy").nll_before == pytest.approx(mean, abs=1e-4)


def test_a_score_leaves_out_context_that_does_not_fit() -> None:
    def sentence(size: int) -> list[int]:
        return [5] * size

    sources, targets = [sentence(3), sentence(2), sentence(5)], [sentence(7)]
    assert Context.from_sentences(sources, targets, 9, 7) == Context(
        tuple(sentence(7)), tuple(sentence(7)), "context_dropped: 1 of 4 sentences before it, to fit the model's limit"
    )
    assert Context.from_sentences(sources, targets, 10, 6).target == ()
    assert Context.from_sentences(sources[1:], [], 7, -3) == Context(tuple(sentence(7)), (), "")


def test_alignments_are_of_the_sentence_itself(reading) -> None:
    translator = reading(1, 1)
    found = list(translator.translate_all(["ab cd", "bc d"], alignment=True, split="never"))
    alignment = found[1].hypotheses[0].alignment
    assert alignment is not None
    assert alignment.source_tokens[:2] == ("a", "b")
    words = {source for source, _ in alignment.links}
    assert words <= {0, 1}, "no word of the sentence before"
    assert len(alignment.weights) == len(found[1].hypotheses[0].ids)


def test_the_segments_of_a_document_are_context_of_each_other(reading) -> None:
    from translume.documents.segments import Mark, Segment
    from translume.documents.sentences import translated_runs

    translator = reading(1, 1)
    segments = [Segment(runs=("abc",)), Segment(runs=("d", "b"), marks=(Mark.ATTACHED,)), Segment(runs=("bca",))]
    calls = []

    def translate(lines, alignment):
        calls.append((list(lines), alignment))
        return translator.translate_all(lines, alignment=alignment, split="never")

    runs = translated_runs(segments, None, translate, in_order=True)
    assert calls == [(["abc", "db", "bca"], True), ([], False)] or calls == [([], False), (["abc", "db", "bca"], True)]
    wanted = [each.text for each in translator.translate_all(["abc", "db", "bca"], split="never")]
    assert ["".join(each) for each in runs] == wanted


def test_lines_of_a_server_have_the_context_that_they_name(reading) -> None:
    from translume.translator.cohort import Cohort
    from translume.translator.planning import Line

    translator = reading(1, 1)
    first, second = translator.translate_all(["abc", "d"])
    cohort = Cohort[str](translator, translator.config.decoding)
    lines = {"own": Line(number=0, text="d", before=(("abc", first.text),)), "other": Line(number=0, text="d")}
    cohort.enter(lines, {})
    found = cohort.run()
    assert found["own"].text == second.text
    assert found["other"].text == translator.translate("d").text != second.text


def test_documents_have_a_bleu_of_their_own() -> None:
    from translume.config import EvaluationSettings
    from translume.evaluation import measure
    from translume.evaluation.metrics import document_bleu

    texts = ["a b c d", "e f", "x y z", "g h i"]
    references = [["a b c", "d e f", "x y z", "g h j"], ["?", None, None, None]]
    settings = EvaluationSettings(metrics=("chrf", "bleu"))
    score = document_bleu(texts, references, [1, 1, 2, 1], settings)
    joined = measure(["a b c d e f", "x y z", "g h i"], ["a b c d e f", "x y z", "g h j"],
                     settings.model_copy(update={"metrics": ("bleu",)})).scores[0]  # fmt: skip
    assert (score.value, score.title) == (joined.value, "d-BLEU")
    assert score.signature == f"{joined.signature}|documents:3"
    with_terms = settings.model_copy(update={"glossary": "terms.tsv"})
    assert document_bleu(texts, references, [1, 1, 2, 1], with_terms) == score
