"""Attribution on a task whose correct alignment is known: words written backwards."""

import pytest
import torch

import translume


@pytest.mark.parametrize("method", ["occlusion", "occlusion-mask"])
def test_occlusion_finds_the_source_of_at_least_95_percent_of_the_letters(backwards, words, method):
    right = total = 0
    for word in words:
        trace = translume.trace(backwards, word, word[::-1], show=(method,))
        values = torch.tensor(trace.attributions[0].values)[: len(word), : len(word)]
        right += int((values.argmax(1) == torch.arange(len(word)).flip(0)).sum())
        total += len(word)
    assert right >= 0.95 * total, f"{right} of {total}"


def test_the_source_raises_the_probability_of_its_letters_above_the_prior(backwards, words):
    steps = [
        step
        for word in words
        for step in translume.trace(backwards, word, word[::-1], show=("prior",)).steps[: len(word)]
    ]
    assert sum(step.prior.gain > 0 for step in steps) >= 0.95 * len(steps)
    assert sum(step.prior.log_p for step in steps) / len(steps) < -2.0
