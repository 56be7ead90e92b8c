"""What the router's tests have in common."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest import mock

import certifi
import pytest

from tests.support.rigs.router_rig import Rig, router_rig


@pytest.fixture(scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the certificate of one authority."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    path = tmp_path_factory.mktemp("authorities") / "one.pem"
    path.write_text(first + end)
    return path


@pytest.fixture(scope="module", autouse=True)
def trusts_one_authority(one_authority: Path) -> Iterator[None]:
    """Nobody speaks TLS to a stranger here, and each client of an SDK, and each router with peers,
    would read the certificates of all authorities of the machine."""
    with mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(one_authority)}):
        yield


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A router with one fake worker that simply answers."""
    async with router_rig() as one:
        yield one
