"""Several processes give what one gives, in its order, and say where they stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import pytest

from translume.checkpoint import save_model
from translume.errors import TranslationError
from translume.translator import Translator, Workers, load_translator
from translume.translator import workers as module

Make = Callable[..., Translator]


@pytest.fixture(scope="module")
def saved(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Translator]:
    folder = tmp_path_factory.mktemp("model") / "model"
    translator = make("decoding.beam=2", max_positions=17)
    save_model(folder, translator.checkpoint)
    return folder, translator


def test_workers_give_what_the_translator_gives_in_order(saved, monkeypatch):
    monkeypatch.setattr(module, "SHARE", 3)
    folder, translator = saved
    texts = ["abc", "", "hello you", "a b c d", "xyz.", "q"] * 4
    settings = translator.config.decoding
    with Workers(folder, 2, "fp32") as workers:
        found = list(workers.translate_all(iter(texts), settings))
        assert list(workers.translate_all([], settings)) == []
    wanted = list(translator.translate_all(texts, settings=settings))
    assert [each.text for each in found] == [each.text for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert [h.log_prob for h in one.hypotheses] == pytest.approx([h.log_prob for h in other.hypotheses], abs=1e-4)


def test_workers_load_the_model_in_the_dtype_that_they_are_told(saved):
    folder, _ = saved
    texts = ["abc", "hello you"]
    wanted = {}
    for dtype in ("fp32", "bf16"):
        translator = load_translator(folder, device="cpu", dtype=dtype)
        wanted[dtype] = [each.hypotheses[0].log_prob for each in translator.translate_all(texts)]
    with Workers(folder, 1, None, "bf16") as workers:
        found = [each.hypotheses[0].log_prob for each in workers.translate_all(texts, translator.config.decoding)]
    assert found == pytest.approx(wanted["bf16"], abs=1e-6)
    assert found != pytest.approx(wanted["fp32"], abs=1e-4)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_long_work_is_shared_after_a_while_and_gives_the_same_lines_and_errors(saved, monkeypatch, seconds):
    monkeypatch.setattr(module, "SHARE", 3)
    monkeypatch.setattr(module, "WORTH_WORKERS", seconds)
    folder, translator = saved
    settings, began = translator.config.decoding, []

    def workers() -> AbstractContextManager[Workers]:  # the same two for both: they take long to start
        if not began:
            began.append(processes.enter_context(Workers(folder, 2, None)))
        return nullcontext(began[0])

    texts = ["abc", "", "hello you", "a b c d", "xyz.", "q", "abc"]
    with ExitStack() as processes:
        found = [each.text for each in module.translate_shared(translator, workers, iter(texts), settings)]
        assert found == [each.text for each in translator.translate_all(texts, settings=settings)]
        assert len(began) == (1 if seconds == 0.0 else 0)
        assert list(module.translate_shared(translator, workers, [], settings)) == []
        sources: list[str] = []
        translations = module.translate_shared(translator, workers, ["a", "b", "c", "d", "e" * 30, "f"], settings)
        with pytest.raises(TranslationError) as caught:
            sources.extend(each.source for each in translations)
    assert sources == ["a", "b", "c", "d"]
    assert str(caught.value).startswith("line 5: a sentence has 30 tokens, wanted at most 16; ")


def test_a_line_that_cannot_be_translated_is_named_after_all_lines_before_it(saved, monkeypatch):
    monkeypatch.setattr(module, "SHARE", 3)
    folder, translator = saved
    found: list[str] = []
    with Workers(folder, 1) as workers:
        translations = workers.translate_all(["a", "b", "c", "d", "e" * 30, "f"], translator.config.decoding)
        with pytest.raises(TranslationError) as caught:
            found.extend(each.source for each in translations)
    assert found == ["a", "b", "c", "d"]
    assert str(caught.value) == (
        "line 5: a sentence has 30 tokens, wanted at most 16; "
        'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it'
    )


def test_a_worker_that_dies_ends_the_translation_in_one_line(saved):
    folder, translator = saved
    with Workers(folder, 1) as workers:
        list(workers.translate_all(["a"], translator.config.decoding))
        (process,) = workers._pool._processes
        os.kill(process, signal.SIGKILL)
        with pytest.raises(TranslationError) as caught:
            list(workers.translate_all(["a"] * 9, translator.config.decoding))
    assert str(caught.value) == (
        "a worker died after line 0, perhaps for want of memory, wanted it to go on; try fewer --workers"
    )


KILLED = """
import os, signal, sys
from translume.translator import Workers, load_translator

if __name__ == "__main__":
    settings = load_translator(sys.argv[1], device="cpu", dtype="fp32").config.decoding
    with Workers(sys.argv[1], 2) as workers:
        print([each.text for each in workers.translate_all(["abc"], settings)], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_leave_when_the_process_that_gives_the_work_is_killed(saved, tmp_path):
    folder, translator = saved
    (tmp_path / "killed.py").write_text(KILLED)
    source = str(Path(module.__file__).parents[2])
    done = subprocess.run(  # waits until nobody holds the pipe any more, workers neither
        [sys.executable, tmp_path / "killed.py", folder],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
        timeout=300,
        check=False,
    )
    wanted = [translator.translate("abc").text]
    assert (done.returncode, done.stdout.decode()) == (-signal.SIGKILL, f"{wanted}\n")


def test_processes_begin_without_ctrl_c_and_who_gives_the_work_keeps_it(saved, monkeypatch):
    folder, translator = saved
    before, masks = signal.pthread_sigmask(signal.SIG_BLOCK, []), []
    with Workers(folder, 1) as workers:
        submit = workers._pool.submit

        def told(*words):
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
            return submit(*words)

        monkeypatch.setattr(workers._pool, "submit", told)
        assert len(list(workers.translate_all(["abc"], translator.config.decoding))) == 1
    assert masks == [before | {signal.SIGINT}]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
