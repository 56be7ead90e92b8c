"""What the router's tests have in common."""

from collections.abc import AsyncIterator

import pytest

from tests.support.rigs.router_rig import Rig, router_rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A router with one fake worker that simply answers."""
    async with router_rig() as one:
        yield one
