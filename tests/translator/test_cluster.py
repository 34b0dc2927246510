"""Actors of a Ray cluster translate as the translator does, and again after the death of one. Takes 20 seconds."""

import os
import signal

import pytest

from translume.checkpoint import save_model
from translume.errors import ModelFolderError, SettingsError
from translume.translator.cluster import RayWorkers
from translume.translator.jobs import TRANSLATE
from translume.translator.planning import LineError, numbered_lines


@pytest.mark.slow
def test_actors_translate_in_order_survive_a_death_and_name_lines_that_fail(make, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    translator = make("decoding.beam=2", max_positions=17)
    settings = translator.config.decoding
    save_model(tmp_path / "model", translator.checkpoint)
    texts = ["abc", "", "hello you", "a b c d", "xyz.", "q"] * 99
    texts[7] = "e" * 30
    with RayWorkers("local", tmp_path / "model", 2, "fp32") as actors:
        (killed, _) = actors.pids
        found = []
        for each in actors.outcomes(TRANSLATE, numbered_lines(texts), settings):
            found.append(each)
            if len(found) == 1:
                os.kill(killed, signal.SIGKILL)
        failed = [each for each in found if isinstance(each, LineError)]
        assert [str(each) for each in failed] == [
            "line 8: a sentence has 30 tokens, expected at most 16; "
            'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it'
        ]
        wanted = translator.translate_all([text for text in texts if len(text) < 30], settings=settings)
        assert [each.text for each in found if not isinstance(each, LineError)] == [each.text for each in wanted]
        assert killed not in actors.pids
    with RayWorkers("local", tmp_path, 1) as actors, pytest.raises(ModelFolderError, match="not a model folder"):
        list(actors.outcomes(TRANSLATE, numbered_lines(["a"]), settings))


def test_an_address_without_a_cluster_is_one_line(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(SettingsError) as caught:
        RayWorkers("127.0.0.1:1", tmp_path, 1)
    assert str(caught.value) == (
        "--ray 127.0.0.1:1: found no cluster, expected the address of one: [Errno 111] Connection refused"
    )
