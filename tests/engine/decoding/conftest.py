"""A model of real size for the tests of decoding that need one: its load takes four seconds."""

from pathlib import Path

import pytest

from tests.support.rigs.engine_rig import EngineRunner, spec_of


@pytest.fixture(scope="package")
def shared_real(smollm2_dir: Path) -> EngineRunner:
    """SmolLM2 in float32, without rows when a test begins."""
    return EngineRunner(spec_of(smollm2_dir))
