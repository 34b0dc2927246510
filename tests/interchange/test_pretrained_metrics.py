"""BERTScore and MetricX: by hand on small random models; BERTScore also as the package bert-score computes it."""

import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from translume.config import EvaluationSettings
from translume.config.evaluation import BertScoreSettings, MetricXSettings
from translume.errors import SettingsError
from translume.evaluation import measure
from translume.interchange.pretrained_metrics import BertScore, MetricX

transformers = pytest.importorskip("transformers")
WORDS = [
    "the",
    "a",
    "man",
    "woman",
    "dog",
    "is",
    "riding",
    "watching",
    "painting",
    "bicycle",
    "house",
    "boat",
    "two",
    "cats",
    "bread",
    ".",
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    folder.mkdir()
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]), encoding="utf-8"
    )
    tokenizer = transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), model_max_length=17)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    sizes = {"hidden_size": 22, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 29}
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=37, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def settings(model: Path | str, layer: int = 2) -> EvaluationSettings:
    return EvaluationSettings(metrics=("bertscore",), bertscore=BertScoreSettings(model=str(model), layer=layer))


def texts(seed: int, longest: int) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices([*WORDS, "zebra"], k=drawn.randint(1, longest))) for _ in range(41)]


def test_the_f1_is_that_of_the_best_cosines_of_each_token(encoder: Path) -> None:
    tokenizer = transformers.BertTokenizerFast.from_pretrained(encoder)
    model = transformers.BertModel.from_pretrained(encoder).eval()

    def states(text: str) -> np.ndarray:
        with torch.no_grad():
            found = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[2][0]
        return (found / found.norm(dim=-1, keepdim=True)).double().numpy()

    ours, others = texts(3, 13), texts(5, 13)
    rated = BertScore(settings(encoder)).rate([("", *pair) for pair in zip(ours, others, strict=True)])
    for text, reference, value in zip(ours, others, rated, strict=True):
        one, other = states(text), states(reference)
        precision = np.mean([max(float(a @ b) for b in other) for a in one[1:-1]])  # without [CLS] and [SEP]
        recall = np.mean([max(float(a @ b) for a in one) for b in other[1:-1]])
        assert value == pytest.approx(100 * 2 * precision * recall / (precision + recall), abs=1e-4)


def test_a_text_equals_itself_and_the_best_of_several_references_counts(encoder: Path) -> None:
    ours, others = texts(7, 11), texts(11, 11)
    (score,) = measure(ours, others, settings(encoder), other_references=[ours])
    assert score.value == pytest.approx(100, abs=1e-3)
    assert score.signature.startswith("nrefs:2|model:tiny|sha256:")
    assert score.signature.endswith("|layer:2")


def test_texts_that_are_cut_are_counted(encoder: Path) -> None:
    ours = ["a man is riding " * 5, "a dog ."]
    (score,) = measure(ours, ["a man . " * 9, "a dog ."], settings(encoder))
    assert score.signature.endswith("|layer:2|cut:2")


def test_it_is_what_the_package_computes(encoder: Path) -> None:
    package = pytest.importorskip("bert_score", reason="bert-score is not installed")
    ours, others = texts(13, 25), texts(17, 25)
    _, _, wanted = package.score(ours, others, model_type=str(encoder), num_layers=2)
    rated = BertScore(settings(encoder)).rate([("", *pair) for pair in zip(ours, others, strict=True)])
    np.testing.assert_allclose(rated, 100 * wanted.numpy(), atol=1e-4)


def test_a_model_that_is_not_there_and_a_layer_that_it_has_not_are_named(encoder: Path, tmp_path: Path) -> None:
    for model, layer, answer in (
        (tmp_path, 1, f"model: found '{tmp_path}', expected a folder of transformers, or hf://owner/name"),
        (encoder, 5, f"layer: found 5, expected at most 3, the layers of {encoder}"),
    ):
        with pytest.raises(SettingsError) as caught:
            BertScore(settings(model, layer))
        assert str(caught.value) == f"evaluation.bertscore.{answer}"


@pytest.fixture(scope="module")
def error_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An mT5 of two layers with the vocabulary of MetricX, whose errors are often within the limits."""
    folder = tmp_path_factory.mktemp("errors") / "metricx"
    tokens = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{word: 3 + n for n, word in enumerate([*WORDS, "source", ":"])}}
    tokens |= {word: len(tokens) + n for n, word in enumerate(["candidate", "reference"])}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(tokens, unk_token="<unk>"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, **special).save_pretrained(folder)
    torch.manual_seed(2)
    sizes = {"d_model": 6, "d_kv": 3, "num_heads": 2, "d_ff": 5, "num_layers": 2, "tie_word_embeddings": False}
    model = transformers.MT5ForConditionalGeneration(transformers.MT5Config(vocab_size=250_112, **sizes))
    with torch.no_grad():
        model.lm_head.weight[250_089] = torch.randn(6) * 7
    model.save_pretrained(folder)
    return folder


def metricx_settings(folder: Path, **more: str) -> EvaluationSettings:
    chosen = MetricXSettings(**{"model": str(folder), "tokenizer": str(folder), **more})
    return EvaluationSettings(metrics=("metricx",), metricx=chosen)


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        ("source: {source} candidate: {candidate} reference: {reference}", (True, True)),
        ("source: {source} candidate: {candidate}", (True, False)),
        ("candidate: {candidate} reference: {reference}", (False, True)),
    ],
)
def test_the_error_is_a_logit_after_the_template_without_eos(
    error_model: Path, template: str, reads: tuple[bool, bool]
) -> None:
    sources, ours, others = texts(3, 5), texts(7, 11), texts(11, 13)
    ours[0] = "{reference}"  # braces of a text stay as they are
    metric = MetricX(metricx_settings(error_model, template=template))
    assert (metric.reads_sources, metric.reads_references) == reads
    rated = metric.rate(list(zip(sources, ours, others, strict=True)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(error_model)
    model = transformers.MT5ForConditionalGeneration.from_pretrained(error_model).eval()
    errors = []
    for source, text, reference in zip(sources, ours, others, strict=True):
        sides = [f"source: {source}"] * reads[0] + [f"candidate: {text}"] + [f"reference: {reference}"] * reads[1]
        ids = torch.tensor([tokenizer.encode(" ".join(sides), add_special_tokens=False)])
        with torch.no_grad():
            states = model.encoder(input_ids=ids).last_hidden_state
            start = torch.zeros(1, 1, dtype=torch.long)
            last = model.decoder(input_ids=start, encoder_hidden_states=states).last_hidden_state[0, 0]
            errors.append(float((last @ model.lm_head.weight[250_089]).clamp(0, 25)))
    np.testing.assert_allclose(rated, [-error for error in errors], atol=1e-4)
    assert len({round(error, 3) for error in errors if 0 < error < 25}) > 5


def test_the_mean_has_the_template_and_the_texts_that_were_cut_in_its_signature(error_model: Path) -> None:
    ours = ["a man is riding . " * 400, "a dog ."]
    (score,) = measure(ours, ["a man .", "a dog ."], metricx_settings(error_model), sources=["two cats", "a boat"])
    assert score.title == "−MetricX"
    assert -25 <= score.value <= 0
    assert score.signature.startswith("nrefs:1|model:metricx|sha256:")
    assert score.signature.endswith(
        "|template:source: {source} candidate: {candidate} reference: {reference}|truncated:1"
    )


def test_settings_of_metricx_that_cannot_be_are_refused_in_a_line(error_model: Path, encoder: Path) -> None:
    for template, answer in (
        ("candidate: {text}", "found '{text}'; known: source, candidate, reference"),
        ("{candidat}", "found '{candidat}'; did you mean 'candidate'?"),
        ("source: {source}", "found no {candidate}, which stands for the text that is rated"),
    ):
        with pytest.raises(SettingsError) as error:
            MetricXSettings(template=template)
        assert str(error.value) == f"evaluation.metricx.template: {answer}"
    for changes, answer in (
        ({"tokenizer": "nowhere"}, "tokenizer: found 'nowhere', expected a folder of transformers, or hf://owner/name"),
        ({"model": ""}, "model: found '', expected a folder of transformers, or hf://owner/name"),
    ):
        with pytest.raises(SettingsError) as error:
            MetricX(metricx_settings(error_model, **changes))
        assert str(error.value) == f"evaluation.metricx.{answer}"
    sizes = {"d_model": 6, "d_kv": 3, "num_heads": 2, "d_ff": 5, "num_layers": 1, "tie_word_embeddings": False}
    small = encoder.parent / "small"
    transformers.MT5ForConditionalGeneration(transformers.MT5Config(vocab_size=257, **sizes)).save_pretrained(small)
    with pytest.raises(SettingsError) as error:
        MetricX(metricx_settings(small, tokenizer=str(error_model)))
    assert str(error.value) == (
        f"evaluation.metricx.model: {small} has a vocabulary of 257, expected one of mT5, more than 250,089"
    )
