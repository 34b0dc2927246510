"""Networks are built without memory for their parameters, which then adopt given tensors or are loaded into."""

import pytest
import torch

from translume.checkpoint import adopt, allocate, build_model, without_values
from translume.config import ModelSettings, SoftmaxSettings

SETTINGS = {"width": 10, "feed_forward": 7, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 5}


def settings_of(tie):
    return ModelSettings(**SETTINGS, max_positions=11, head=SoftmaxSettings(tie=tie))


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_adopted_weights_are_those_of_the_model_and_stay_tied(tie):
    wanted = build_model(settings_of(tie), 13, 13)
    with without_values():
        found = build_model(settings_of(tie), 13, 13)
    assert all(parameter.is_meta for parameter in found.parameters())
    assert [name for name, _ in found.named_parameters()] == [name for name, _ in wanted.named_parameters()]
    assert not any(buffer.is_meta for buffer in found.buffers())
    weights = {name: value.clone() for name, value in wanted.state_dict().items()}
    adopt(found, weights)
    assert not weights
    for name, value in wanted.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert (found.head.weight is found.decoder.embedding.table.weight) == (tie != "none")


def test_parameters_do_not_share_a_tensor_that_was_given_twice():
    with without_values():
        found = build_model(settings_of("none"), 13, 13)
    shared = torch.ones(13, 10)
    weights = {
        name: shared if value.shape == shared.shape else torch.ones(value.shape)
        for name, value in found.state_dict().items()
    }
    adopt(found, weights)
    assert found.head.weight.data_ptr() != found.decoder.embedding.table.weight.data_ptr()


def test_allocated_parameters_have_the_device_and_the_dtype():
    with without_values():
        found = build_model(settings_of("all"), 13, 13)
    allocate(found, torch.device("cpu"), torch.bfloat16)
    assert {parameter.dtype for parameter in found.parameters()} == {torch.bfloat16}
    assert found.encoder.embedding.positions.table.dtype == torch.bfloat16
    assert found.head.weight is found.encoder.embedding.table.weight


def test_other_threads_build_networks_with_values():
    from concurrent.futures import ThreadPoolExecutor

    with without_values(), ThreadPoolExecutor(1) as threads:
        other = threads.submit(build_model, settings_of("all"), 13, 13).result()
    assert not any(parameter.is_meta for parameter in other.parameters())
