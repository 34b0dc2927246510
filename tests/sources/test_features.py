"""Models whose sources are arrays of frames, from a manifest to translations."""

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.sources.conftest import frames_of

import translume
from translume.cli import main
from translume.config import Config
from translume.data.batch import padded_frames
from translume.data.plan import BatchPlan
from translume.data.token_cache import prepare
from translume.engine import build_engine, self_test
from translume.errors import DataError, SettingsError, TrainingError, TranslationError
from translume.model.frames import FrameEmbedding
from translume.sources import frame_reader
from translume.tasks import find_task
from translume.training import Validated, train
from translume.training.vocabularies import vocabularies_of
from translume.translator import Translator

Make = Callable[..., Config]


@pytest.fixture(scope="module")
def trained(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "model"
    losses = [
        event.nll for event in train(make(training={"validate_every": 6}), folder) if isinstance(event, Validated)
    ]
    assert losses[-1] < losses[0]
    return folder


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return translume.load(trained, threads=1)


def test_a_path_bytes_and_an_array_are_the_same_source(translator: Translator, manifests: Path) -> None:
    path = manifests / "arrays" / "valid0.npy"
    translations = [translator.translate(each) for each in (str(path), path, path.read_bytes(), np.load(path))]
    assert len({each.text for each in translations}) == 1
    assert len({each.hypotheses[0].log_prob for each in translations}) == 1
    assert translations[0].source == str(path)
    assert translations[3].source == f"<ndarray {len(np.load(path))} × 5>"


def test_sources_are_translated_alike_alone_and_in_a_batch(translator: Translator) -> None:
    sources = [frames_of(letters, 3) for letters in ("abc", "a", "bb")]
    together = [each.hypotheses[0] for each in translator.translate_all(sources)]
    alone = [translator.translate(each).hypotheses[0] for each in sources]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.log_prob for each in together] == pytest.approx([each.log_prob for each in alone], abs=1e-4)


def test_the_command_reads_one_array_and_refuses_an_empty_file(trained: Path, manifests: Path, tmp_path: Path) -> None:
    path, empty = manifests / "arrays" / "valid0.npy", tmp_path / "empty.npy"
    empty.touch()
    found = CliRunner().invoke(main, ["translate", str(trained), str(path), "--threads", "1"])
    assert (found.exit_code, found.stdout) == (0, f"{Translator.load(trained).translate(path)}\n")
    found = CliRunner().invoke(main, ["translate", str(trained), str(empty), "--threads", "1"])
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith(f"Error: text: {empty}: ")
    assert found.stderr.count("\n") == 1
    (tmp_path / "text.md").write_text("# a\n")
    found = CliRunner().invoke(main, ["translate", str(trained), str(tmp_path / "text.md")])
    message = f"{tmp_path / 'text.md'}: a document, which a model with data.source = 'features' does not read"
    assert found.stderr == f"Error: {message}\n"


def test_the_commands_read_paths_of_a_manifest_relative_to_it(trained: Path, manifests: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    measured = runner.invoke(main, ["evaluate", str(trained), str(manifests / "valid.tsv"), "--threads", "1"])
    assert measured.exit_code == 0
    assert measured.stdout.startswith("BLEU")
    table = runner.invoke(main, ["translate", str(trained), str(manifests / "valid.tsv"), "--threads", "1"])
    paths = "".join(f"{manifests}/arrays/valid{number}.npy\n" for number in range(7))
    lines = runner.invoke(main, ["translate", str(trained), "--threads", "1"], input=paths)
    assert table.stdout == lines.stdout
    assert len(lines.stdout.splitlines()) == 7
    words = ["translate", str(trained), "--input", str(manifests / "valid.tsv"), "--output", str(tmp_path)]
    assert runner.invoke(main, [*words, "--column", "0"]).exit_code == 0
    assert (tmp_path / "valid.tsv.txt").read_text() == lines.stdout


def test_descriptions_of_a_model_name_its_sources(trained: Path, make: Make) -> None:
    shown = CliRunner().invoke(main, ["show", str(trained)])
    assert shown.stdout.splitlines()[0] == f"{trained}: An encoder-decoder Transformer, features to text"
    card = (trained / "README.md").read_text()
    assert "\n- text2text-generation\n" in card
    assert "An encoder-decoder Transformer, features to text, made with Translume." in card
    advice = find_task("sequence").next_steps(Path("a model"), make())
    assert advice == "Next: translume translate 'a model' < PATHS, or translume evaluate 'a model' MANIFEST"


def test_a_source_that_cannot_be_read_names_its_line_and_path(trained: Path, manifests: Path) -> None:
    broken = manifests / "arrays" / "train1.npy"
    given = f"{manifests}/arrays/train0.npy\n{broken}\n"
    result = CliRunner().invoke(main, ["translate", str(trained), "--threads", "1"], input=given)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1
    assert f"line 2: {broken}: not an array in .npy or .npz format, or truncated" in result.stderr


def test_the_engine_computes_what_the_plain_model_does(translator: Translator) -> None:
    model = translator.checkpoint.model
    assert self_test(build_engine(model), model).agrees


def test_a_broken_file_is_dropped_and_counted(make: Make, tmp_path: Path, manifests: Path) -> None:
    config = make()
    corpus = prepare(config.data, *vocabularies_of(config), tmp_path, split="train", max_positions=(19, 19))
    assert corpus.account.dropped == {"unreadable": 1}
    example = corpus.account.examples["unreadable"]
    assert (example.line, Path(example.file).name) == (2, "train.tsv")
    path = manifests / "arrays" / "train1.npy"
    assert example.source == f"{path}: not an array in .npy or .npz format, or truncated"


def test_batches_have_the_frames_of_the_files(make: Make, tmp_path: Path) -> None:
    config = make()
    corpus = prepare(config.data, *vocabularies_of(config), tmp_path, split="valid", max_positions=(19, 19))
    seen = 0
    for batch in BatchPlan(corpus, max_tokens=64, seed=1, epoch=0).batches():
        for row, number in enumerate(batch.lines):
            path, line = corpus.place(number).rsplit(":", 1)
            frames = np.load(Path(path).parent / "arrays" / f"valid{int(line) - 1}.npy")
            assert batch.source_mask[row].sum() == len(frames)
            np.testing.assert_allclose(batch.source[row, : len(frames)], frames, atol=4e-3)  # float16 in the cache
            assert corpus.source_lengths[number] == -(-len(frames) // 4)
            seen += 1
    assert seen == len(corpus) == 7


def test_training_data_without_a_readable_source_name_the_first(make: Make, tmp_path: Path) -> None:
    manifest = tmp_path / "train.tsv"
    manifest.write_text("missing.npy\ta\nalso/missing.npy\tb\n")
    config = make(data={"train": str(manifest), "valid": str(manifest)})
    with pytest.raises(DataError) as error:
        prepare(config.data, *vocabularies_of(config), tmp_path / "cache", split="train", max_positions=(19, 19))
    assert str(error.value) == (
        f"data: none of 2 pairs is left: unreadable 2; {manifest}:1: {tmp_path}/missing.npy: no such file"
    )


def test_frames_are_normalised_by_mean_and_deviation_of_the_training_data(make: Make) -> None:
    config = make()
    embedding = FrameEmbedding(config.data.source, config.model)
    frames = np.array([[1, 10, 0, 3, 5], [3, 30, 0, 3, 5]], np.float16)
    embedding.learn(frames)
    assert embedding.mean.tolist() == [2, 20, 0, 3, 5]
    assert embedding.deviation.tolist() == [1, 10, 1, 1, 1]  # constant values are not divided


def test_specaugment_masks_in_training_only_and_by_the_seed(make: Make) -> None:
    config = make(data={"source": {"kind": "features", "values": 5, "time_masks": 2, "value_masks": 1}})
    embedding = FrameEmbedding(config.data.source, config.model)
    source, mask = map(torch.from_numpy, padded_frames([np.ones((23, 5)), np.ones((41, 5))]))

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return embedding.augment(source, mask)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    lost = torch.stack([1 - drawn(seed) for seed in range(29)])[:, 1]  # of the second source
    assert 0 < lost.all(-1).sum(1).max() <= 2 * (41 // 5)  # two stretches of at most a fifth
    assert lost.all(1).sum(1).max() == 1  # of five values at most a third
    whole = embedding.eval().front(source, mask)[0]
    assert torch.equal(whole, embedding.front(source, mask)[0])


@pytest.mark.parametrize("length", [1, 4, 5, 8, 41])
def test_the_settings_know_the_number_of_positions(make: Make, length: int) -> None:
    config = make()
    embedding = FrameEmbedding(config.data.source, config.model).eval()
    source, mask = map(torch.from_numpy, padded_frames([np.ones((length, 5)), np.ones((43, 5))]))
    _, positions = embedding.front(source, mask)
    assert positions.sum(1).tolist() == [config.data.source.positions_of(n) for n in (length, 43)]


def test_arrays_of_the_wrong_kind_are_refused(make: Make) -> None:
    reader = frame_reader(make().data.source)
    assert reader is not None
    for array, reason in (
        (np.zeros((3, 4)), "<ndarray 3 × 4>: holds frames of 4 values, expected 5 (data.source.values)"),
        (np.zeros(5), "<ndarray 5>: holds an array of shape [5] and type float64, expected numbers in frames [L, F]"),
        (np.full((1, 5), np.nan), "<ndarray 1 × 5>: holds a number that is not finite"),
        (np.full((1, 5), 1e6), "<ndarray 1 × 5>: holds a number above 65,504"),
        (np.full((1, 5), 1e-6), "<ndarray 1 × 5>: all numbers are below 0.0001, which training rounds off; scale them"),
        (b"", "<0 bytes>: empty file, expected an array in .npy or .npz format"),
    ):
        with pytest.raises(DataError) as error:
            reader.read(array)
        assert str(error.value) == reason


def test_settings_for_text_are_refused(make: Make) -> None:
    with pytest.raises(SettingsError, match=r"model.head.kind: 'copy' reads the tokens of a source"):
        make(model={"head": {"kind": "copy"}})
    with pytest.raises(SettingsError, match=r"model.segments: found 2, must be 0 with data.source = 'features'"):
        make(model={"segments": 2})
    with pytest.raises(SettingsError, match=r"data.source.kind: found 'feature'; did you mean 'features'"):
        make(data={"source": "feature"})


def test_a_source_that_is_too_long_is_refused(translator: Translator) -> None:
    with pytest.raises(TranslationError) as error:
        translator.translate(np.zeros((77, 5)))
    assert str(error.value) == (
        "text: <ndarray 77 × 5>: 77 frames are 20 positions of the encoder, expected at most 18"
    )


def test_a_run_is_resumed_with_the_source_that_it_began_with(make: Make, trained: Path) -> None:
    other = make(data={"source": {"kind": "features", "values": 5, "channels": 11}}, training={"validate_every": 6})
    with pytest.raises(TrainingError, match=r"this run began with data.source.channels = 13, found 11"):
        next(iter(train(replace_updates(other), trained)))


def replace_updates(config: Config) -> Config:
    """Return the settings for one update more than those of the fixture."""
    return config.change("training.updates=14")


def test_every_damaged_file_is_refused_in_one_line(make: Make) -> None:
    reader, rng = frame_reader(make().data.source), random.Random(7)
    assert reader is not None
    for save in (np.save, np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, np.ones((7, 5), np.float32))
        for _ in range(700):
            content = bytearray(buffer.getvalue())
            for _ in range(rng.choice((1, 2, 9))):
                content[rng.randrange(min(len(content), rng.choice((128, 999))))] = rng.choice(
                    (0, 40, 255, rng.randrange(256))
                )
            with contextlib.suppress(DataError):
                reader.read(bytes(content[: rng.randrange(len(content))] if rng.random() < 0.2 else content))
