"""The stored keys: what adding, rotating and revoking make of them, and their file."""

import errno
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.keys import (
    AddKey,
    ApiKey,
    DayBudget,
    KeyFamily,
    Keyring,
    KeyScope,
    RateLimits,
    RevokeKey,
    RotateKey,
    secret_digest,
)
from lmx.supervisor.config.schema import KEYS_KEPT, Config
from lmx.supervisor.keys.changes import added, revoked, rotated, view
from lmx.supervisor.keys.file import KeyFile, StoredKeys
from lmx.supervisor.keys.keys import Keys
from lmx.supervisor.keys.notices import key_notices
from lmx.supervisor.state import state_file

CONFIGURED = ApiKey.of_secret("a-key-of-the-configuration", "home")


class Made:
    """The keys of a folder, and what was said of them."""

    def __init__(self, folder: Path, closed: bool = False) -> None:
        self.path = folder / "keys.json"
        self.said: list[str] = []
        self.configured: tuple[ApiKey, ...] = ()
        file = KeyFile(self.path, self.said.append)
        self.keys = Keys(file, lambda: self.configured, lambda: closed, self.note)

    def note(self, name: str, detail: str) -> None:
        self.said.append(f"{name}: {detail}")


def valid_digests(key: ApiKey, now_s: float) -> set[str]:
    return {digest for digest, until_s in key.digests() if now_s < until_s}


def test_the_key_of_this_machine_is_in_no_list_and_no_file_and_closes_nothing(
    tmp_path: Path,
) -> None:
    made = Made(tmp_path)
    assert made.keys.local().secret == ""
    assert made.keys.ring == Keyring.of(())
    made.keys.add(AddKey(name="ci"))
    secret = made.keys.local().secret
    assert made.keys.local().secret == secret, "one for as long as the supervisor runs"
    _, key = made.keys.ring.keys
    assert key.digest == secret_digest(secret)
    assert (key.scopes, key.shown_name) == ((KeyScope.INFERENCE,), "this machine")
    assert [one.name for one in made.keys.list().keys] == ["ci"]
    text = made.path.read_text()
    assert secret not in text
    assert key.digest not in text
    assert refused(lambda: made.keys.revoke(RevokeKey("this machine")))[0] is ErrorCode.NOT_FOUND
    assert "need none now" in made.keys.revoke(RevokeKey("ci")).message
    assert made.keys.ring == Keyring.of(()), "what is open stays open"
    closed = Made(tmp_path, closed=True).keys
    assert closed.local().secret != secret
    assert len(closed.ring.keys) == 1


@pytest.mark.parametrize(
    ("scopes", "closed", "protected"),
    [
        ((KeyScope.INFERENCE,), False, True),
        ((KeyScope.METRICS,), False, False),
        ((), False, False),
        ((), True, True),
    ],
)
def test_a_keyring_knows_whether_models_need_a_key(
    scopes: tuple[KeyScope, ...], closed: bool, protected: bool
) -> None:
    keys = tuple(ApiKey.of_secret("k" * 16, scopes=(scope,)) for scope in scopes)
    ring = Keyring.of(keys, required=closed)
    assert ring.protects_models is protected


def test_two_keys_of_one_name_and_none_where_others_come_are_noticed() -> None:
    def notices(text: dict[str, Any], *stored: str) -> list[str]:
        keys = [ApiKey.of_secret(f"the-secret-of-{name}", name) for name in stored]
        config = Config.model_validate(text, context=KEYS_KEPT)
        return key_notices(config, keys)

    lan = {"server": {"host": "0.0.0.0"}}
    both = {"security": {"api_keys": [{"key": "a-key-of-the-configuration", "name": "home"}]}}
    assert notices({}) == notices({}, "ci") == notices(lan, "ci") == notices(both, "ci") == []
    assert notices(lan | both) == []
    (same,) = notices(both, "ci", "home")
    assert "two keys have the name 'home'" in same
    assert "lmx key revoke home" in same
    (closed,) = notices(lan)
    assert "0.0.0.0 can be reached by others" in closed
    assert "lmx key add NAME" in closed
    assert notices({"server": {"cors_origins": ["http://localhost:*"]}}) == []
    for server in ({"allowed_hosts": ["lmx.example.com"]}, {"cors_origins": "*"}):
        (open_to_others,) = notices({"server": server})
        assert "others may ask" in open_to_others
        assert notices({"server": server}, "ci") == []


def refused(act: Callable[[], Any]) -> tuple[ErrorCode, str | None]:
    with pytest.raises(LmxError) as caught:
        act()
    return caught.value.code, caught.value.param


def test_a_key_is_made_rotated_and_revoked_and_no_secret_is_kept(tmp_path: Path) -> None:
    made = Made(tmp_path)
    first = made.keys.add(AddKey(name="ci", models=("qwen3-*",)))
    assert first.secret.startswith("sk-lmx-")
    assert len(first.secret) > 40
    (key,) = made.keys.ring.keys
    assert (key.name, key.digest) == ("ci", secret_digest(first.secret))
    digest = made.keys.ring.digest
    again = made.keys.rotate(RotateKey("ci", 3600.0))
    (rotated_key,) = made.keys.ring.keys
    assert made.keys.ring.digest != digest
    assert rotated_key.owner == key.owner, "its jobs and prefixes stay its own"
    assert rotated_key.allows("qwen3-8b")
    assert not rotated_key.allows("llama")
    now_s = (key.created_at_s or 0.0) + 1
    both = {secret_digest(again.secret), secret_digest(first.secret)}
    assert valid_digests(rotated_key, now_s) == both
    assert valid_digests(rotated_key, now_s + 3700) == {secret_digest(again.secret)}
    text = made.path.read_text()
    shown = repr((made.keys.ring, made.keys.list(), first, made.said))
    for hidden in (first.secret, again.secret):
        assert hidden not in text
        assert hidden not in shown
    for digest in both:
        assert digest not in shown
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    # Another supervisor knows the same.
    assert Made(tmp_path).keys.ring == made.keys.ring
    assert "need none now" in made.keys.revoke(RevokeKey("ci")).message
    assert made.keys.ring.keys == ()
    assert not made.keys.ring.required
    assert [line.split(":")[0] for line in made.said] == ["key.added", "key.rotated", "key.revoked"]
    assert refused(lambda: made.keys.revoke(RevokeKey("ci")))[0] is ErrorCode.NOT_FOUND


def test_keys_of_the_configuration_are_changed_there_alone(tmp_path: Path) -> None:
    made = Made(tmp_path, closed=True)
    made.configured = (CONFIGURED,)
    assert refused(lambda: made.keys.add(AddKey(name="home")))[0] is ErrorCode.KEY_EXISTS
    assert refused(lambda: made.keys.revoke(RevokeKey("home")))[0] is ErrorCode.KEY_CONFIGURED
    assert refused(lambda: made.keys.rotate(RotateKey("home")))[0] is ErrorCode.KEY_CONFIGURED
    made.keys.add(AddKey(name="b"))
    made.keys.add(AddKey(name="a", scopes=(KeyScope.METRICS,)))
    found = made.keys.list().keys
    assert [(key.name, key.configured) for key in found] == [
        ("home", True), ("a", False), ("b", False),
    ]  # fmt: skip
    made.configured = ()
    assert "none is answered" in made.keys.revoke(RevokeKey("b")).message
    assert made.keys.ring.required, "others can reach it"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "ä"}, "name"),
        ({"name": "x" * 61}, "name"),
        ({"name": "key_0123"}, "name"),
        ({"name": "other"}, "name"),
        ({"scopes": ()}, "scopes"),
        ({"scopes": (KeyScope.ADMIN, KeyScope.ADMIN)}, "scopes"),
        ({"scopes": (KeyScope.METRICS,), "models": ("a",)}, "scopes"),
        ({"scopes": (KeyScope.METRICS,), "budget": DayBudget(1)}, "scopes"),
        ({"models": ("",)}, "models"),
        ({"models": ("a b",)}, "models"),
        ({"families": (KeyFamily.OLLAMA,) * 2}, "families"),
        ({"limits": RateLimits(0)}, "requests_per_minute"),
        ({"budget": DayBudget(None, -1)}, "tokens"),
        ({"priority": 10**7}, "priority"),
        ({"expires_at_s": 1.0}, "expires"),
        ({"expires_at_s": float("nan")}, "expires"),
    ],
)
def test_what_can_not_be_is_refused_and_changes_nothing(
    fields: dict[str, Any], param: str, tmp_path: Path
) -> None:
    made = Made(tmp_path)
    wanted = AddKey(**{"name": "ci", **fields})
    assert refused(lambda: made.keys.add(wanted)) == (ErrorCode.INVALID_VALUE, param)
    assert made.keys.ring.keys == ()
    assert not made.path.exists()


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "{}", '{"keys": 1}', '{"keys": [{}]}', '{"keys": [1]}', "null",
        '{"keys": [{"digest": 1, "owner": "o", "name": "a"}]}',
        '{"keys": [{"digest": "d", "owner": "o", "name": "a", "scopes": ["root"]}]}',
        '{"keys": [{"digest": "d", "owner": "o"}, {"digest": "e", "owner": "p"}]}',
    ],
)  # fmt: skip
def test_a_damaged_file_opens_nothing_until_another_key_is_made(
    content: str, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_text(content)
    made = Made(tmp_path)
    assert made.keys.ring.required
    assert "set aside" in made.said[0]
    # After a restart as well.
    made = Made(tmp_path)
    assert made.keys.ring.required
    made.keys.add(AddKey(name="grafana", scopes=(KeyScope.METRICS,)))
    assert made.keys.ring.required
    made.keys.add(AddKey(name="ci"))
    assert not made.keys.ring.required
    assert not Made(tmp_path).keys.ring.required


def test_a_disk_that_takes_nothing_keeps_no_new_key_and_no_revoked_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path)
    made.keys.add(AddKey(name="ci"))
    before = made.path.read_text()
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(state_file, "atomic_write", full)
    assert refused(lambda: made.keys.add(AddKey(name="new")))[0] is ErrorCode.INTERNAL
    assert refused(lambda: made.keys.rotate(RotateKey("ci")))[0] is ErrorCode.INTERNAL
    assert len(made.keys.ring.keys) == 1
    said = made.keys.revoke(RevokeKey("ci")).message
    assert "valid again after a restart" in said
    assert not made.keys.ring.keys
    assert made.path.read_text() == before


def test_what_a_later_version_writes_is_left_out(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.keys.add(AddKey(name="ci"))
    values = json.loads(made.path.read_text())
    values["keys"][0]["colour"] = "blue"
    made.path.write_text(json.dumps(values))
    assert Made(tmp_path).keys.ring == made.keys.ring


NAMES = st.sampled_from(("a", "b", "c"))
CHANGES = st.lists(
    st.tuples(st.sampled_from(("add", "rotate", "revoke")), NAMES, st.sampled_from((0.0, 50.0))),
    max_size=12,
)


@given(CHANGES)
def test_the_valid_secrets_are_what_was_given_out(steps: list[tuple[str, str, float]]) -> None:
    """Against a model: a table of names with the secrets that are valid, and until when."""
    stored, now_s = StoredKeys(), 1000.0
    valid: dict[str, dict[str, float]] = {}
    for number, (what, name, grace_s) in enumerate(steps):
        secret, now_s = f"secret-{number}", now_s + 20.0
        try:
            if what == "add":
                stored, _ = added(stored, (), AddKey(name=name), secret, f"key_{number}", now_s)
                assert name not in valid
                valid[name] = {secret: float("inf")}
            elif what == "rotate":
                stored, key = rotated(stored, (), name, secret, grace_s, now_s)
                last = {each: min(until, now_s + grace_s) for each, until in valid[name].items()}
                valid[name] = {**last, secret: float("inf")}
                ends = [until for until in last.values() if until > now_s]
                assert view(key, now_s).former_until_s == max(ends, default=None)
            else:
                stored = revoked(stored, (), name)
                del valid[name]
        except LmxError as error:
            expected = ErrorCode.KEY_EXISTS if what == "add" else ErrorCode.NOT_FOUND
            assert error.code is expected
            assert (name in valid) is (what == "add")
        for key in stored.keys:
            still = {
                secret_digest(each) for each, until in valid[key.name].items() if until > now_s
            }
            assert valid_digests(key, now_s) == still
        assert sorted(valid) == [key.name for key in stored.keys]
