"""Large weights are mapped into memory instead of copied."""

from pathlib import Path

import torch

from translume.checkpoint import load_checkpoint, save_model, weights


def anonymous(tensor: torch.Tensor, folder: Path) -> bool:
    """Return whether a tensor is in memory of its own, and not in that of a file of the folder."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return str(folder) not in line
    raise AssertionError("not in this process")


def test_parameters_of_a_large_file_are_its_pages(checkpoint, tmp_path, monkeypatch):
    save_model(tmp_path / "model", checkpoint)
    copied = load_checkpoint(tmp_path / "model")
    monkeypatch.setattr(weights, "MAPPED_BYTES", 1)
    mapped = load_checkpoint(tmp_path / "model")
    parameters = dict(mapped.model.named_parameters())
    assert all(anonymous(each, tmp_path) for each in copied.model.parameters())
    aligned = [each for each in parameters.values() if each.data_ptr() % 64 == 0]
    assert sum(not anonymous(each, tmp_path) for each in parameters.values()) > 2
    assert len(aligned) == len(parameters)
    for name, tensor in copied.model.state_dict().items():
        assert torch.equal(mapped.model.state_dict()[name], tensor)
    tied = mapped.model.decoder.embedding.table.weight
    assert tied is mapped.model.encoder.embedding.table.weight


def test_what_is_written_to_mapped_parameters_stays_in_the_process(checkpoint, tmp_path, monkeypatch):
    save_model(tmp_path / "model", checkpoint)
    monkeypatch.setattr(weights, "MAPPED_BYTES", 1)
    changed = load_checkpoint(tmp_path / "model")
    with torch.no_grad():
        for parameter in changed.model.parameters():
            parameter.zero_()
    again = load_checkpoint(tmp_path / "model")  # its digest is checked
    assert again.model.encoder.embedding.table.weight.detach().abs().max() > 0


def test_the_first_tensor_of_a_file_is_aligned(checkpoint, tmp_path):
    save_model(tmp_path / "model", checkpoint)
    (path,) = (tmp_path / "model").glob("weights-*")
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % weights.ALIGNMENT == 0
