"""Classifiers from training to evaluation, from Python and from the command line."""

import json
import math
import pickle
import shutil

import pytest
import torch
from click.testing import CliRunner
from tests.classification.scoring import evaluate_classification

import translume
from translume.checkpoint import Manifest, read_config
from translume.cli import main
from translume.errors import DataError, ModelFolderError, SettingsError, TranslationError
from translume.evaluation.classification import accuracy_of, macro_f1_of
from translume.training import train
from translume.training.events import Finished, Interrupted, Started, Validated
from translume.translator import Translator, load

from .conftest import texts


def run(*words, text=None):
    return CliRunner().invoke(main, [str(word) for word in words], input=text, prog_name="translume")


def tokenizer_of(folder):
    return folder / Manifest.read(folder).files["tokenizer_settings.json"].file


def weights(folder):
    return load(folder, device="cpu").checkpoint.model.state_dict()


def test_a_classifier_learns_the_deciding_words(trained):
    classifier = translume.load(trained, device="cpu")
    assert isinstance(classifier, translume.Classifier)
    unseen = texts(101, 5)
    scores = evaluate_classification(classifier, [text for text, _ in unseen], [label for _, label in unseen])
    assert scores.accuracy > 95
    found = classifier.classify("a b owl c")
    assert (found.label, str(found), found.labels, found.warnings) == ("animal", "animal", ("animal",), ())
    assert found.probabilities[0][0] == "animal"
    assert sum(p for _, p in found.probabilities) == pytest.approx(1, abs=1e-5)
    assert classifier.classify("").label in classifier.labels.names


def test_a_classifier_is_pickled_by_its_folder_and_says_what_it_is(trained):
    classifier = translume.load(trained, device="cpu")
    again = pickle.loads(pickle.dumps(classifier))
    assert again.classify("a b owl c") == classifier.classify("a b owl c")
    size = sum(weight.numel() for weight in classifier.checkpoint.model.parameters())
    assert repr(again) == f"<Classifier: {size:,} parameters, 1 layer, width 12, 3 labels, {trained}>"
    with pytest.raises(TypeError, match=r"^Classifier: it has no model folder, so it cannot be pickled; "):
        pickle.dumps(translume.Classifier(classifier.checkpoint))


def test_muon_refuses_a_classifier_without_layers(make, tmp_path):
    head = {"kind": "classify", "pooling": "ngrams", "ngrams": [1], "filters": 13}
    config = make({"model": {"encoder_layers": 0, "positions": "none", "head": head}}, optimizer="muon")
    with pytest.raises(SettingsError) as error:
        list(train(config, tmp_path / "model", device="cpu", threads=1))
    assert str(error.value) == "training.optimizer: 'muon' trains matrices inside layers, found no layer"


def test_ngram_filters_learn_without_encoder_layers(make, tmp_path):
    head = {"kind": "classify", "pooling": "ngrams", "ngrams": [1, 3], "filters": 13}
    others = {"model": {"encoder_layers": 0, "positions": "none", "head": head}}
    list(train(make(others, updates=80, metric="accuracy"), tmp_path / "model", device="cpu", threads=1))
    classifier = load(tmp_path / "model", device="cpu")
    assert classifier.checkpoint.config.model.head.ngrams == (1, 3)
    unseen = texts(101, 5)
    assert (
        evaluate_classification(classifier, [text for text, _ in unseen], [label for _, label in unseen]).accuracy > 90
    )
    alone, beside = (
        classifier.classify("a b owl"),
        next(iter(classifier.classify_all(["a b owl", "a red b c d e f g"]))),
    )
    assert dict(alone.probabilities) == pytest.approx(dict(beside.probabilities), abs=1e-5)
    bf16 = load(tmp_path / "model", device="cpu", dtype="bf16").classify("a b owl")
    assert bf16.label == alone.label


def test_a_classifier_learns_from_a_teacher_with_the_same_labels(make, trained, files, tmp_path):
    tuned = {"updates": 30, "teacher_share": 1.0, "label_smoothing": 0.0}
    list(train(make(teacher=str(trained), **tuned), tmp_path / "taught", device="cpu", threads=1))
    unseen = texts(101, 5)
    student = load(tmp_path / "taught", device="cpu")
    assert evaluate_classification(student, [text for text, _ in unseen], [label for _, label in unseen]).accuracy > 80
    (tmp_path / "other.tsv").write_text((files / "train.tsv").read_text() + "mineral\t0\ta b\n")
    others = {"data": {"train": str(tmp_path / "other.tsv")}, "tokenizer": {"path": str(tokenizer_of(trained))}}
    with pytest.raises(SettingsError) as caught:
        list(train(make(others, teacher=str(trained)), tmp_path / "other", device="cpu", threads=1))
    assert str(caught.value) == f"training.teacher: {trained} has other labels, expected the 4 of the data"


def test_a_classifier_is_fine_tuned_with_what_init_proposes_and_resumed_without_its_base(trained, files, tmp_path):
    base, out = tmp_path / "base", tmp_path / "tuned"
    shutil.copytree(trained, base)
    proposed = run("init", "--from", base, "--columns", "2,0", files / "train.tsv")
    assert "classify" not in proposed.stdout  # task and head are those of the base model
    (tmp_path / "tune.toml").write_text(proposed.stdout)
    words = ("train", tmp_path / "tune.toml", "--from", base, "--out", out, "--set", "training.updates=10")
    done = run(*words, "--set", "training.warmup_updates=5")
    assert done.exit_code == 0, done.output
    assert read_config(out).training.metric == "accuracy"
    shutil.rmtree(base)
    again = run(*words, "--set", "training.warmup_updates=5", "--set", "training.updates=20")
    assert again.exit_code == 0, again.output
    gone = run("train", tmp_path / "tune.toml", "--from", base, "--out", tmp_path / "other")
    assert gone.stderr == f"Error: {base}: not a model folder: there is no such folder\n"


def test_a_translator_cannot_teach_a_classifier(make, files, tmp_path):
    pairs = {"task": "sequence", "columns": [2, 0]}
    list(
        train(make({"data": pairs, "model": {"head": {}}}, updates=2), tmp_path / "translator", device="cpu", threads=1)
    )
    with pytest.raises(SettingsError) as caught:
        list(train(make(teacher=str(tmp_path / "translator")), tmp_path / "model", device="cpu", threads=1))
    assert str(caught.value) == (
        f"training.teacher: {tmp_path / 'translator'} is a translator, expected a classifier, as data.task = "
        "'classification' trains"
    )


def test_batches_keep_the_order_and_the_probabilities_of_single_texts(trained):
    classifier = load(trained, device="cpu")
    lines = [text for text, _ in texts(37, 6)]
    found = list(classifier.classify_all(f"{line}\n" for line in lines))
    assert [each.source for each in found] == lines
    for each in found:
        alone = classifier.classify(each.source)
        assert alone.label == each.label
        assert dict(alone.probabilities) == pytest.approx(dict(each.probabilities), abs=1e-5)


def test_training_reports_accuracy_and_f1_and_resumes_bit_for_bit(make, tmp_path):
    events = list(train(make(updates=20, validate_every=10), tmp_path / "whole", device="cpu", threads=1))
    started = next(event for event in events if isinstance(event, Started))
    assert (started.training_pairs, started.validation_pairs, started.target_vocabulary) == (211, 43, 3)
    validated = [event for event in events if isinstance(event, Validated)]
    assert all(set(event.metrics) == {"accuracy", "macro_f1"} for event in validated)
    assert isinstance(events[-1], Finished)
    parts = make(updates=20, validate_every=10, save_every=7)
    for event in train(parts, tmp_path / "parts", device="cpu", threads=1):
        if getattr(event, "update", 0) == 8:
            break
    assert not isinstance(event, Interrupted)
    list(train(parts, tmp_path / "parts", device="cpu", threads=1))
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_initial_loss_is_that_of_a_uniform_guess(make, tmp_path):
    events = list(train(make(updates=1, validate_every=1, learning_rate=1e-9), tmp_path / "m", device="cpu"))
    (validated,) = [event for event in events if isinstance(event, Validated)]
    assert validated.nll == pytest.approx(1.0986, abs=0.2)


def test_a_text_may_have_several_labels(make, files, tmp_path):
    several = {"kind": "classify", "labels": "several", "pooling": "max", "class_weights": "balanced"}
    data = {"train": str(files / "several.tsv"), "valid": (), "columns": [1, 0], "label_separator": "+"}
    config = make({"data": data, "model": {"head": several}}, label_smoothing=0.0, metric="macro_f1", updates=200)
    list(train(config, tmp_path / "m", device="cpu", threads=1))
    classifier = load(tmp_path / "m", device="cpu")
    found = classifier.classify("a owl b fig")
    assert (found.labels, found.label) == (("animal", "fruit"), "animal+fruit")
    scores = evaluate_classification(classifier, ["a owl", "red b fig"], ["animal", "fruit+colour"])
    assert scores.confusion is None
    assert scores.reliability.count == 6


def test_the_embedding_is_initialised_from_word_vectors(make, tmp_path):
    (tmp_path / "vectors.txt").write_text("".join(f"{word} {' '.join(['0.5'] * 12)}\n" for word in ("cat", "dog")))
    config = make({"model": {"pretrained_source": str(tmp_path / "vectors.txt"), "freeze_pretrained": True}}, updates=3)
    list(train(config, tmp_path / "m", device="cpu", threads=1))
    checkpoint = load(tmp_path / "m", device="cpu").checkpoint
    (cat,) = checkpoint.source_tokenizer.encode("cat")
    embedding = checkpoint.model.encoder.embedding
    assert (embedding.table.weight[cat] * embedding.scale).tolist() == pytest.approx([0.5] * 12)


def test_long_texts_are_truncated_on_request_and_counted(make, tmp_path):
    cleaning = {"cleaning": {"max_tokens": 5, "too_long": "keep_last"}}
    events = list(train(make({"data": cleaning}, updates=3), tmp_path / "m", device="cpu", threads=1))
    account = next(event for event in events if isinstance(event, Started)).training
    assert (account.read, account.used, account.dropped) == (211, 211, {})
    assert account.truncated == sum(len(text.split()) > 5 for text, _ in texts(211, 1))
    assert f"{account.truncated} truncated" in account.summary()
    classifier = load(tmp_path / "m", device="cpu")
    found = classifier.classify("a b c d e f owl")
    assert found.warnings == ("truncated: 7 tokens were cut to the last 5",)
    assert dict(found.probabilities) == pytest.approx(dict(classifier.classify("c d e f owl").probabilities), abs=1e-5)


def test_a_text_that_is_too_long_is_an_error_after_the_texts_before_it(trained):
    found = load(trained, device="cpu").classify_all(["a owl", "a " * 50, "b"])
    assert next(found).label == "animal"
    with pytest.raises(TranslationError) as error:
        next(found)
    assert str(error.value) == (
        "line 2: the text has 50 tokens, expected at most 36; "
        'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it'
    )


def test_metrics_of_an_example():
    gold, found = [{0}, {0}, {1}, {2}], [{0}, {1}, {1}, {1}]
    assert accuracy_of(gold, found) == 50
    assert macro_f1_of(gold, found) == pytest.approx(100 * (2 / 3 + 2 / 4 + 0) / 3)


def test_the_classify_command(trained):
    done = run("classify", trained, text="a owl\nred b\n")
    assert (done.exit_code, done.stdout) == (0, "animal\ncolour\n")
    lines = run("classify", trained, "--nbest", "2", text="a owl\nred b\n").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["1", "1", "2", "2"]
    assert lines[0].split("\t")[2] == "animal"
    record = json.loads(run("classify", trained, "--json", text="a owl\n").stdout)
    assert record["label"] == "animal"
    assert set(record["probabilities"]) == {"animal", "colour", "fruit"}


def test_the_evaluate_command(trained, files, tmp_path):
    done = run("evaluate", trained, files / "valid.tsv", "--write", tmp_path / "out")
    assert done.exit_code == 0, done.output
    first, second, third, *_ = done.stdout.splitlines()
    assert first.startswith("accuracy|right:label|n:43 = ")
    assert second.startswith("macro-F1|classes:seen|n:43 = ")
    assert third.startswith("ECE|of:labels|confidence:max p|bins:15 = 0.")
    assert "texts of" in done.stdout
    values = json.loads(run("evaluate", trained, files / "valid.tsv", "--json").stdout)
    assert values["labels"] == ["animal", "colour", "fruit"]
    assert sum(map(sum, values["confusion"])) == values["sentences"] == 43
    right = sum(values["confusion"][place][place] for place in range(3))
    assert values["scores"][0]["value"] == pytest.approx(100 * right / 43)
    assert len((tmp_path / "out").read_text().splitlines()) == 43
    assert "13 tokens" not in run("show", trained).output
    assert "3 labels" in run("show", trained).output


def test_the_reliability_diagram_of_labels_is_drawn(trained, files, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("translume.inspection.figures.write_figure", lambda figure, path: drawn.append(figure))
    done = run("evaluate", trained, files / "valid.tsv", "--calibration", tmp_path / "plot.png")
    assert (done.exit_code, done.stderr) == (0, f"{tmp_path}/plot.png: written\n")
    found = evaluate_classification(load(trained, device="cpu"), *zip(*texts(43, 2), strict=True)).reliability
    upper, lower = drawn[0].axes
    assert upper.get_title() == "labels (43 of 43 texts)"
    dots = [line for line in upper.lines if line.get_marker() == "o"]
    points = {tuple(point) for line in dots for point in line.get_xydata().tolist() if not math.isnan(point[0])}
    assert points == {(each.confidence, each.accuracy) for each in found.bins if each.count}
    (counts,) = lower.patches
    assert counts.get_data().values.tolist() == [each.count for each in found.bins]
    assert lower.get_ylabel() == "labels"


def test_the_reliability_diagram_of_decisions_is_written(make, files, tmp_path):
    data = {"train": str(files / "several.tsv"), "valid": (), "columns": [1, 0], "label_separator": "+"}
    head = {"kind": "classify", "labels": "several", "pooling": "max"}
    folder, picture = tmp_path / "m", tmp_path / "plot.svg"
    list(
        train(
            make({"data": data, "model": {"head": head}}, updates=1, label_smoothing=0.0),
            folder,
            device="cpu",
            threads=1,
        )
    )
    done = run("evaluate", folder, files / "several.tsv", "--calibration", picture)
    assert (done.exit_code, done.stderr) == (0, f"{picture}: written\n")
    assert "<svg" in picture.read_text(encoding="utf-8")
    plain = run("evaluate", folder, files / "several.tsv", "--calibration", "-")
    assert (plain.exit_code, plain.stderr, plain.stdout) == (0, "", done.stdout)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        *(([*words], f"{words[0]} cannot be combined with a classifier")
          for words in (["--fit-temperature"], ["--compare", "{model}"], ["--average", "probability"])),
        (["--metrics", "accuracy"], "evaluate: evaluation.metrics has no effect on a classifier here"),
        (["--lowercase"], "evaluate: evaluation.lowercase has no effect on a classifier here"),
        (["--max-length-action", "truncate", "--nbest", "2"],
         "evaluate: decoding.nbest has no effect on a classifier here"),
        (["--hypotheses", "{model}/README.md"], "--hypotheses cannot be combined with a classifier"),
    ],
)  # fmt: skip
def test_options_for_translators_are_refused(trained, files, words, wanted):
    done = run("evaluate", trained, files / "valid.tsv", *(word.format(model=trained) for word in words))
    assert (done.exit_code, done.stderr) == (1, f"Error: {wanted}\n")


def test_settings_of_the_search_are_refused_by_classify(trained):
    done = run("classify", trained, "--set", "decoding.beam=3", text="a b owl\n")
    message = "Error: classify: decoding.beam has no effect on a classifier here\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", message)


def test_a_text_without_a_label_is_named_before_any_is_classified(trained, tmp_path):
    (tmp_path / "test.tsv").write_text("animal\t1\ta b owl\n \t2\ta walk\n", encoding="utf-8")
    done = run("evaluate", trained, tmp_path / "test.tsv", "--write", tmp_path / "out")
    message = f"Error: {tmp_path}/test.tsv:2: no label, expected one\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", message)
    assert not (tmp_path / "out").exists()


def test_a_classifier_cannot_be_evaluated_in_int8(trained, files):
    done = run("evaluate", trained, files / "valid.tsv", "--dtype", "int8")
    wanted = "Error: dtype: found 'int8', expected auto, fp32 or bf16; int8 is for translators\n"
    assert (done.exit_code, done.stderr) == (1, wanted)


def test_commands_for_translators_refuse_a_classifier(trained, make, files, tmp_path):
    with pytest.raises(ModelFolderError) as error:
        Translator.load(trained)
    assert (
        str(error.value)
        == f"{trained}: is a classifier, expected a translator; its commands are classify, evaluate and inspect"
    )
    packed = run("pack", trained)
    assert packed.stderr == f"Error: {trained}: is a classifier, expected a translator or a language model\n"
    done = run("translate", trained, text="a\n")
    assert (done.exit_code, done.stderr) == (1, f"Error: {error.value}\n")
    done = run("evaluate", trained, *[files / "valid.tsv"] * 3)
    expected = f"Error: evaluate: {trained} is a classifier, expected MODEL FILE, or MODEL TEXTS LABELS\n"
    assert (done.exit_code, done.stderr) == (1, expected)


def test_commands_for_classifiers_refuse_a_translator(make, files, tmp_path):
    sides = {"task": "sequence", "columns": [2, 0]}
    model = {"head": {"kind": "softmax", "tie": "none"}, "decoder_layers": 1}
    folder = tmp_path / "m"
    list(train(make({"data": sides, "model": model}, updates=1), folder, device="cpu", threads=1))
    done = run("classify", folder, text="a\n")
    wanted = (
        f"Error: {folder}: is a translator, expected a classifier; its commands are translate, evaluate and inspect\n"
    )
    assert (done.exit_code, done.stderr) == (1, wanted)


def test_texts_and_labels_may_be_in_two_files(trained, files, tmp_path):
    rows = [line.split("\t") for line in (files / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    columns = read_config(trained).data.columns
    for name, column in zip(("texts", "labels"), columns, strict=True):
        (tmp_path / name).write_text("".join(f"{row[column]}\n" for row in rows), encoding="utf-8")
    both = run("evaluate", trained, tmp_path / "texts", tmp_path / "labels")
    assert (both.exit_code, both.stderr) == (0, "")
    assert both.stdout == run("evaluate", trained, files / "valid.tsv").stdout
    lens = run("inspect", "corpus", trained, tmp_path / "texts", tmp_path / "labels")
    assert (lens.exit_code, lens.stderr) == (0, "")
    assert lens.stdout == run("inspect", "corpus", trained, files / "valid.tsv").stdout


def test_classify_keeps_an_empty_line_empty(trained):
    done = run("classify", trained, text="a b\n\n \nb\n")
    labels = done.stdout.split("\n")
    assert (len(labels), labels[1:3]) == (5, ["", ""])
    assert all((labels[0], labels[3]))
    best = run("classify", trained, "--nbest", "2", text="\n")
    assert best.stdout == "1\t0\t\n"
    empty = json.loads(run("classify", trained, "--json", text="\n").stdout)
    assert (empty["label"], empty["labels"], empty["probabilities"]) == ("", [], {})


def test_a_label_not_in_the_training_data_is_an_error(make, files, tmp_path):
    bad = tmp_path / "bad.tsv"
    bad.write_text("fruit\t0\ta fig\nmetal\t1\ta b\n")
    with pytest.raises(DataError) as error:
        list(train(make({"data": {"valid": str(bad)}}), tmp_path / "m", device="cpu"))
    assert str(error.value) == (f"{bad}:2: label 'metal' is not in the training data; known: animal, colour, fruit")


@pytest.mark.parametrize(
    ("others", "training", "wanted"),
    [
        (
            {"model": {"head": {"kind": "softmax"}}},
            {},
            "data.task = 'classification' with model.head.kind = 'softmax', expected model.head.kind = 'classify'",
        ),
        (
            {"data": {"task": "sequence"}},
            {},
            "data.task = 'sequence' with model.head.kind = 'classify', expected data.task = 'classification'",
        ),
        (
            {},
            {"metric": "bleu"},
            "training.metric: found 'bleu', known for this task: nll, accuracy, macro_f1",
        ),
        (
            {"model": {"pretrained_target": "x"}},
            {},
            "model.pretrained_target: a classifier has no target embedding",
        ),
        (
            {"model": {"head": {"kind": "classify", "labels": "several"}}},
            {"r_drop": 1.0, "label_smoothing": 0.0},
            "training.r_drop: found 1.0, must be 0 with model.head.labels = 'several', whose decisions are not a "
            "distribution over classes",
        ),
    ],
)
def test_conflicting_settings_are_an_error(make, others, training, wanted):
    with pytest.raises(SettingsError) as error:
        make(others, **training)
    assert str(error.value) == f"settings: {wanted}"


def test_the_data_command_counts_with_the_labels_of_a_run(files, tmp_path):
    (tmp_path / "c.toml").write_text(
        f'data.train = "{files}/train.tsv"\ndata.valid = "{files}/valid.tsv"\n'
        'data.task = "classification"\ndata.columns = [2, 0]\n'
        'tokenizer = {kind = "word", size = 61, unknown = "token"}\nmodel.head.kind = "classify"\n'
    )
    result = run("data", "stats", tmp_path / "c.toml", "--json")
    assert result.exit_code == 0, result.stderr
    train_split, valid_split = map(json.loads, result.stdout.splitlines())
    assert (train_split["pairs"], valid_split["pairs"]) == (211, 43)
    assert (train_split["target_vocabulary"], train_split["target_longest"]) == (3, 1)
    assert result.stderr == "learning the vocabulary of source\n"
