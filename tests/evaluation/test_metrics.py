"""Translation metrics: equal to sacreBLEU's or worked out by hand, each with its signature."""

import math
from pathlib import Path

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from translume.checkpoint.history import score_lines
from translume.config import Config, EvaluationSettings
from translume.config.evaluation import LEARNED, METRICS
from translume.errors import TranslumeError
from translume.evaluation import compare, evaluate, measure
from translume.tasks import find_task

FOUND = ["The cat sat on the mat .", "a Dog runs", "two women sit on a bench in the park .", "nothing"]
FIRST = ["The cat sat on a mat .", "a dog runs", "two women are sitting on a bench in a park .", "something else"]
SECOND = ["A cat sat on the mat .", "the dog is running", "two women on a park bench .", "nothing at all"]

sentences = st.lists(st.sampled_from(["a", "b", "c", "A", "."]), max_size=9).map(" ".join)


def settings(*metrics: str, **options: object) -> EvaluationSettings:
    return EvaluationSettings(metrics=metrics, **options)  # type: ignore[arg-type]  # options by name are not of one type


WER = settings("wer")


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", ["none", "13a", "intl", "zh", "char"])
@pytest.mark.parametrize("references", [[FIRST], [FIRST, SECOND]])
def test_bleu_has_sacrebleus_value_line_and_signature(
    references: list[list[str]], tokenize: str, lowercase: bool
) -> None:
    metric = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    expected = metric.corpus_score(FOUND, references)
    chosen = settings("bleu", tokenize=tokenize, lowercase=lowercase)
    found = measure(FOUND, references[0], chosen, other_references=references[1:])["bleu"]
    assert found.value == expected.score
    assert found.signature == str(metric.get_signature())
    assert str(found) == expected.format(signature=str(metric.get_signature()))


def test_the_line_of_bleu_is_complete() -> None:
    # By hand: 17 of 21 words, 11 of 17 bigrams, 5 of 14 trigrams, 2 of 11 4-grams; exp(1 − 23/21) = 0.909.
    line = str(measure(FOUND, FIRST, settings("bleu", tokenize="none", lowercase=True))["bleu"])
    assert line == (
        f"BLEU|nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:{sacrebleu.__version__} = "
        "39.04 81.0/64.7/35.7/18.2 (BP = 0.909 ratio = 0.913 hyp_len = 21 ref_len = 23)"
    )


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("references", [[FIRST], [FIRST, SECOND]])
def test_chrf_and_ter_equal_sacrebleus(references: list[list[str]], lowercase: bool) -> None:
    scores = measure(FOUND, FIRST, settings("chrf", "ter", lowercase=lowercase), other_references=references[1:])
    metrics = (sacrebleu.CHRF(lowercase=lowercase), sacrebleu.TER(case_sensitive=not lowercase))
    for found, metric in zip(scores, metrics, strict=True):
        expected = metric.corpus_score(FOUND, references)
        assert found.value == expected.score
        assert str(found) == expected.format(signature=str(metric.get_signature()))


def test_ter_counts_characters_in_texts_without_spaces() -> None:
    score = measure(["我喜欢猫"], ["我喜欢狗"], settings("ter", tokenize="zh"))["ter"]
    assert score.value == 25


def test_error_rates_worked_by_hand() -> None:
    found, wanted = ["k a t", "d ɔ g z", ""], ["k æ t", "d ɔ g", "a"]
    scores = measure(found, wanted, settings("wer", "per", "exact_match"))
    assert str(scores["per"]) == "PER|nrefs:1|case:mixed|tok:blank|edits:levenshtein = 42.86 (3 edits, 7 tokens)"
    assert scores["wer"].value == scores["per"].value == pytest.approx(100 * 3 / 7)
    assert scores["exact_match"].value == 0
    nearest = measure(found, wanted, settings("wer"), other_references=[["k a t", "d ɔ g z", "b c"]])["wer"]
    assert str(nearest) == "WER|nrefs:2|case:mixed|tok:blank|edits:levenshtein = 12.50 (1 edits, 8 tokens)"


def test_error_rates_without_a_reference_token() -> None:
    assert measure([""], [""], settings("wer"))["wer"].value == 0
    infinite = measure(["a"], [""], settings("wer"))["wer"]
    assert infinite.value == math.inf
    assert infinite.to_dict()["value"] is None  # JSON has no infinity
    (line,) = score_lines([{"event": "evaluated", "source": "a", "reference": "b", "scores": [infinite.to_dict()]}])
    assert line == "a, b: WER|nrefs:1|case:mixed|tok:blank|edits:levenshtein = inf"


def test_exact_match_worked_by_hand() -> None:
    found = ["a b", " a b\t", "A b", "c"]
    score = measure(found, ["a b"] * 4, settings("exact_match"))["exact_match"]
    assert str(score) == "exact match|nrefs:1|case:mixed = 50.00 (2 of 4)"
    score = measure(found, ["a b"] * 4, settings("exact_match", lowercase=True), other_references=[["c"] * 4])
    assert str(score) == "exact match|nrefs:2|case:lc = 100.00 (4 of 4)"


@given(pairs=st.lists(st.tuples(sentences, sentences), min_size=1, max_size=5))
def test_a_perfect_translation_is_perfect_by_every_metric(pairs: list[tuple[str, str]]) -> None:
    texts = [f"{one} {other} the end of it" for one, other in pairs]
    # SARI is 0 where there is nothing to delete or add, ROUGE ignores punctuation, terminology reads a glossary, and
    # learned metrics have no bound.
    names = [name for name in METRICS if name not in ("sari", "terminology", *LEARNED)]
    for score in measure(texts, texts, settings(*names, tokenize="none")):
        best = 100 if find_task("sequence").larger_is_better(score.name) else 0
        assert score.value == pytest.approx(best)


def test_evaluate_translates_measures_and_keeps_the_translations(upper) -> None:
    scores = evaluate(upper, ["a b", "c"], ["A B", "D"], settings("exact_match"), nll=True)
    assert scores.translations == ("A B", "C")
    assert scores["exact_match"].value == 50
    assert scores["nll"].value == 1
    assert scores["nll"].signature == "unit:nats|per:token|eos:yes|tokens:5"
    assert scores["perplexity"].value == pytest.approx(math.e)
    assert [score.name for score in scores] == ["exact_match", "nll", "perplexity"]
    assert scores.to_dict()["sentences"] == 2
    assert str(scores).splitlines()[0] == "exact match|nrefs:1|case:mixed = 50.00 (1 of 2)"
    assert [score.name for score in evaluate(upper, ["a"], ["A"])] == ["bleu", "chrf"]


@pytest.mark.parametrize(
    ("language", "tokenize", "expected"),
    [
        ("zh", "auto", "zh"),
        ("zh_TW", "auto", "zh"),
        ("yue-Hant", "auto", "zh"),
        ("JA", "auto", "char"),
        ("ko", "auto", "char"),
        ("th", "auto", "char"),
        ("de", "auto", "13a"),
        ("", "auto", "13a"),
        ("zh", "13a", "13a"),
        ("de", "none", "none"),
    ],
)
def test_the_target_language_selects_the_tokenisation_of_bleu_and_the_signature_names_it(
    upper, language: str, tokenize: str, expected: str
) -> None:
    upper.config = Config().change(f"data.target_language={language}", f"evaluation.tokenize={tokenize}")
    for chosen in (None, settings("bleu", tokenize=tokenize)):
        assert f"|tok:{expected}|" in evaluate(upper, ["a b", "c"], ["A B", "D"], chosen)["bleu"].signature
    assert upper.config.scoring.tokenize == (expected if language else tokenize)


SCRIPTS = {
    "Chinese": ("他在工作，我在2024年买了iPad。", "zh"),
    "Chinese with kana in a name": ("他在工作，我们喜欢優の良品的东西和其他很多食品。", "zh"),
    "Japanese": ("私は猫が好きです。", "char"),
    "Korean": ("나는 고양이를 좋아한다.", "char"),
    "Thai": ("ฉันชอบแมว", "char"),
    "Burmese": ("ငါကြောင်ကြိုက်တယ်", "char"),
    "Russian": ("Я люблю кошек.", "13a"),
    "Hindi": ("मुझे बिल्लियाँ पसंद हैं।", "13a"),
    "Latin": ("I like cats, 猫.", "13a"),
    "no letters": ("1,234.5", "13a"),
}


@pytest.mark.parametrize(("text", "expected"), SCRIPTS.values(), ids=SCRIPTS)
def test_the_references_select_the_tokenisation_if_no_language_is_known(text: str, expected: str) -> None:
    found = [text, text.replace(text[0], "")]
    auto = settings("bleu", "ter")
    scores = measure(found, [text, None], auto, other_references=[[None, text]])
    assert scores == measure(
        found, [text, None], settings("bleu", "ter", tokenize=expected), other_references=[[None, text]]
    )
    assert f"|tok:{expected}|" in compare(found, found, [text, text], auto)[0].first.signature
    assert "|tok:intl|" in measure(found, [text, text], settings("bleu", tokenize="intl"))["bleu"].signature


def test_tokenized_text_is_scored_without_advice_about_a_library(caplog: pytest.LogCaptureFixture) -> None:
    assert measure(["a b c ."] * 200, ["a b c ."] * 200, settings("bleu"))["bleu"].value == pytest.approx(100)
    assert caplog.records == []


def test_bleu_is_tokenized_for_the_direction_of_a_model_of_several() -> None:
    corpora = [{"source_language": "en", "target_language": each, "train": "a.tsv"} for each in ("de", "zh")]
    config = Config.build(
        {"data": {"corpus": corpora}, "training": {"metric": "exact_match"}, "model": {"language_tags": "target"}}
    )
    assert config.scoring.of_language("zh").tokenize == "zh"
    assert config.scoring.names == ("exact_match",)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda upper: evaluate(upper, [], [], WER), "evaluate: found no sentences, expected at least one"),
        (lambda upper: evaluate(upper, ["a"] * 1000, ["a"] * 999, WER),
         "evaluate: 1,000 sources but 999 references, expected equally many"),
        (lambda upper: evaluate(upper, ["a"], ["a"], WER, other_references=[["a", "b"]]),
         "evaluate: 1 sources but 2 references 2, expected equally many"),
        (lambda _: measure(["a"], ["a", "b"], WER), "evaluate: 1 translations but 2 references, expected equally many"),
        (lambda _: measure(["a", "b"], ["a", None], WER, other_references=[["b", None]]),
         "evaluate: sentence 2 has no reference, expected at least one"),
        (lambda _: measure(["a"], ["a"], settings("blue")),
         "evaluation.metrics: found 'blue'; did you mean 'bleu'?"),
        (lambda _: measure(["a"], ["a"], WER)["bleu"], "no score 'bleu' was measured; known: wer"),
        (lambda _: measure("ab", ["a", "b"], WER), "evaluate: translations is one text, expected a list of texts"),
        (lambda _: measure(["a"], ["a"], settings("sari")),
         "evaluation.metrics: 'sari' compares with the sources; expected --source FILE"),
    ],
)  # fmt: skip
def test_invalid_input_is_refused_in_one_line(upper, call, message: str) -> None:
    with pytest.raises(TranslumeError) as error:
        call(upper)
    assert str(error.value) == message


def test_every_metric_takes_texts_with_different_numbers_of_references() -> None:
    chosen = settings("bleu", "chrf", "ter", "exact_match", "wer", "cer", "rougeL", "squad_f1", "sari")
    second = [SECOND[0], None, *SECOND[2:]]
    # To give a text its first reference again adds nothing to it, except to SARI, which counts references.
    again = [SECOND[0], FIRST[1], *SECOND[2:]]
    found, expected = (
        measure(FOUND, FIRST, chosen, other_references=[others], sources=SECOND) for others in (second, again)
    )
    for score in found:
        assert "nrefs:var" in score.signature
        assert score.name == "sari" or score.value == expected[score.name].value


@pytest.mark.parametrize("kind", ["rouge1", "rouge2", "rougeL"])
def test_rouge_is_that_of_rouge_score_with_the_best_reference(kind: str) -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge-score is not installed").RougeScorer
    values = [
        scorer([kind], use_stemmer=True).score_multi([first, second], text)[kind].fmeasure
        for text, first, second in zip(FOUND, FIRST, SECOND, strict=True)
    ]
    score = measure(FOUND, FIRST, settings(kind), other_references=[SECOND])[kind]
    assert score.value == pytest.approx(100 * sum(values) / len(values))
    assert str(score) == (f"ROUGE-{kind[-1]}|nrefs:2|case:lc|tok:ascii|stemmer:porter|best:f1 = {score.value:.2f}")


@pytest.mark.parametrize(
    ("text", "reference", "f1", "exact"),
    [
        ("The cat.", "a Cat", 100, 100),  # articles, case and punctuation do not count
        ("in the old park", "park", 50, 0),  # of "in old park": precision 1/3, recall 1
        ("a b b", "b b b c", 100 * 2 * 2 / 6, 0),  # "a" is an article: 2 of 2 and 2 of 4
        ("", "the", 100, 100),
        ("", "cat", 0, 0),
    ],
)
def test_squad_scores_worked_by_hand(text: str, reference: str, f1: float, exact: float) -> None:
    scores = measure([text], [reference], settings("squad_f1", "squad_exact"))
    assert [score.value for score in scores] == pytest.approx([f1, exact])


def test_cer_counts_blanks_between_words_once() -> None:
    score = measure(["ab  cd"], ["ab ce"], settings("cer"))["cer"]
    assert str(score) == "CER|nrefs:1|case:mixed|tok:char|edits:levenshtein = 20.00 (1 edits, 5 tokens)"


def test_sari_worked_by_hand() -> None:
    # Unigrams, with two references: "a" is kept (both have it: 2 of 2), "b" deleted (one reference keeps it: 1 of 2,
    # to delete: 1), "d" added (one of "d" and "e" to add). No longer n-gram can be right.
    score = measure(["a d"], ["a d"], settings("sari"), other_references=[["e b a"]], sources=["a b"])["sari"]
    keep, delete, add = 2 * 2 / (2 + 3), 2 * 1 / (2 + 1), 2 * 1 / (1 + 2)
    # Bigrams: "a b" is deleted (2 of 2, no reference has it); "a d" is added; to add: "a d", "e b", "b a".
    delete2, add2 = 1.0, 2 * 1 / (1 + 3)
    assert score.value == pytest.approx(100 * (keep + delete + delete2 + add + add2) / 4 / 3)
    assert score.signature == "nrefs:2|case:lc|tok:13a|mean:corpus|delete:f1"


def test_sari_is_near_the_published_figures(data_folder: Path) -> None:
    folder = data_folder / "simplification"

    def lines(name: str) -> list[str]:
        return (folder / name).read_text(encoding="utf-8").splitlines()

    sources = lines("turkcorpus/test.src")
    first, *others = (lines(f"turkcorpus/test.ref.{number}") for number in range(8))
    published = {"Dress-Ls": 37.27, "Hybrid": 31.40}
    for name, value in published.items():
        texts = lines(f"system_outputs/wikilarge_test.{name}")
        chosen = settings("sari", tokenize="none")
        assert abs(measure(texts, first, chosen, other_references=others, sources=sources)["sari"].value - value) < 0.8
