"""The wire format is what it was: golden bytes of every message."""

import dataclasses
import importlib
import pkgutil
from typing import Any

import pytest

import lmx.protocol
from lmx.protocol.wire.codec import decode, encode, registered
from tests.wire import samples


def test_every_message_has_exactly_one_sample_and_one_golden_file() -> None:
    # Every module of the protocol, so that a message in a new one is not overlooked.
    for module in pkgutil.iter_modules(lmx.protocol.__path__, "lmx.protocol."):
        importlib.import_module(module.name)
    kinds = sorted(registered())
    assert sorted(type(sample).__name__ for sample in samples.SAMPLES) == kinds
    assert sorted(path.stem for path in samples.GOLDEN.glob("*.bin")) == kinds


@pytest.mark.parametrize("sample", samples.SAMPLES, ids=lambda sample: type(sample).__name__)
def test_golden_bytes(sample: Any) -> None:
    golden = (samples.GOLDEN / f"{type(sample).__name__}.bin").read_bytes()
    assert encode(sample, samples.CORRELATION) == golden
    envelope = decode(golden)
    assert envelope.message == sample
    assert envelope.correlation == samples.CORRELATION


@pytest.mark.parametrize("sample", samples.SAMPLES, ids=lambda sample: type(sample).__name__)
def test_samples_leave_no_field_at_its_default(sample: Any) -> None:
    """A field at its default would hide that it is not carried."""
    for field in dataclasses.fields(sample):
        assert getattr(sample, field.name) != field.default, field.name
