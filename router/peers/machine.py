"""What a machine says of itself to its peers, and how that is read from one that nobody trusts."""

import base64
import hashlib
import math
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import orjson

from lmx.protocol.errors import ProtocolError
from lmx.protocol.wire.codec import from_map, to_map, untrimmed

PEER_STATE_PATH: Final = "/admin/peer"
MOST_BYTES: Final = 1024 * 1024
"""A longer answer of a peer is not read."""

_MOST_MODELS: Final = 500
_MOST_HASHES: Final = 6144
"""Of a model: all that its 256 conversations have."""
_MOST_HASHES_TOGETHER: Final = 64 * 1024
"""Of all models: as text they are two thirds of ``MOST_BYTES``."""
_MOST_COUNT: Final = 10**6
_MOST_BYTES_OF_MEMORY: Final = 2**50
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
"""A model's name, as the configuration has them."""
_PATH: Final = re.compile(r"[A-Za-z0-9._/~][A-Za-z0-9._:/@+~ -]{0,199}")
"""A model's name on another server, where it may also be the path of a folder or a file."""
_WORD: Final = re.compile(r"[a-z_]{1,40}")


@untrimmed
@dataclass(frozen=True, kw_only=True)
class OfferedModel:
    """A model of a machine."""

    model_id: str
    aliases: tuple[str, ...] = ()
    """Its other names."""
    kind: str | None = None
    """What it is for; null until its files are known."""
    state: str = "cold"
    """Where it is, as in GET /v1/models."""
    loaded: bool = False
    """Whether it takes requests now."""
    loads: bool = False
    """Whether it is being loaded."""
    available: bool = True
    """Whether a request for it has a chance, now or after a load."""
    rows: int = 1
    """How many sequences it computes at a time."""
    running: int = 0
    """How many requests for it are under way, those that wait among them."""
    needed_bytes: int | None = None
    """What a load would take; null until its files are known."""
    tokens_per_s: float | None = None
    """The speed of its last answer."""
    context_length: int | None = None
    capabilities: tuple[str, ...] = ()
    media: tuple[str, ...] = ()
    """What it takes besides text."""
    prefixes: str = ""
    """Which beginnings of conversations it has computed: hashes of eight bytes each, in Base64."""

    @cached_property
    def held(self) -> frozenset[int]:
        """Those hashes as numbers."""
        raw = base64.b64decode(self.prefixes)
        return frozenset(struct.unpack(f">{len(raw) // 8}Q", raw[: len(raw) // 8 * 8]))


@untrimmed
@dataclass(frozen=True, kw_only=True)
class MachineState:
    """What a machine says of itself, once a second to each of its peers."""

    machine: str
    """What it calls itself."""
    version: str
    free_bytes: int
    """How much of its memory budget is not reserved."""
    loads: bool
    """Whether it can load models now."""
    drained: bool
    """Whether it is to get no more requests of its peers."""
    digest: str
    """It differs if any `prefixes` does. A peer that names it gets them only if it differs."""
    models: tuple[OfferedModel, ...]
    budget_bytes: int = 0
    """Its memory budget; 0 for an earlier lmx, which does not say."""

    def model(self, name: str) -> OfferedModel | None:
        """Return the model with an id or an alias; None if there is none. An id wins."""
        found = next((one for one in self.models if one.model_id == name), None)
        return found or next((one for one in self.models if name in one.aliases), None)


def most_hashes(models: int) -> int:
    """Return how many hashes of each model are sent if so many models have any."""
    return min(_MOST_HASHES, _MOST_HASHES_TOGETHER // max(models, 1))


def digest_of(models: Collection[OfferedModel]) -> str:
    """Return the digest of all prefixes."""
    found = hashlib.sha256()
    for model in models:
        found.update(f"{model.model_id}\0{model.prefixes}\0".encode())
    return found.hexdigest()[:16]


def written(state: MachineState, known: str | None) -> dict[str, Any]:
    """Return a state as it is sent to a peer that knows the prefixes of the digest ``known``."""
    if known == state.digest:
        state = replace(state, models=tuple(replace(one, prefixes="") for one in state.models))
    return to_map(state)


def read_machine(payload: bytes, before: MachineState | None) -> MachineState:
    """Return the state that a peer sent. ``before`` is its state before that, which has the
    prefixes that are left out. Models with names that no model can have, and what is out of all
    proportion, are left out. Raises ``ValueError`` for anything else."""
    try:
        state = from_map(MachineState, orjson.loads(payload), "state")
    except ProtocolError as error:
        raise ValueError(error.message) from error
    models = tuple(_checked(one) for one in state.models[:_MOST_MODELS] if _is_named(one))
    if before is not None and before.digest == state.digest:
        known = {one.model_id: one.prefixes for one in before.models}
        models = tuple(replace(one, prefixes=known.get(one.model_id, "")) for one in models)
    return replace(
        state,
        machine=state.machine[:60],
        version=state.version[:60],
        free_bytes=_between(state.free_bytes, _MOST_BYTES_OF_MEMORY),
        budget_bytes=_between(state.budget_bytes, _MOST_BYTES_OF_MEMORY),
        digest=state.digest[:64],
        models=models,
    )


def _is_named(model: OfferedModel) -> bool:
    return _NAME.fullmatch(model.model_id) is not None


def _checked(model: OfferedModel) -> OfferedModel:
    """Return a model with numbers that can be, and short texts. Raises ``ValueError``."""
    speed = model.tokens_per_s
    raw = base64.b64decode(model.prefixes[: _MOST_HASHES * 11], validate=True)
    return replace(
        model,
        aliases=tuple(one for one in model.aliases[:50] if _NAME.fullmatch(one)),
        kind=model.kind if model.kind and _WORD.fullmatch(model.kind) else None,
        state=model.state if _WORD.fullmatch(model.state) else "cold",
        rows=max(1, _between(model.rows, _MOST_COUNT)),
        running=_between(model.running, _MOST_COUNT),
        needed_bytes=None
        if model.needed_bytes is None
        else _between(model.needed_bytes, _MOST_BYTES_OF_MEMORY),
        tokens_per_s=speed if speed is not None and math.isfinite(speed) and speed > 0 else None,
        context_length=None
        if model.context_length is None
        else _between(model.context_length, 10**9),
        capabilities=tuple(one for one in model.capabilities[:50] if _WORD.fullmatch(one)),
        media=tuple(one for one in model.media[:10] if _WORD.fullmatch(one)),
        prefixes=base64.b64encode(raw[: _MOST_HASHES * 8]).decode(),
    )


def _between(value: int, most: int) -> int:
    return min(max(value, 0), most)


def openai_state(name: str, payload: bytes) -> MachineState:
    """Return what the list of models of a server with OpenAI's API says of it: its models, which
    count as loaded, since nothing else is known of them. Raises ``ValueError``."""
    try:
        listed = orjson.loads(payload)["data"]
        ids = [entry["id"] for entry in listed if isinstance(entry["id"], str)]
    except (LookupError, TypeError) as error:
        raise ValueError("it is no list of models") from error
    models = tuple(
        OfferedModel(model_id=one, state="ready", loaded=True, rows=_ROWS_ELSEWHERE)
        for one in ids[:_MOST_MODELS]
        if _PATH.fullmatch(one)
    )
    return MachineState(
        machine=name, version="", free_bytes=0, loads=False, drained=False, digest="", models=models
    )


_ROWS_ELSEWHERE: Final = 4
"""How many requests another server is taken to answer at a time: it does not say."""
