"""An lmx that the files here share whose tests leave it as it is."""

from collections.abc import Iterator

import pytest

from tests.support.rigs.rig import Rig, rig, scripted


@pytest.fixture(scope="package")
def server() -> Iterator[Rig]:
    """One model, ``alpha``, whose context holds the long prompts of some tests."""
    with rig({"models": [scripted("alpha", options={"context_length": 30_000})]}) as lmx:
        lmx.wait_state("alpha", "ready")
        yield lmx
