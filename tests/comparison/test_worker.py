"""Training events sent to another process as JSON."""

import json
from pathlib import Path
from typing import get_args

import pytest

from translume.comparison.worker import EVENTS, event_from_dict, event_to_dict
from translume.data import Account, DataFile
from translume.data.pairs import Pair
from translume.training.events import (
    Event,
    Finished,
    Interrupted,
    Preparing,
    Progress,
    Resumed,
    Saved,
    Started,
    Validated,
    Warned,
)

PAIR = Pair(source="a\nb", target="ü", file="train.en", line=3)
ACCOUNT = Account(read=7, used=5, held_out=0, dropped={"empty": 2}, examples={"empty": PAIR})
EXAMPLES: list[Event] = [
    Preparing(what="tokenizer"),
    Started(
        update=0,
        updates=7,
        folder=Path("models/x"),
        training=ACCOUNT,
        validation=ACCOUNT,
        training_pairs=5,
        validation_pairs=5,
        source_vocabulary=11,
        target_vocabulary=13,
        parameters=17,
        trained_parameters=17,
        precision="fp32",
        device="cpu",
        threads=1,
        files=(DataFile(split="train", path="ü.en", size=9, digest="ab", pairs=5, weight=2.5),),
    ),
    Resumed(update=3, updates=7, folder=Path("models/x")),
    Warned(update=3, message="a\nb"),
    Progress(
        update=3,
        updates=7,
        epoch=1,
        loss=2.5,
        nll=None,
        tokens=19,
        tokens_per_second=23.5,
        learning_rate=1e-3,
        gradient_norm=0.5,
        seconds_left=1.5,
        logged=True,
    ),
    Validated(update=3, nll=2.25, metrics={"bleu": 35.5}, best=True, seconds=0.5),
    Saved(update=3, folder=Path("models/x")),
    Interrupted(update=3, signal="SIGINT", folder=Path("models/x")),
    Finished(
        update=7,
        reason="updates",
        kept="the weights after update 7",
        nll=2.25,
        metrics={"bleu": 35.5},
        best_update=7,
        folder=Path("models/x"),
        already=False,
    ),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_every_event_is_read_back_unchanged_from_json(event: Event) -> None:
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event


def test_every_kind_of_event_can_be_sent() -> None:
    assert set(EVENTS) == set(get_args(Event)) == {type(event) for event in EXAMPLES}


def test_other_values_are_not_events() -> None:
    assert event_from_dict({"event": "peak", "bytes": 1}) is None
    assert event_from_dict({}) is None
