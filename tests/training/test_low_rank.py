"""Fine-tuning by low-rank adapters: what is trained, merging, resuming, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from translume.checkpoint import Manifest, build_network, committed, load_checkpoint, read_tensors
from translume.checkpoint.weights import unique_tensors
from translume.config import Config
from translume.errors import SettingsError
from translume.model import LossOptions
from translume.model.low_rank import LowRankLinear, adapt, merge
from translume.training import Finished, Progress, Started, train
from translume.training.optimisation import Updater

Make = Callable[..., Config]

RANK = {"lora_rank": 3, "lora_alpha": 5.0, "learning_rate": 0.01}

WAYS: dict[str, dict[str, Any]] = {
    "the best": {"average_last": 1, "lora_dropout": 0.2},
    "the mean, and a moving average": {"average_last": 3, "keep": 4, "ema": 0.9, "lora_norms": True},
}


@pytest.fixture(scope="module")
def base(toy: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    list(train(toy(updates=2), folder))
    return folder


def content(folder: Path) -> dict[str, Any]:
    """Return the digests of a folder's files, and the state of its run without wall-clock times."""
    files = dict(Manifest.read(folder).files)
    state = json.loads((folder / files.pop("resume/state.json").file).read_text())
    timed = ("seconds", "history_bytes")
    return {
        "state": {name: value for name, value in state.items() if name not in timed},
        **{name: entry.sha256 for name, entry in files.items()},
    }


def adapted(toy: Make, *, swiglu: bool = False, ssru: bool = False, **training: Any) -> tuple[torch.nn.Module, Config]:
    """Return a network whose adapters have random values, and its settings."""
    mixing = {"decoder_mixing": "ssru"} if ssru else {}
    config = toy({"model": {"activation": "swiglu" if swiglu else "relu", **mixing}}, **{**RANK, **training})
    network = build_network(config, 13, 13)
    adapt(network, config.training)
    for module in network.modules():
        if isinstance(module, LowRankLinear):
            torch.nn.init.normal_(module.up)
    return network, config


@pytest.mark.parametrize("targets", [["query", "value"], ["key", "output"], ["feed_forward", "recurrence"]])
def test_merged_weights_give_the_hidden_states_of_the_adapters(toy: Make, targets: list[str]) -> None:
    torch.manual_seed(1)
    network, config = adapted(toy, swiglu=True, ssru=True, lora_targets=targets)
    frozen = {name: value for name, value in network.named_parameters() if not value.requires_grad}
    trained = {name: value for name, value in network.named_parameters() if value.requires_grad}
    plain = build_network(config, 13, 13)
    missing = plain.load_state_dict({**frozen, **merge(network, frozen, trained)}, strict=False)
    assert not missing.unexpected_keys
    source, target = torch.randint(4, 11, (5, 7)), torch.randint(4, 13, (5, 3))
    logits = []
    for each in (network.eval(), plain.eval()):
        memory = each.start(source, torch.ones_like(source, dtype=torch.bool))
        hidden, _ = each.decoder(target, memory)
        logits.append(each.head.next_token(hidden.flatten(0, 1), None).log_probs())
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-5)


def test_an_adapter_adds_the_scaled_product_of_its_matrices() -> None:
    linear = torch.nn.Linear(2, 2, bias=False)
    linear.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    adapter = LowRankLinear(linear, [False, True], rank=1, alpha=3.0, dropout=0.0)
    adapter.down.data.copy_(torch.tensor([[1.0, 2.0]]))
    adapter.up.data.copy_(torch.tensor([[[5.0]]]))
    # The first part stays 7; the second is 11 + 3/1 · 5 · (1 · 7 + 2 · 11).
    assert adapter(torch.tensor([7.0, 11.0])).tolist() == [7.0, 446.0]
    assert adapter.merged(adapter.weight, adapter.down, adapter.up).tolist() == [[1, 0], [15, 31]]


def test_new_adapters_change_nothing(toy: Make) -> None:
    config = toy(**RANK)
    network = build_network(config, 13, 13)
    before = {name: value.clone() for name, value in unique_tensors(network).items()}
    adapt(network, config.training)
    frozen = {name: value for name, value in network.named_parameters() if not value.requires_grad}
    trained = {name: value for name, value in network.named_parameters() if value.requires_grad}
    after = {**frozen, **merge(network, frozen, trained)}
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_and_moments_exist_for_adapters_only(toy: Make, precision: Any) -> None:
    network, config = adapted(toy)
    updater = Updater(
        network, config.training, options=LossOptions(0.1), precision=precision, device=torch.device("cpu")
    )
    frozen = {name: value.clone() for name, value in updater.frozen_fp32().items()}
    ids, mask = torch.randint(4, 11, (3, 5)), torch.ones(3, 5, dtype=torch.bool)
    batch = type("Pairs", (), {"source": ids, "source_mask": mask, "target": ids, "labels": ids, "target_mask": mask})
    updater.update(updater.add(batch).tokens, 0.1)
    names = set(updater.parameters_fp32())
    assert names == {name for name, _ in network.named_parameters() if name.endswith((".down", ".up"))}
    assert set(updater.state()) == {"step", *(f"moment{n}.{name}" for n in (1, 2) for name in names)}
    for name, parameter in network.named_parameters():
        assert (parameter.grad is not None) == (name in names)
    assert all(torch.equal(value, updater.frozen_fp32()[name]) for name, value in frozen.items())


@pytest.mark.parametrize("way", sorted(WAYS))
def test_an_interrupted_run_ends_with_the_same_files(toy: Make, base: Path, tmp_path: Path, way: str) -> None:
    config = toy(updates=11, **RANK, **WAYS[way])
    *_, last = train(config, tmp_path / "whole", source=base)
    assert isinstance(last, Finished)
    for stop in (5, 8):
        run = train(config, tmp_path / "parts", source=base)
        assert any(isinstance(event, Progress) and event.update == stop for event in run)
        run.close()
    *_, last = train(config, tmp_path / "parts")
    assert isinstance(last, Finished)
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def test_the_folder_holds_merged_weights_and_small_checkpoints(toy: Make, base: Path, tmp_path: Path) -> None:
    events = list(train(toy(updates=3, average_last=1, **RANK), tmp_path / "model", source=base))
    (started,) = (event for event in events if isinstance(event, Started))
    manifest = Manifest.read(tmp_path / "model")
    raw = dict(read_tensors(committed(tmp_path / "model", manifest, "resume/raw.safetensors")))
    assert started.trained_parameters == sum(value.numel() for value in raw.values())
    assert all(name.endswith((".down", ".up")) for name in raw)
    before, after = (unique_tensors(load_checkpoint(folder).model) for folder in (base, tmp_path / "model"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert started.parameters == sum(value.numel() for value in before.values())
    assert changed == {name.rpartition(".")[0] + ".weight" for name in raw}
    card = (tmp_path / "model" / "README.md").read_text()
    assert (
        "Low-rank adapters (LoRA) of rank 3 of query, key, value, output, feed_forward, recurrence: "
        f"{started.trained_parameters:,} parameters trained, merged into the weights.\n"
    ) in card


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lora_rank": 13}, "training.lora_rank: found 13, expected at most 12, the size of the smallest adapted map"),
        ({"lora_targets": ["recurrence"]}, "training.lora_targets: the model has no maps named recurrence"),
    ],
)
def test_adapters_that_do_not_fit_the_model_are_refused(
    toy: Make, base: Path, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        list(train(toy(**{**RANK, **values}), tmp_path / "model", source=base))
    assert str(caught.value) == message


def test_adapters_without_a_base_model_are_refused(toy: Make, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        list(train(toy(**RANK), tmp_path / "model"))
    assert str(caught.value) == (
        "training.lora_rank: found 3 without a model to adapt; name one with --from, or leave the setting out"
    )
