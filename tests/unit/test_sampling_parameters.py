"""A parameter of sampling is defined once: requests, configuration and worker have all of them,
with the same range."""

from dataclasses import fields
from typing import Any

import pytest
from pydantic import TypeAdapter

from lmx.protocol.messages.data import Sampling
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.models.sampling import PARAMETERS, Parameter
from lmx.router.schema.requests.sampling import SamplingFields
from lmx.supervisor.config.model import ModelConfig
from lmx.worker.engine.values import SequenceSampling


def described(schema: type[Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = TypeAdapter(schema).json_schema()["properties"][name]
    return found


def number(schema: dict[str, Any]) -> dict[str, Any]:
    """The part of a field's schema that is not null."""
    return {**next(one for one in schema["anyOf"] if one["type"] != "null")}


@pytest.mark.parametrize(("name", "known"), PARAMETERS.items())
def test_it_is_the_same_in_requests_and_in_the_configuration(name: str, known: Parameter) -> None:
    request, config = described(SamplingFields, name), described(ModelConfig, name)
    assert number(request) == number(config)
    lower = "exclusiveMinimum" if known.above_least else "minimum"
    assert number(request)[lower] == known.least
    assert number(request)["maximum"] == known.most
    assert known.meaning in request["description"]
    assert known.meaning in config["description"]
    assert f"{known.default:g}" in request["description"]


@pytest.mark.parametrize("name", PARAMETERS)
def test_it_travels_to_the_worker_and_to_the_row(name: str) -> None:
    for carrier in (Sampling, WorkerSpec, SequenceSampling):
        assert name in {field.name for field in fields(carrier)}, carrier
