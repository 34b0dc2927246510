"""BERTScore: by hand on a small random encoder, and as the package bert-score computes it."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from translume.config import EvaluationSettings
from translume.config.evaluation import BertScoreSettings
from translume.errors import SettingsError
from translume.evaluation import measure
from translume.interchange.bertscore import BertScore

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
