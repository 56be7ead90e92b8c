"""What the API's description promises, asked of a whole lmx with the scripted engine."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.clients.api_operations import FAULTY_OPERATIONS, MODEL, OPERATIONS
from tests.support.rigs.rig import Rig, rig, scripted

pytestmark = pytest.mark.long

NOWHERE = "http://127.0.0.1:9"
"""A port that nothing listens on."""

API_KEY = "an-api-key-for-tests"
CONFIG = {
    "models": [scripted(MODEL), scripted("beta")],
    "server": {"load_wait_s": 3},
    "security": {"api_keys": [API_KEY]},
}


@pytest.fixture(scope="module")
def lmx() -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        # Downloads are asked for too, and must reach nobody.
        patch.setenv("HF_ENDPOINT", NOWHERE)
        with rig(CONFIG) as made:
            made.wait_state(MODEL, "ready")
            yield made


@pytest.fixture(scope="module")
def base_url(lmx: Rig) -> str:
    return lmx.url.removesuffix("/v1")


@pytest.fixture(scope="module")
def headers(lmx: Rig) -> dict[str, str]:
    admin_key = (lmx.home / "admin.key").read_text().strip()
    return {"X-Admin-Key": admin_key, "Authorization": f"Bearer {API_KEY}"}


Ask = Callable[[str, bool, int], None]


@pytest.fixture(scope="module")
def ask(base_url: str, headers: dict[str, str]) -> Ask:
    # Schemathesis takes seconds to import, and not all that collect this file run it.
    from schemathesis import GenerationMode

    from tests.support.clients.api_fuzz import fuzz

    def ask(operation: str, good: bool, examples: int) -> None:
        mode = GenerationMode.POSITIVE if good else GenerationMode.NEGATIVE
        fuzz(operation, mode, base_url, headers, examples)

    return ask


@pytest.mark.parametrize("operation", OPERATIONS)
def test_answers_are_as_described(operation: str, ask: Ask) -> None:
    ask(operation, True, 2)  # one of them with names and messages that are there


@pytest.mark.parametrize("operation", FAULTY_OPERATIONS)
def test_what_is_wrong_is_refused(operation: str, ask: Ask) -> None:
    ask(operation, False, 2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_it_stays_so(ask: Ask) -> None:
    for operation in OPERATIONS:
        ask(operation, True, 40)
    for operation in FAULTY_OPERATIONS:
        ask(operation, False, 40)
