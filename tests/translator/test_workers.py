"""Processes return the same results in the same order as one, and errors name the line; so do actors of Ray."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from translume.checkpoint import save_model
from translume.errors import ModelFolderError, SettingsError, TranslationError
from translume.translator import ComputeOptions, Translator, load, workers
from translume.translator.planning import Line, LineError, numbered_lines
from translume.translator.results import Translation
from translume.translator.workers import RayPool, Workers, options_of, outcomes

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., Translator]
FAST = ComputeOptions(engine="fast", dtype="fp32", device="cpu", threads=1)
TOO_LONG = (
    "a sentence has 30 tokens, expected at most 16; "
    'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it'
)


@pytest.fixture(scope="module")
def saved(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Translator]:
    folder = tmp_path_factory.mktemp("model") / "model"
    translator = make("decoding.beam=2", max_positions=17)
    save_model(folder, translator.checkpoint)
    return folder, translator


@pytest.fixture(scope="module")
def pair(saved, warm_processes) -> Iterator[Workers]:
    """Two processes that several tests share, because starting them takes seconds."""
    with Workers.start(saved[0], 2, FAST) as pair:
        yield pair


def test_workers_return_the_translations_of_the_translator_in_order(saved, pair, monkeypatch):
    monkeypatch.setattr(workers, "LINES_PER_TASK", 3)
    _, translator = saved
    texts = ["abc", "", "hello you", "a b c d", "xyz.", "q"] * 4
    settings = translator.config.decoding
    found = list(pair.translate_all(iter(texts), settings))
    assert list(pair.translate_all([], settings)) == []
    wanted = list(translator.translate_all(texts, settings=settings))
    assert [each.text for each in found] == [each.text for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert [h.log_prob for h in one.hypotheses] == pytest.approx([h.log_prob for h in other.hypotheses], abs=1e-4)


def test_a_line_that_cannot_be_translated_is_named_after_all_lines_before_it(saved, pair, monkeypatch):
    monkeypatch.setattr(workers, "LINES_PER_TASK", 3)
    sources: list[str] = []
    translations = pair.translate_all(["a", "b", "c", "d", "e" * 30, "f"], saved[1].config.decoding)
    with pytest.raises(TranslationError) as caught:
        sources.extend(each.source for each in translations)
    assert sources == ["a", "b", "c", "d"]
    assert str(caught.value) == f"line 5: {TOO_LONG}"


def test_workers_score_targets_as_the_translator_does_and_name_those_that_they_cannot(saved, pair):
    _, translator = saved
    pairs = [("abc", "xy"), ("e" * 30, "x"), ("", ""), ("hello you", "abc")]
    lines = [(Line(number=n, text=source, target=target), 1) for n, (source, target) in enumerate(pairs, 1)]
    found = list(pair.run(Translator.score_lines, iter(lines), translator.config.decoding))
    assert str(found.pop(1)) == "line 2: the source has 31 tokens with EOS, expected at most 17"
    wanted = list(translator.score_all(pairs[:1] + pairs[2:]))
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)


def test_a_model_that_cannot_be_loaded_is_one_line(saved, tmp_path):
    with Workers.start(tmp_path, 1, FAST) as alone, pytest.raises(ModelFolderError, match=r"not a model folder"):
        list(alone.translate_all(["a"], saved[1].config.decoding))


def ending(model: object, lines: list[Line], settings: object) -> Iterator[Translation]:
    """Work that ends its process at some lines: at "kill" always, at "once FILE" unless the file exists."""
    for line in lines:
        kind, _, file = line.text.partition(" ")
        if kind == "kill" or (kind == "once" and not Path(file).exists()):
            Path(file or os.devnull).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield Translation(source=line.text, text=line.text.upper())


LOST = "a worker process ended in the middle of its work, perhaps because memory ran out"


def test_a_line_that_ends_its_process_twice_has_no_result_and_all_others_do(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "LINES_PER_TASK", 2)
    monkeypatch.chdir(tmp_path)
    texts = [f"t{number}" for number in range(12)]
    texts[2], texts[7] = f"once {tmp_path}/done", "kill"
    lines = [(Line(number=number, text=text), 1) for number, text in enumerate(texts, 1)]
    with Workers.start(saved[0], 2, FAST) as pair:
        found = [str(each) for each in pair.run(ending, lines, saved[1].config.decoding)]
    lost = {7: f"line 8: {LOST}"}
    assert found == [lost.get(number, text.upper()) for number, text in enumerate(texts)]


def test_processes_that_keep_ending_are_one_line(saved, monkeypatch):
    monkeypatch.setattr(workers, "MAX_LOSSES", 2)
    lines = [(Line(number=number, text="kill"), 1) for number in range(1, 9)]
    with Workers.start(saved[0], 1, FAST) as alone, pytest.raises(TranslationError) as caught:
        list(alone.run(ending, lines, saved[1].config.decoding))
    assert str(caught.value) == f"after line 0: {LOST}; try fewer --workers"


def test_workers_compute_as_the_loaded_model_does(saved):
    folder, translator = saved
    for engine, dtype in (("plain", "fp32"), ("plain", "bf16"), ("fast", "bf16"), ("fast", "int8")):
        model = load(folder, device="cpu", dtype=dtype, engine=engine)
        wanted = ComputeOptions(engine=engine, device="cpu", dtype=dtype, threads=1)
        assert options_of(model) == wanted
    assert options_of(translator.compile("int8")) == wanted


def test_lines_after_one_that_fails_are_translated_in_order():
    def upper(model: object, lines: list[Line], settings: object) -> Iterator[Translation]:
        for line in lines:
            if line.text == "bad":
                raise LineError(line, "too bad")
            yield Translation(source=line.text, text=line.text.upper())

    lines = [Line(number=n, text=text) for n, text in enumerate(["a", "bad", "b", "bad", "bad", "c"], 1)]
    found = [str(each) for each in outcomes(upper, None, None, lines)]
    assert found == ["A", "line 2: too bad", "B", "line 4: too bad", "line 5: too bad", "C"]

    read = 0

    def failing(model: object, lines: list[Line], settings: object) -> Iterator[Translation]:
        nonlocal read
        read += len(lines)
        raise LineError(lines[0], "too bad")

    assert len(list(outcomes(failing, None, None, lines * 100))) == 600
    assert read < 600 * 33  # not the square of the number of lines


@pytest.mark.slow  # takes 20 seconds
def test_actors_translate_in_order_survive_a_death_and_name_lines_that_fail(saved, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(workers, "LINES_PER_TASK", 20)
    folder, translator = saved
    settings = translator.config.decoding
    texts = ["abc", "", "hello you", "a b c d", "xyz.", "q"] * 99
    texts[7] = "e" * 30
    pool = RayPool("local", folder, 2, FAST)
    with Workers(pool) as actors:
        found = []
        for each in actors.run(Translator.translate_lines, numbered_lines(texts), settings):
            found.append(each)
            if len(found) == 1:
                ray.kill(pool._actors[0], no_restart=False)
        assert [str(each) for each in found if isinstance(each, LineError)] == [f"line 8: {TOO_LONG}"]
        wanted = translator.translate_all([text for text in texts if len(text) < 30], settings=settings)
        assert [each.text for each in found if not isinstance(each, LineError)] == [each.text for each in wanted]
    with Workers(RayPool("local", tmp_path, 1, FAST)) as actors, pytest.raises(ModelFolderError, match="not a model"):
        list(actors.run(Translator.translate_lines, numbered_lines(["a"]), settings))


def test_an_address_without_a_cluster_is_one_line(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(SettingsError) as caught:
        RayPool("127.0.0.1:1", tmp_path, 1, FAST)
    assert str(caught.value) == (
        "--ray 127.0.0.1:1: found no cluster, expected the address of one: [Errno 111] Connection refused"
    )
