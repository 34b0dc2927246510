"""Two processes that train together: the same weights as one process, the same bits again, and errors in one line."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from translume.checkpoint import Manifest, committed, read_tensors
from translume.config import Config
from translume.errors import ModelFolderError
from translume.training import Resumed, Started, Warned, train
from translume.training.group import Group, joined
from translume.training.mapped import stored

Make = Callable[..., Config]

CHILD = Path(__file__).with_name("group_child.py")


def tensors(folder: Path, name: str = "resume/raw.safetensors") -> dict[str, torch.Tensor]:
    return dict(read_tensors(committed(folder, Manifest.read(folder), name)))


@pytest.fixture(scope="module")
def configs(toy: Make, toy_files: Path) -> dict[str, Config]:
    """rows: some batches have a single row.  whole: two batches in each update.  lost: only rank 0 has the data.

    streamed: reads several buffers.  documents: a language model whose weights are divided.
    """
    stream = {"streaming": True, "shuffle_buffer": 70, "cleaning": {"max_tokens": 8}}
    data = {f"train_{side}": f"only_here.{side}" for side in ("source", "target")}
    validation = {"metric": "exact_match", "validation_sentences": 5, "average_last": 2}
    return {
        "rows": toy({"model": {"dropout": 0.0}}, updates=8, max_tokens=19, **validation),
        "whole": toy({"model": {"dropout": 0.3}}, updates=5, max_tokens=101, accumulate=2),
        "lost": toy({"data": data}, updates=3),
        "streamed": toy({"model": {"dropout": 0.0}, "data": stream}, updates=9, max_tokens=211),
        "documents": Config.build(
            {
                "data": {"task": "language_model", "train": str(toy_files / "train.source"), "block_length": 11},
                "tokenizer": {"kind": "word", "size": 29, "unknown": "token", "whitespace": "keep"},
                "model": {
                    "width": 12,
                    "feed_forward": 23,
                    "encoder_layers": 0,
                    "decoder_layers": 2,
                    "attention_heads": 2,
                    "dropout": 0.0,
                    "head": {"tie": "all"},
                },
                "training": {
                    "updates": 5,
                    "max_tokens": 101,
                    "warmup_updates": 2,
                    "precision": "fp32",
                    "shard": "full",
                    "ema": 0.9,
                    "clip_norm": 0.1,
                },
            }
        ),
    }


@pytest.fixture(scope="module")
def folder(
    configs: dict[str, Config], toy_files: Path, tmp_path_factory: pytest.TempPathFactory, warm_python: Path
) -> Path:
    """The folder of all runs of two processes."""
    folder = tmp_path_factory.mktemp("group")
    for name, config in configs.items():
        (folder / f"{name}.toml").write_text(config.to_toml())
    for rank in (0, 1):
        (folder / f"rank{rank}").mkdir()
    for side in ("source", "target"):
        text = (toy_files / f"train.{side}").read_text()
        (folder / "rank0" / f"only_here.{side}").write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            [warm_python, str(CHILD), str(folder)],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    errors = [child.communicate(timeout=300)[1] for child in children]
    assert [child.returncode for child in children] == [0, 9], "\n".join(errors)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """The results of each rank."""
    return [json.loads((folder / f"found{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("rows", "undisturbed"),
        ("rows", "sharded"),
        ("rows", "divided"),
        ("documents", "documents"),
        ("whole", "whole"),
        ("streamed", "streamed"),
    ],
)
def test_two_processes_make_the_updates_of_one(
    configs: dict[str, Config],
    folder: Path,
    tmp_path: Path,
    name: str,
    run: str,
) -> None:
    """If each rank takes whole batches, even dropout is the same. Sharded and divided runs were resumed once."""
    list(train(configs[name], tmp_path, threads=1))
    moments = "resume/optimizer.safetensors"
    alone, together = ({**tensors(each), **tensors(each, moments)} for each in (tmp_path, folder / run))
    assert alone.keys() == together.keys()
    for key, value in alone.items():
        if key.endswith(("query_key_value.bias", "key_value.bias")):  # softmax ignores a key's bias: Adam follows noise
            continue
        assert float((together[key] - value).norm()) <= 1e-5 * float(value.norm()), key


def test_both_ranks_know_the_quality_of_the_model(found: list[dict[str, Any]]) -> None:
    assert found[0]["quality"] == found[1]["quality"]
    assert found[0]["quality divided"] == found[1]["quality divided"]
    assert found[0]["quality divided"][0] == pytest.approx(found[0]["quality"][0], abs=1e-5)
    nll, metrics = found[0]["quality"]
    assert nll > 0
    assert set(metrics) == {"exact_match"}


def test_a_signal_to_one_rank_saves_and_the_resumed_run_has_the_same_bits(
    folder: Path, found: list[dict[str, Any]]
) -> None:
    assert [each["interrupted"] for each in found] == [["Saved", "Interrupted"]] * 2
    files = ("weights.safetensors", "resume/raw.safetensors", "resume/optimizer.safetensors")
    digests = [
        [Manifest.read(folder / run).files[name].sha256 for name in files] for run in ("undisturbed", "interrupted")
    ]
    assert digests[0] == digests[1]
    digests = [
        [Manifest.read(folder / run).files[name].sha256 for name in files[1:]]
        for run in ("undisturbed_divided", "divided")
    ]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("stopped", ["streamed and interrupted", "stopped while reading"])
def test_a_streamed_run_of_two_ranks_that_was_stopped_ends_with_the_same_bits(
    folder: Path, found: list[dict[str, Any]], stopped: str
) -> None:
    runs = [Manifest.read(folder / run).files for run in ("streamed", stopped)]
    states = [
        json.loads((folder / run / files["resume/state.json"].file).read_text())
        for run, files in zip(("streamed", stopped), runs, strict=True)
    ]
    assert states[0]["place"] == states[1]["place"]
    assert states[0]["place"]["buffer"]["buffer"] > 0
    for name in ("resume/raw.safetensors", "resume/optimizer.safetensors"):
        assert runs[0][name].sha256 == runs[1][name].sha256
    assert [each["stopped while reading"] for each in found] == ["Interrupted"] * 2


def test_a_rank_that_fails_in_its_stream_ends_all(found: list[dict[str, Any]]) -> None:
    message = "rank 1: train.source:211: not UTF-8"
    assert [each["stream"] for each in found] == [[message, True], [message, False]]


def test_other_settings_on_one_rank_are_refused(found: list[dict[str, Any]], folder: Path) -> None:
    message = "rank 1: found training.seed = 4, but rank 0 has training.seed = 3; expected the same on every rank"
    assert [each["settings"] for each in found] == [[message, True], [message, False]]
    assert not (folder / "settings").exists()


def test_a_rank_without_the_data_is_named(found: list[dict[str, Any]]) -> None:
    message = "rank 1: only_here.source: no such file"
    assert [each["data"] for each in found] == [[message, True], [message, False]]


def test_nan_on_one_rank_stops_all(found: list[dict[str, Any]]) -> None:
    (message, reports), (other, reports_too) = (each["nan"] for each in found)
    assert message.startswith("rank 1: update 1: the loss is nan on ")
    assert (message, reports, reports_too) == (other, True, False)
    (message, reports), (other, reports_too) = (each["nan divided"] for each in found)
    assert message.startswith("rank 1: update 1: the loss is nan on ")
    assert (message, reports, reports_too) == (other, True, False)


def test_weights_are_stored_in_a_file_without_a_name_and_a_failure_reads_them_all(tmp_path: Path) -> None:
    values = {"a": torch.randn(3, 5), "none": torch.empty(0, 7), "b": torch.tensor([2.0])}
    found = stored(values.items(), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert found.keys() == values.keys()
    assert all(torch.equal(found[name], value) for name, value in values.items())
    rest = iter(values.items())
    with pytest.raises(ModelFolderError) as caught:
        stored(rest, tmp_path / "none")
    assert str(caught.value) == f"{tmp_path}/none: cannot be written: No such file or directory"
    assert list(rest) == []  # other processes wait for each


def test_adapters_and_divided_weights_are_refused(found: list[dict[str, Any]]) -> None:
    message = (
        "training.shard: found 'full' with weights that are not trained (lora_rank, freeze_pretrained), "
        "expected 'none' or 'optimizer'"
    )
    assert [each["adapters"] for each in found] == [[message, True], [message, False]]


def test_a_rank_that_died_is_named_with_what_is_saved(found: list[dict[str, Any]]) -> None:
    message = "rank 1 of 2 processes died; update 5, last saved 3; the same command resumes the run"
    assert found[0]["death"] == [message, True]


def test_one_process_resumes_the_run_of_two_and_says_so(
    configs: dict[str, Config], folder: Path, found: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list(train(configs["rows"], folder / "death", threads=1))
    assert Resumed(update=3, updates=8, folder=folder / "death") in events
    warnings = [event.message for event in events if isinstance(event, Warned)]
    assert warnings == ["this run began with processes 2, now 1: weights may differ in the last bits"]
    assert [event.processes for event in events if isinstance(event, Started)] == [1]


def test_a_process_without_torchrun_is_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")  # as some schedulers set it
    with joined() as group:
        assert (group.alone, group.leads) == (True, True)
    alone = Group()
    assert alone.numbers([1.5, 2]) == [[1.5, 2]]
    assert alone.texts("é") == ["é"]
    assert alone.caught("SIGINT") == "SIGINT"
