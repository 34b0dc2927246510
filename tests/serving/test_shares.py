"""One client uses up neither the space for results, nor the queues, nor the event loop, which all share."""

import asyncio
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.serving.access.quotas import check_share
from translume.serving.api.body import parse_json
from translume.serving.api.errors import RequestError
from translume.serving.api.texts import RequestTexts
from translume.serving.files.jobs import Job, jobs_to_delete
from translume.serving.models import ServedModel
from translume.serving.settings import Limits

sizes = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=20)


@given(sizes, st.integers(50, 300))
def test_deletions_make_enough_room_and_never_touch_a_client_below_its_share(
    found: list[tuple[str, int]], most: int
) -> None:
    jobs = [
        Job(id=str(number), name="", suffix="", client=client, size=size, until=number)
        for number, (client, size) in enumerate(found)
    ]
    deleted = jobs_to_delete(jobs, lambda job: job.size, most)
    left = [job for job in jobs if job not in deleted]
    assert sum(job.size for job in left) <= most
    assert not deleted or sum(job.size for job in jobs) > most
    totals = Counter[str]()
    for job in jobs:
        totals[job.client] += job.size
    assert all(totals[job.client] * len(totals) > most for job in deleted)
    for client in "abc":
        own = [job in left for job in jobs if job.client == client]
        assert own == sorted(own)  # the oldest first


def test_a_client_has_three_quarters_of_a_queue() -> None:
    check_share(["a"] * 5, "a", 8, "files", 1)
    check_share(["a"] * 6, "b", 8, "files", 1)
    check_share([""] * 7, "", 8, "files", 1)
    with pytest.raises(RequestError, match=r"^6 of your files are waiting, expected at most 6; try later$"):
        check_share(["a"] * 6, "a", 8, "files", 1)
    with pytest.raises(RequestError, match=r"^8 files are waiting, expected at most 8; try later$") as raised:
        check_share(["a"] * 4 + ["b"] * 4, "c", 8, "files", 1)
    assert (raised.value.status, raised.value.code) == (503, "queue_full")
    with pytest.raises(RequestError):
        check_share(["a"], "b", 1, "files", 1)


@pytest.fixture(scope="module")
def roomy(start: Any, translator: Any) -> Any:
    """Return a server with the usual limits."""
    return start(ServedModel.from_model("en-de", translator))


MANY = {
    "keys": b"{" + b",".join(b'"%x":1' % i for i in range(90_000)) + b"}",
    "lists": b'{"text":[' + b",".join([b"[]"] * 300_000) + b"]}",
    "open lists": b"[" * 900_000,
    "strings": b'{"text":[' + b",".join([b'""'] * 300_000) + b"]}",
}


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/translate", "keys"), ("/translate", "lists"), ("/v2/translate", "strings"), ("/v1/translate", "open lists")],
)
def test_json_of_many_small_values_is_rejected_before_it_is_parsed(roomy: Any, path: str, name: str) -> None:
    answer = roomy.ask("POST", path, MANY[name], content_type="application/json")
    assert (answer.status, answer.json()["code"]) == (413, "too_many_values")
    assert answer.json()["error"] == "the body has more than 40,000 JSON strings, commas and brackets, expected fewer"


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner, max_size=6), max_leaves=20))
def test_json_is_parsed(value: Any) -> None:
    long = {"text": 'a "quoted" text, with [brackets], \\ and commas, ' * 1000, "rest": value}
    assert parse_json(json.dumps(long).encode()) == long
    assert parse_json(json.dumps(long, ensure_ascii=False).encode()) == long


HOSTILE = {
    "sentences": ("?! " * 6600,),
    "lines of one text": ("\n".join(["a b"] * 5000),),
    "lines of many texts": ("\n".join(["a b"] * 5000),) * 50,
    "sentences of many texts": ("?! " * 6600,) * 50,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_splitting_long_texts_delays_no_other_request(name: str) -> None:
    texts = RequestTexts(texts=HOSTILE[name], field="text", names=[], language="de")
    longest = 0.0  # in seconds of this process, which other processes do not change

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.process_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.process_time() - before)

    async def run() -> None:
        ticking = asyncio.ensure_future(tick())
        await asyncio.sleep(0.01)
        started = time.process_time()
        with pytest.raises(RequestError, match=r"^text: found [\d,]+ sentences, expected at most 1,024$"):
            await asyncio.to_thread(texts.split, Limits())
        assert time.process_time() - started < 1
        ticking.cancel()

    asyncio.run(run())
    assert longest < 0.2


def test_forms_with_many_fields_are_refused(live: Any) -> None:
    answer = live.ask("POST", "/translate", b"a=&" * 1000, content_type="application/x-www-form-urlencoded")
    assert (answer.status, answer.json()["error"]) == (400, "the form has more than 1,000 fields")


def test_an_inspection_queue_has_room_for_other_clients(live: Any) -> None:
    live.server.inspecting.extend(["127.0.0.1"] * 24)
    try:
        answer = live.post("/v1/inspect", text="a", show=[])
        assert (answer.status, answer.json()["code"]) == (503, "queue_full")
    finally:
        del live.server.inspecting[:24]
    assert live.post("/v1/inspect", text="a", show=[]).status == 200


def test_requests_whose_settings_take_long_to_check_do_not_delay_others(roomy: Any) -> None:
    """Each of the bans takes a tenth of a second; with a thread for each, the event loop waited for all of them."""
    bans = [f"{'ab ' * 650}x{number}" for number in range(15)]
    with ThreadPoolExecutor(len(bans)) as clients:
        asked = [clients.submit(roomy.post, "/v1/translate", text="a", ban=ban) for ban in bans]
        while not any(each.done() for each in asked):
            time.sleep(0.001)
        assert roomy.get("/health/live").status == 200
        assert sum(each.done() for each in asked) < len(bans) // 2
    assert {each.result().status for each in asked} <= {200, 503}
