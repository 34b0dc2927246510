"""Several worker processes return the same translations in the same order as one, and errors name the line."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from translume.checkpoint import save_model
from translume.errors import ModelFolderError, TranslationError
from translume.translator import Translator, Workers, load_translator
from translume.translator import workers as module
from translume.translator.jobs import SCORE
from translume.translator.planning import Line

Make = Callable[..., Translator]
pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture(scope="module")
def saved(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Translator]:
    folder = tmp_path_factory.mktemp("model") / "model"
    translator = make("decoding.beam=2", max_positions=17)
    save_model(folder, translator.checkpoint)
    return folder, translator


@pytest.fixture(scope="module")
def pair(saved, warm_processes) -> Iterator[Workers]:
    """Return two workers that several tests share, because starting them takes seconds."""
    with Workers(saved[0], 2, "fp32") as workers:
        yield workers


def test_workers_return_the_translations_of_the_translator_in_order(saved, pair, monkeypatch):
    monkeypatch.setattr(module, "LINES_PER_REQUEST", 3)
    _, translator = saved
    texts = ["abc", "", "hello you", "a b c d", "xyz.", "q"] * 4
    settings = translator.config.decoding
    found = list(pair.translate_all(iter(texts), settings))
    assert list(pair.translate_all([], settings)) == []
    wanted = list(translator.translate_all(texts, settings=settings))
    assert [each.text for each in found] == [each.text for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert [h.log_prob for h in one.hypotheses] == pytest.approx([h.log_prob for h in other.hypotheses], abs=1e-4)


def test_workers_load_the_model_in_the_given_dtype(saved):
    folder, _ = saved
    texts = ["abc", "hello you"]
    wanted = {}
    for dtype in ("fp32", "bf16"):
        translator = load_translator(folder, device="cpu", dtype=dtype, engine="plain")
        wanted[dtype] = [each.hypotheses[0].log_prob for each in translator.translate_all(texts)]
    with Workers(folder, 1, None, "bf16") as workers:
        found = [each.hypotheses[0].log_prob for each in workers.translate_all(texts, translator.config.decoding)]
    assert found == pytest.approx(wanted["bf16"], abs=1e-6)
    assert found != pytest.approx(wanted["fp32"], abs=1e-4)


def test_workers_score_targets_as_the_translator_does_and_name_those_that_they_cannot(saved, pair):
    _, translator = saved
    pairs = [("abc", "xy"), ("e" * 30, "x"), ("", ""), ("hello you", "abc")]
    lines = [(Line(number=n, text=source, target=target), 1) for n, (source, target) in enumerate(pairs, 1)]
    found = list(pair.outcomes(SCORE, iter(lines), translator.config.decoding))
    assert str(found.pop(1)) == "line 2: the source has 31 tokens with its end mark, expected at most 17"
    wanted = list(translator.score_all(pairs[:1] + pairs[2:]))
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_workers_started_later_give_the_same_lines_and_errors(saved, pair, monkeypatch, seconds):
    monkeypatch.setattr(module, "LINES_PER_REQUEST", 3)
    monkeypatch.setattr(module, "START_WORKERS_SECONDS", seconds)
    _, translator = saved
    settings, began = translator.config.decoding, []

    def workers() -> AbstractContextManager[Workers]:
        began.append(pair)
        return nullcontext(pair)

    texts = ["abc", "", "hello you", "a b c d", "xyz.", "q", "abc"]
    found = [each.text for each in module.translate_with_workers(translator, workers, iter(texts), settings)]
    assert found == [each.text for each in translator.translate_all(texts, settings=settings)]
    assert len(began) == (1 if seconds == 0.0 else 0)
    assert list(module.translate_with_workers(translator, workers, [], settings)) == []
    sources: list[str] = []
    translations = module.translate_with_workers(translator, workers, ["a", "b", "c", "d", "e" * 30, "f"], settings)
    with pytest.raises(TranslationError) as caught:
        sources.extend(each.source for each in translations)
    assert sources == ["a", "b", "c", "d"]
    assert str(caught.value).startswith("line 5: a sentence has 30 tokens, expected at most 16; ")


def test_a_line_that_cannot_be_translated_is_named_after_all_lines_before_it(saved, pair, monkeypatch):
    monkeypatch.setattr(module, "LINES_PER_REQUEST", 3)
    _, translator = saved
    found: list[str] = []
    translations = pair.translate_all(["a", "b", "c", "d", "e" * 30, "f"], translator.config.decoding)
    with pytest.raises(TranslationError) as caught:
        found.extend(each.source for each in translations)
    assert found == ["a", "b", "c", "d"]
    assert str(caught.value) == (
        "line 5: a sentence has 30 tokens, expected at most 16; "
        'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it'
    )


def test_a_worker_that_dies_gives_a_one_line_error(saved):
    folder, translator = saved
    with Workers(folder, 1) as workers:
        list(workers.translate_all(["a"], translator.config.decoding))
        os.kill(workers.pids[0], signal.SIGKILL)
        with pytest.raises(TranslationError) as caught:
            list(workers.translate_all(["a"] * 9, translator.config.decoding))
    assert str(caught.value) == (
        "after line 0: a worker process ended in the middle of its work, perhaps because memory ran out; "
        "try fewer --workers"
    )


KILLED = """
import os, signal, sys
from translume.translator import Workers, load_translator

if __name__ == "__main__":
    settings = load_translator(sys.argv[1], device="cpu", dtype="fp32").config.decoding
    with Workers(sys.argv[1], 1) as workers:
        print([each.text for each in workers.translate_all(["abc"], settings)], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_exit_when_their_parent_is_killed(saved, tmp_path):
    folder, translator = saved
    (tmp_path / "killed.py").write_text(KILLED)
    source = str(Path(module.__file__).parents[2])
    done = subprocess.run(  # returns when no process holds the pipes; workers hold stderr
        [sys.executable, tmp_path / "killed.py", folder],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=300,
        check=False,
    )
    wanted = [translator.translate("abc").text]
    assert (done.returncode, done.stdout.decode()) == (-signal.SIGKILL, f"{wanted}\n")


def test_a_worker_that_hangs_is_killed_and_gives_a_one_line_error(saved, monkeypatch):
    folder, translator = saved
    with Workers(folder, 1) as workers:
        list(workers.translate_all(["a"], translator.config.decoding))
        monkeypatch.setattr(module, "HANG_TIMEOUT_SECONDS", 0.5)
        os.kill(workers.pids[0], signal.SIGSTOP)
        with pytest.raises(TranslationError, match=r"^after line 0: a worker process did not respond for 0.5 s, "):
            list(workers.translate_all(["a"], translator.config.decoding))


def test_ctrl_c_reaches_only_the_parent(saved, pair):
    _, translator = saved
    list(pair.translate_all(["a"], translator.config.decoding))
    for pid in pair.pids:
        assert os.getpgid(pid) == pid
        os.kill(pid, signal.SIGINT)
    assert len(list(pair.translate_all(["abc"] * 4, translator.config.decoding))) == 4


def test_a_model_that_cannot_be_loaded_gives_the_original_error(saved, tmp_path):
    _, translator = saved
    with Workers(tmp_path, 1) as workers, pytest.raises(ModelFolderError, match=r"not a model folder"):
        list(workers.translate_all(["a"], translator.config.decoding))
