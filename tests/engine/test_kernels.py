"""The compiled kernels reproduce the plain model, row by row, and are compiled and loaded safely."""

import copy
import gc
import os
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from translume.belief import BLOCK, BeliefError, Bias, Logits, maxima_and_sums
from translume.engine import EngineError, build_engine, self_test
from translume.engine.logits import REFINED_NATS, LogitRefiner
from translume.engine.logits import summarize_logits as summarize
from translume.engine.packing import PackedLinear
from translume.kernels import loading
from translume.kernels.loading import NativeError, has_kernels
from translume.model.layout import Layout

pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")


def summarize_logits(logits, refinement=None):
    """The statistics as `Logits` reads them."""
    return summarize(logits.numpy(), refinement).summary()


WHOLE = {"width": 96, "feed_forward": 48, "attention_heads": 3, "encoder_layers": 3, "decoder_layers": 2, "norm": "pre"}


@torch.no_grad()
def test_the_encoder_reproduces_the_plain_memory(fresh, sources, whole):
    model, engine = fresh(whole)
    source, mask = model.encoder.front(*sources(5, 23, 1, 17))
    layout = Layout.from_mask(mask)
    found = engine.encoder.encode(model.encoder.embed(source, layout).numpy(), mask.sum(1).numpy())
    torch.testing.assert_close(torch.from_numpy(found), model.encoder.packed(source, layout), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_a_sentence_has_the_same_numbers_alone_and_in_a_batch_bit_for_bit(fresh, whole, dtype):
    if dtype == "int8" and not loading.kernels().int8:
        pytest.skip("this processor has no int8 products")
    model, engine = fresh(whole, dtype)
    assert self_test(engine, model).alone_equals_batched


@torch.no_grad()
def test_many_tokens_are_read_at_once_as_one_by_one(fresh, sources):
    _, engine = fresh(WHOLE)
    target = torch.tensor([[1, 4, 6, 3, 9], [1, 9, 2, 8, 5]])
    block, state = engine.step(target, engine.start(*sources(5, 2)))
    single = engine.start(*sources(5, 2))
    for length in range(1, 6):
        one, single = engine.step(target[:, :length], single)
    torch.testing.assert_close(block.log_probs(), one.log_probs(), rtol=1e-5, atol=1e-5)
    assert state.position == single.position == 5


@torch.no_grad()
def test_the_kv_cache_is_fp16_unless_the_dtype_is_fp32(fresh, sources, whole):
    assert fresh(whole, "bf16")[1].decoder.cache_dtype == fresh(whole, "int8")[1].decoder.cache_dtype
    plain, halved = (fresh(whole)[1] for _ in range(2))
    halved.decoder.cache_dtype, halved._sources = fresh(whole, "bf16")[1].decoder.cache_dtype, None
    source, mask = sources(5, 2, 19)
    prefix = torch.tensor([[1, 4, 6, 3, 9]]).expand(3, -1)
    states = [engine.start(source, mask) for engine in (plain, halved)]
    cells = whole.get("decoder_mixing") == "ssru"
    halves = loading.kernels().fp16 and not cells
    assert [state.cache.past.dtype for state in states] == [np.float32, np.float16 if halves else np.float32]
    (one, _), (other, _) = (engine.step(prefix, state) for engine, state in zip((plain, halved), states, strict=True))
    difference = (one.log_probs() - other.log_probs()).abs().max()
    assert difference < (2e-2 if halves else 1e-4)  # a half is 2^-11 off at most, a bfloat16 would be 2^-8
    assert not halves or difference > 0


@torch.no_grad()
def test_values_beyond_fp16_are_clamped_in_the_cache(make, sources):
    model = make(**WHOLE)
    layer = next(iter(model.decoder.stack))
    for attention in (layer.self_attention.query_key_value, layer.cross_attention.key_value):
        attention.bias[-WHOLE["width"] :] = 1e6
    engine = build_engine(model, "bf16")
    state = engine.start(*sources(5, 2))
    belief, state = engine.step(torch.ones(2, 1, dtype=torch.long), state)
    assert belief.log_probs().isfinite().all()
    if loading.kernels().fp16:
        assert float(state.cache.past[1, :, :, 0].min()) == float(state.cache.cross[1, :, :, :2].min()) == 65504.0


@given(rows=st.integers(1, 5), size=st.sampled_from([1, 7, 128, 300, 1031]), spread=st.sampled_from([1.0, 19.0]))
def test_maxima_and_sums_equal_those_of_torch(rows, size, spread):
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(size)) * spread
    logits[:, size // 2 :] = logits[:, size // 2 :].round()  # some are equal
    found = summarize_logits(logits)
    for ours, wanted in zip(found[:2], maxima_and_sums(logits), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=2e-6, atol=0)
    assert torch.equal(found.first, logits.max(1, keepdim=True).indices)
    assert found.normaliser is not None
    torch.testing.assert_close(Logits(logits, found).log_probs(), logits.log_softmax(1), rtol=1e-5, atol=1e-5)
    for bias in (None, Bias.forbid(torch.arange(rows), found.first[:, 0])):
        if bias is not None and size == 1:
            continue
        fast, plain = Logits(logits, found).topk(1, bias), Logits(logits).topk(1, bias)
        assert torch.equal(fast.ids, plain.ids)
        torch.testing.assert_close(fast.ranks_by, plain.ranks_by, rtol=1e-5, atol=1e-5)


@given(rows=st.integers(1, 5), size=st.sampled_from([1, 7, 128, 300, 1031]), bias=st.booleans())
def test_logits_near_the_largest_are_refined_before_they_are_summarized(rows, size, bias):
    generator = torch.Generator().manual_seed(size + rows)
    weight, hidden = torch.randn(size, 32, generator=generator), torch.randn(rows, 32, generator=generator)
    shift = torch.randn(size, generator=generator) if bias else None
    exact = F.linear(hidden, weight, shift)
    coarse = exact + torch.randn(rows, size, generator=generator).clamp_(-2, 2) * 0.1
    logits = coarse.clone()
    refiner = LogitRefiner(weight.numpy(), None if shift is None else shift.numpy())
    found = summarize_logits(logits, refiner.inputs(hidden.numpy()))
    near = coarse >= coarse.amax(1, keepdim=True) - REFINED_NATS
    torch.testing.assert_close(logits[near], exact[near], rtol=1e-5, atol=1e-5)
    assert torch.equal(logits[~near], coarse[~near])
    assert torch.equal(logits.argmax(1), exact.argmax(1))  # 0.4 is the most that noise can part two by
    for ours, wanted in zip(found[:2], maxima_and_sums(logits), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=2e-5, atol=0)
    assert torch.equal(found.first, logits.max(1, keepdim=True).indices)


@torch.no_grad()
def test_int8_does_not_reorder_the_likeliest_tokens(make, sources):
    if not loading.kernels().int8:
        pytest.skip("this processor has no int8 products")
    model = make(**WHOLE)
    engine = build_engine(model, "int8")
    (source, mask), target = sources(5, 2), torch.tensor([[1, 4, 6], [1, 9, 2]])
    hidden = torch.from_numpy(engine.read(target.numpy(), engine.start(source, mask))[0])
    for place in range(target.size(1)):
        belief, _ = engine.step(target[:, : place + 1], engine.start(source, mask))
        wanted = F.linear(hidden[:, place], model.head.weight, model.head.bias)
        best = wanted.max(1, keepdim=True)
        assert torch.equal(belief.topk(1).ids, best.indices)
        torch.testing.assert_close(belief._logits.gather(1, best.indices), best.values)


def test_maxima_show_a_nan_and_sums_ignore_impossible_tokens():
    logits = torch.zeros(3, 2 * BLOCK)
    logits[1, 200], logits[2, 3:] = float("nan"), -float("inf")
    maxima, sums, _, normaliser = summarize_logits(logits)
    assert normaliser is None
    assert maxima[1].isnan().any()
    assert sums[[0, 2], 0].tolist() == [2 * BLOCK, 3]
    assert maxima[2].tolist() == [0, -float("inf")]


@given(count=st.integers(1, 29), row=st.integers(0, 28))
@torch.inference_mode()
def test_a_row_of_a_product_does_not_depend_on_the_others(count, row):
    generator = torch.Generator().manual_seed(count)
    weight, bias, rows = (torch.randn(*shape, generator=generator).numpy() for shape in ((71, 37), (71,), (29, 37)))
    linear = PackedLinear(PackedLinear.pack(weight, bias))
    assert np.array_equal(linear(rows)[row % count], linear(rows[:count])[row % count])
    assert np.array_equal(linear(rows)[row], linear(rows[row]))


def test_a_model_that_the_kernels_do_not_support_has_no_engine(make, sources):
    ssru = {"decoder_mixing": "ssru", "attention_heads": 4}  # its cells fill the heads of a cache
    for name, found, changes in (("width", 24, {}), ("feed_forward", 17, {}), ("head_width", 24, ssru)):
        model, reason = (
            make(**{**WHOLE, name: found, **changes}),
            f"model.{name}: found {found}, the kernels need a multiple of 16",
        )
        with pytest.raises(EngineError) as caught:
            build_engine(model)
        assert str(caught.value) == f"engine: {reason}"
    for tie in ("all", "target"):
        with pytest.raises(EngineError) as caught:
            build_engine(make(**WHOLE, head={"kind": "adaptive", "tie": tie}))
        assert str(caught.value) == "engine: model.head.tie: the kernels have no embedding in bands"


def test_more_positions_than_the_tables_have_are_refused(make, sources):
    engine = build_engine(make(**WHOLE, positions="relative"))
    for run in (
        lambda: engine.step(torch.ones(1, 80, dtype=torch.long), engine.start(*sources(5))),
        lambda: engine.start(*sources(80)),
    ):
        with pytest.raises(ValueError, match=r"^found 80 positions, expected at most model.max_positions, 79$"):
            run()


@pytest.fixture
def loaded_anew():
    """Load the kernels again in a test, and after it."""
    loading.load_once.cache_clear()
    yield
    loading.load_once.cache_clear()


@pytest.mark.usefixtures("loaded_anew")
def test_a_failing_compiler_is_reported_and_leaves_no_files(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] || { echo 'layers.c:1: no such thing' >&2; exit 3; }\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "cache"))
    with pytest.raises(NativeError) as caught:
        loading.kernels()
    assert str(caught.value) == f"{broken} failed: layers.c:1: no such thing"
    assert list((tmp_path / "cache" / "native").iterdir()) == []


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_packages_contain_the_c_sources(target):
    builders = pytest.importorskip(f"hatchling.builders.{target}", reason="hatchling is not installed")
    root = Path(__file__).parents[2]
    builder = {"wheel": "WheelBuilder", "sdist": "SdistBuilder"}[target]
    held = {Path(each.path) for each in getattr(builders, builder)(str(root)).recurse_included_files()}
    folder = root / "src" / "translume" / "kernels"
    assert {path.name for path in folder.iterdir() if path.suffix in (".c", ".h")} == {*loading.SOURCES, "web.c"}
    assert {folder / name for name in (*loading.SOURCES, "web.c")} <= held


@pytest.mark.usefixtures("loaded_anew")
def test_nothing_is_compiled_with_translume_native_0(make, monkeypatch):
    monkeypatch.setenv("TRANSLUME_NATIVE", "0")
    with pytest.raises(EngineError) as caught:
        build_engine(make(**WHOLE))
    assert str(caught.value) == "engine: TRANSLUME_NATIVE is 0"


@pytest.fixture(scope="module")
def libraries():
    """The compiled libraries of this module by their commands, since each takes seconds."""
    return {}


@pytest.fixture
def compiled(tmp_path, monkeypatch, libraries, loaded_anew):
    """Return the commands that compile kernels into an empty cache. They do not optimise, and each runs once."""
    calls, run = [], subprocess.run

    def recorded(command, **how):
        calls.append(command)
        if "-shared" not in command:
            return run(command, **how)
        place = command.index("-o") + 1
        target, words = Path(command[place]), (*command[:place], *command[place + 1 :])
        if words not in libraries:
            done = run(["-O0" if word == "-O2" else word for word in command], **how)
            assert done.returncode == 0, done.stderr
            libraries[words] = target.read_bytes()
        target.write_bytes(libraries[words])
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", recorded)
    return calls


def test_a_compiled_library_is_reused_except_from_a_folder_that_others_can_write_to(tmp_path, compiled):
    folder = tmp_path / "native"
    for expected in (1, 0):
        loading.load_once.cache_clear()
        compiled.clear()
        loading.kernels()
        assert sum("-shared" in command for command in compiled) == expected
        assert [stat.S_IMODE(each.stat().st_mode) & 0o022 for each in folder.iterdir()] == [0]
    os.chmod(folder, 0o777)
    loading.load_once.cache_clear()
    loading.temporary_folder.cache_clear()
    compiled.clear()
    loading.kernels()
    assert sum("-shared" in command for command in compiled) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("damaged", [lambda content: content[:100], lambda content: content[:-1] + b"x"])
def test_a_damaged_library_is_compiled_again(tmp_path, damaged):
    loading.load_once.cache_clear()
    loading.kernels()
    (path,) = (tmp_path / "native").iterdir()
    copy = tmp_path / "copy"
    path.rename(copy)
    path.write_bytes(damaged(copy.read_bytes()))
    loading.load_once.cache_clear()
    assert loading.kernels().panel > 0
    assert path.read_bytes() == copy.read_bytes()


@torch.no_grad()
def test_a_nan_in_the_weights_is_reported(make, sources):
    for dtype in ("fp32", "int8") if loading.kernels().int8 else ("fp32",):
        model = make(**WHOLE)
        next(iter(model.decoder.stack)).feed_forward.inner.weight[3, 5] = float("nan")
        engine = build_engine(model, dtype)
        belief, _ = engine.step(torch.ones(2, 1, dtype=torch.long), engine.start(*sources(5, 2)))
        with pytest.raises(BeliefError):
            belief.topk(3)


@torch.no_grad()
def test_a_copy_of_an_engine_outlives_it(fresh, sources):
    _, engine = fresh(WHOLE)
    prefix, (source, mask) = torch.ones(2, 1, dtype=torch.long), sources(5, 2)
    wanted, _ = engine.step(prefix, engine.start(source, mask))
    twin = copy.deepcopy(engine)
    del engine
    gc.collect()
    found, _ = twin.step(prefix, twin.start(source, mask))
    assert torch.equal(found.log_probs(), wanted.log_probs())


def test_a_model_that_is_not_fp32_has_no_engine(make):
    with pytest.raises(EngineError) as caught:
        build_engine(make(**WHOLE).bfloat16())
    assert str(caught.value) == (
        "engine: found a model in torch.bfloat16, expected torch.float32 (load it with dtype fp32)"
    )


def test_a_row_with_large_logits_does_not_change_the_others():
    logits = torch.randn(53, 1009, generator=torch.Generator().manual_seed(3)) * 7
    for far in (88.5, 1e2, 266.2, -1e4, 1e30):
        rows = torch.cat([logits, logits[:1] + far])
        alone, beside = (Logits(each, summarize_logits(each)).log_probs() for each in (logits, rows))
        assert torch.equal(alone, beside[:-1])
        torch.testing.assert_close(beside[-1], rows[-1].double().log_softmax(0).float(), rtol=1e-5, atol=1e-5)


def test_a_row_with_an_infinity_has_no_normaliser():
    logits = torch.randn(3, 101)
    logits[1, 97] = float("inf")
    assert summarize_logits(logits).normaliser is None
