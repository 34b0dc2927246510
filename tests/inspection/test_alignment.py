"""A task whose right alignment is known: every letter of a word written backwards comes from one place."""

import pytest
import torch

import translume


@pytest.mark.parametrize("method", ["occlusion", "occlusion-mask"])
def test_occlusion_finds_where_at_least_95_percent_of_the_letters_come_from(backwards, words, method):
    right = total = 0
    for word in words:
        trace = translume.trace(backwards, word, word[::-1], show=(method,))
        values = torch.tensor(trace.attributions[0].values)[: len(word), : len(word)]
        right += int((values.argmax(1) == torch.arange(len(word)).flip(0)).sum())
        total += len(word)
    assert right >= 0.95 * total, f"{right} of {total}"


def test_the_source_speaks_for_its_letters_and_the_prior_knows_none(backwards, words):
    steps = [
        step
        for word in words
        for step in translume.trace(backwards, word, word[::-1], show=("prior",)).steps[: len(word)]
    ]
    assert sum(step.prior.gain > 0 for step in steps) >= 0.95 * len(steps)
    assert sum(step.prior.log_p for step in steps) / len(steps) < -2.0
