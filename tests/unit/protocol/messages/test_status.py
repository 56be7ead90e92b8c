"""The status is printed whole, as its schema says, and peers of other versions understand it."""

import dataclasses
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from docs.make.status_schema import status_schema
from lmx.protocol.messages.control import WorkerBeat
from lmx.protocol.messages.snapshot import ModelCommon
from lmx.protocol.messages.status import ModelStatus, Status, SystemStatus, WorkerFigures
from lmx.protocol.states import ModelState, SlotState, WorkerState, model_state
from lmx.protocol.wire.codec import decode, encode, from_map, to_map
from tests.support.fakes.admin_lines import cold_line, last_exit, reported_status, status_line

STATUS = reported_status(status_line("a", last_exit=last_exit()), cold_line("b", kind=None))


def printed(status: SystemStatus) -> Any:
    return json.loads(json.dumps(to_map(status)))


def test_what_is_printed_is_as_the_schema_says() -> None:
    schema = status_schema()
    Draft202012Validator.check_schema(schema)
    check = Draft202012Validator(schema)
    assert list(check.iter_errors(printed(STATUS))) == []
    wrong = printed(STATUS)
    wrong["workers"][0]["state"] = "asleep"
    assert [list(error.path) for error in check.iter_errors(wrong)] == [["workers", 0, "state"]]


def test_a_map_has_every_key_also_of_what_is_at_its_default() -> None:
    schema = status_schema()
    reported = printed(STATUS)
    definitions = schema["$defs"]
    for name, found in (
        ("SupervisorStatus", reported["supervisor"]),
        ("RouterStatus", reported["router"]),
        ("ModelStatus", reported["workers"][1]),
    ):
        assert set(found) == set(definitions[name]["properties"]), name
        for key, value in definitions[name]["properties"].items():
            assert value["description"], f"{name}.{key} has no meaning"


def test_figures_stand_among_the_keys_of_their_model() -> None:
    line = printed(STATUS)["workers"][0]
    assert "figures" not in line
    assert {field.name for field in dataclasses.fields(WorkerFigures)} <= set(line)


def test_a_status_travels_as_it_is() -> None:
    assert decode(encode(Status(STATUS))).message.status == STATUS


def test_a_supervisor_of_another_version_is_understood() -> None:
    reported = printed(STATUS)
    reported["supervisor"] |= {"hard_line": 0.95, "unheard_of": 1}
    for key in ("url", "urls"):
        del reported["router"][key]
    for field in dataclasses.fields(WorkerFigures):
        del reported["workers"][0][field.name]
    found = from_map(SystemStatus, reported, "status")
    assert (found.router.url, found.router.urls) == (None, ())
    assert found.workers[0].figures == WorkerFigures()


def test_a_beat_of_an_earlier_worker_is_understood() -> None:
    """Its figures stood in the beat itself, as they still do on the wire."""
    beat = from_map(
        WorkerBeat,
        {
            "instance": "a", "state": "ready", "rows": 2, "queued": 1, "stalled_for_s": 0.5,
            "memory_bytes": 7, "requests_total": 3, "tokens_total": 9,
            "saved": {"prompt_tokens": 4},
        },
        "beat",
    )  # fmt: skip
    figures = WorkerFigures(memory_bytes=7, requests_total=3, tokens_total=9)
    assert beat == WorkerBeat("a", WorkerState.READY, 2, 1, 0.5, figures)


def test_an_earlier_supervisor_understands_a_beat() -> None:
    """What it needs is there also at 0."""
    reported = to_map(WorkerBeat("a", WorkerState.READY, 0, 0, 0.0, WorkerFigures(kv_bytes=5)))
    needed = {"rows", "queued", "stalled_for_s", "memory_bytes", "requests_total", "tokens_total"}
    assert needed <= set(reported)
    assert reported["kv_bytes"] == 5


@pytest.mark.parametrize("slot", list(SlotState))
@pytest.mark.parametrize("worker", [None, *WorkerState])
def test_every_state_has_a_word(slot: SlotState, worker: WorkerState | None) -> None:
    state = model_state(slot, worker)
    assert state in ModelState
    if worker is not None and worker is not WorkerState.EXITED:
        assert state.value == worker.value


def test_a_model_is_described_in_the_same_words_in_both() -> None:
    names = {field.name for field in dataclasses.fields(ModelCommon)}
    assert names < {field.name for field in dataclasses.fields(ModelStatus)}
