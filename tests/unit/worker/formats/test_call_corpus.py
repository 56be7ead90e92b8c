"""Calls as models write them: the texts of ``tests/data/calls``, read however they are cut.

``families`` has a file for each family with texts of its own; ``forms`` has the arguments that
families of one form share, which are put into the ``call`` of each. A case says what becomes of
its ``text``: the ``calls``, the ``content`` and the ``reasoning``. If it says nothing, the text is
no call and stays content. ``open``: the prompt has opened a thought. ``cut``: the text ends in the
call, so its arguments are as they came.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmx.worker.formats.families.table import FAMILIES
from tests.support.rigs.parsed_output import THINK, parse, tool

CORPUS = Path(__file__).parents[3] / "data" / "calls"
FILES = sorted((CORPUS / "families").glob("*.yaml"))
Case = Mapping[str, Any]


@functools.cache
def read(path: Path) -> Any:
    # libyaml's: half a second less for each process that collects the tests.
    return yaml.load(path.read_text("utf-8"), Loader=yaml.CSafeLoader)


TOOLS = [tool(name, **types) for name, types in read(CORPUS / "tools.yaml").items()]


def cases() -> Iterator[Any]:
    for path in FILES:
        family = read(path)
        own = family["cases"]
        shared = read(CORPUS / "forms" / f"{family['form']}.yaml") if "form" in family else []
        for case in (*own, *(framed(family, one) for one in shared)):
            yield pytest.param(path.stem, case, id=f"{path.stem}: {case['name']}")


def framed(family: Mapping[str, str], case: Case) -> Case:
    """Return the case of a form as one of a family."""
    arguments = case["arguments"]
    if isinstance(arguments, dict):
        arguments = "".join(
            family["argument"].replace("$key", key).replace("$value", value)
            for key, value in arguments.items()
        )
    arguments = arguments.replace("$q", family.get("quote", ""))
    text = family["call"].replace("$arguments", arguments)
    return {"text": text, "calls": [["note", case["meant"]]], "content": "", **case}


@pytest.mark.parametrize(("family", "case"), list(cases()))
def test_calls_as_models_write_them(family: str, case: Case) -> None:
    text = case["text"]
    kept = text if not case.keys() & {"calls", "content", "reasoning"} else ""
    for cuts in ([], None, [len(text) // 2]):
        parsed = parse(
            text,
            family,
            reasoning=THINK,
            thinking_open=case.get("open", False),
            tools=TOOLS,
            cuts=cuts,
        )
        calls = [
            [name, arguments if case.get("cut") else json.loads(arguments)]
            for name, arguments in parsed.calls
        ]
        assert calls == case.get("calls", [])
        assert parsed.reasoning == case.get("reasoning", "")
        if "left" in case:
            assert case["left"] in parsed.content
        else:
            assert parsed.content == case.get("content", kept)


def test_every_family_has_texts() -> None:
    assert {path.stem for path in FILES} == FAMILIES.keys()
