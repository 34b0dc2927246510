"""Packed linear layers compute the product, the probe chooses among those that are accurate, and caches its choice."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from translume.engine import packing, probe
from translume.engine.packing import KINDS, TOLERANCES, packed_as
from translume.engine.probe import CANDIDATES, Choice, load_choice, save_choice
from translume.kernels.cpu import cache_folder, temporary_folder
from translume.kernels.loading import has_kernels

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@given(seed=st.integers(0, 99), rows=st.integers(1, 23), inputs=st.sampled_from([1, 7, 64, 131]),
       outputs=st.sampled_from([1, 5, 64, 257]), bias=st.booleans())  # fmt: skip
@torch.inference_mode()
def test_every_packing_gives_the_product_within_its_tolerance(kind, seed, rows, inputs, outputs, bias):
    generator = torch.Generator().manual_seed(seed)
    weight, x = (torch.randn(count, inputs, generator=generator) for count in (outputs, rows))
    shift = torch.randn(outputs, generator=generator) if bias else None
    packed = packed_as(kind, weight, shift)
    if packed is None:
        assert kind != "fp32"
        pytest.skip(f"{kind} is not available here for {inputs}×{outputs}")
    wanted = F.linear(x, weight, shift)
    share = (packed(x) - wanted).abs().max() / (x.norm(dim=1).max() * weight.norm(dim=1).max())
    assert packed.kind == kind
    assert share <= TOLERANCES[kind]
    assert packed(x[None]).shape == (1, rows, outputs)


@every_kind
@given(seed=st.integers(0, 99), row=st.integers(0, 28), inputs=st.sampled_from([67, 64, 256]))
@torch.inference_mode()
def test_rows_of_an_independent_packing_have_the_same_product_in_every_batch(kind, seed, row, inputs):
    generator = torch.Generator().manual_seed(seed)
    weight, x = (torch.randn(count, inputs, generator=generator) for count in (131, 29))
    packed = packed_as(kind, weight, torch.randn(131, generator=generator))
    if packed is None or not packed.rows_are_independent():
        pytest.skip(f"{kind} is not available here, or does not claim independent rows")
    assert torch.equal(packed(x)[row : row + 1], packed(x[row : row + 1]))
    assert torch.equal(packed(x * 50.0)[:1], packed(x[:1] * 50.0))


def test_a_packing_is_independent_only_if_batches_of_several_sizes_give_equal_products():
    class DependsOnTheBatch(packing.Int8Linear):
        def product(self, x):
            return super().product(x) * (1 + 1e-6 * (len(x) > 16))

    assert not DependsOnTheBatch(torch.randn(13, 64), None).rows_are_independent()
    assert not packing.PlainLinear(torch.randn(13, 64), None).rows_are_independent()


def test_onednn_int8_does_not_claim_independence_with_amx(monkeypatch):
    packed = packed_as("int8-onednn", torch.randn(131, 67), None)
    if packed is None:
        pytest.skip("int8-onednn is not available here")
    monkeypatch.setattr(packing, "has_amx", lambda: True)
    assert not packed.rows_are_independent()


def test_the_int8_probe_chooses_an_independent_packing_if_there_is_one(monkeypatch):
    class Fast(packing.PlainLinear):
        kind = "int8"

    class Independent(packing.PlainLinear):
        kind = "int8-onednn"

        def rows_are_independent(self):
            return True

        def forward(self, x):
            for _ in range(5):
                product = super().forward(x)
            return product

    monkeypatch.setitem(CANDIDATES, "int8", ("fp32", "int8"))
    monkeypatch.setitem(KINDS, "int8", Fast)
    assert Choice("int8", measured=True).pack(torch.randn(257, 131), None).kind in ("fp32", "int8")
    monkeypatch.setitem(CANDIDATES, "int8", ("fp32", "int8", "int8-onednn"))
    monkeypatch.setitem(KINDS, "int8-onednn", Independent)
    assert Choice("int8", measured=True).pack(torch.randn(257, 131), None).kind == "int8-onednn"


@every_kind
@torch.inference_mode()
def test_a_row_of_zeros_gives_the_bias(kind):
    packed = packed_as(kind, torch.randn(13, 7), torch.arange(13.0))
    if packed is None:
        pytest.skip(f"{kind} is not available here")
    assert torch.equal(packed(torch.zeros(2, 7)), torch.arange(13.0).expand(2, -1))


def test_an_inaccurate_or_missing_kernel_is_not_used(monkeypatch):
    class Wrong(packing.PlainLinear):
        def forward(self, x):
            return super().forward(x) * 1.1

    class Missing(packing.PlainLinear):
        def forward(self, x):
            raise RuntimeError("no such kernel on this machine")

    for kind in (Wrong, Missing):
        monkeypatch.setitem(KINDS, "int8", kind)
        assert packed_as("int8", torch.randn(13, 7), None) is None
    monkeypatch.setitem(CANDIDATES, "int8", ("fp32", "int8"))
    choice = Choice("int8", measured=True)
    assert choice.pack(torch.randn(13, 7), None).kind == "fp32"
    assert choice.kinds == {"7×13": "fp32"}


def test_a_shape_is_probed_once():
    first = Choice("int8", measured=True)
    kinds = [first.pack(torch.randn(257, 131), None).kind for _ in range(3)]
    assert kinds == [first.kinds["131×257"]] * 3
    assert set(first.microseconds["131×257"]) <= set(CANDIDATES["int8"])
    for kind in CANDIDATES["int8"]:
        if packed_as(kind, torch.randn(257, 131), None) is None:
            continue
        again = Choice("int8", {"131×257": kind})
        assert again.pack(torch.randn(257, 131), None).kind == kind
        assert again.microseconds == {}


@pytest.mark.parametrize("kind", ["native", "bf16-native", "int8-native"])
def test_a_weight_packed_in_parts_is_the_same(monkeypatch, kind):
    weight, bias = torch.randn(203, 48), torch.randn(203)
    whole = packed_as(kind, weight, bias)
    if whole is None:
        pytest.skip(f"no {kind} here")
    monkeypatch.setattr(packing, "PART_ROWS", 64)
    rows = torch.randn(3, 48)
    assert torch.equal(packed_as(kind, weight, bias)(rows), whole(rows))


@pytest.mark.skipif(not has_kernels(), reason="no kernels")
def test_on_one_thread_the_kernels_are_chosen_without_measuring(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    choice = Choice("fp32")
    assert choice.pack(torch.randn(67, 13), None).kind == "native"
    assert (choice.kinds, choice.microseconds) == ({"13×67": "native"}, {})


@pytest.mark.skipif(not has_kernels(), reason="no kernels")
@pytest.mark.parametrize(("share", "preferred"), [(1.9, True), (2.1, False)])
def test_on_several_threads_torch_must_be_twice_as_fast_as_the_kernels(monkeypatch, share, preferred):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(probe, "measure", lambda calls, repeats: [(5.0, 5.0, 5.0), (share * 5, share * 5, share * 5)])
    assert Choice("fp32").prefers_kernels(torch.randn(67, 13)) == preferred


def test_a_large_vocabulary_is_probed_on_a_part_of_its_outputs(monkeypatch):
    monkeypatch.setattr(probe, "PROBED_OUTPUTS", 31)
    seen = []
    monkeypatch.setattr(probe, "packed_as", lambda kind, weight, bias: seen.append(len(weight)))
    choice = Choice("fp32", measured=True)
    packed = choice.pack(torch.randn(67, 8), torch.zeros(67))
    assert seen == [31, 31, 67]
    assert packed.outputs == 67
    assert list(choice.kinds) == ["8×67"]


def test_long_calls_are_measured_in_one_round(monkeypatch):
    monkeypatch.setattr(probe, "SECONDS", 0.0)
    calls = []
    probe.measure(lambda rows: [lambda: calls.append(rows)], repeats=2)
    assert calls == [rows for rows in probe.ROWS for _ in range(2)]


def test_choices_are_cached_for_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "deep" / "cache"))
    assert load_choice("int8").kinds == {}
    assert save_choice(Choice("int8", {"7×13": "int8", "3×5": "fp32"}))
    assert save_choice(Choice("fp32", {"7×13": "fp32"}))
    assert load_choice("int8") == Choice("int8", {"7×13": "int8", "3×5": "fp32"})
    assert load_choice("bf16").kinds == {}
    assert [path.name for path in (tmp_path / "deep" / "cache").iterdir()] == ["engine.json"]
    # Under another limit on instructions it is another machine.
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert load_choice("int8").kinds == {}


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', '{"int8": 3}'])
def test_a_damaged_cache_is_ignored(tmp_path, monkeypatch, text):
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path))
    (tmp_path / "engine.json").write_text(text)
    assert load_choice("int8").kinds == {}
    save_choice(Choice("int8", {"7×13": "int8"}))
    kept = json.loads((tmp_path / "engine.json").read_text())
    (key,) = (name for name in kept if name.startswith("int8 "))
    kept[key]["3×5"] = "a kind of a later version"
    del kept["sha256"]  # as earlier versions wrote it
    (tmp_path / "engine.json").write_text(json.dumps(kept))
    assert load_choice("int8").kinds == {"7×13": "int8"}
    # Kinds must fit decoders or linear layers.
    sound = {"7×13": "fp32", "decoder 3×5, 1 heads, 2 layers": "torch"}
    save_choice(Choice("int8", {**sound, "3×5": "torch", "decoder 7×5, 1 heads, 2 layers": "int8"}))
    assert load_choice("int8").kinds == sound


def test_without_a_home_directory_choices_are_cached_for_the_process(monkeypatch):
    for name in ("TRANSLUME_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert save_choice(Choice("int8", {"7×13": "int8"}))
    assert load_choice("int8").kinds == {"7×13": "int8"}
    assert cache_folder() == cache_folder() == temporary_folder()


def test_a_full_disk_leaves_the_cache_unchanged_and_an_unwritable_one_is_no_error(tmp_path, monkeypatch, full_disk):
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path))
    assert save_choice(Choice("int8", {"7×13": "int8"}))
    with full_disk():
        assert not save_choice(Choice("int8", {"7×13": "fp32"}))
    assert load_choice("int8").kinds == {"7×13": "int8"}
    assert [path.name for path in tmp_path.iterdir()] == ["engine.json"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "file"))
    assert not save_choice(Choice("int8", {"7×13": "int8"}))
    assert load_choice("int8").kinds == {}
