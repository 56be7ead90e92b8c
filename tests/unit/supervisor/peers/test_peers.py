"""The stored peers, the configured ones, and the list that routers get."""

import stat
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.messages.peers import Peer, PeerKind, PeerList
from lmx.supervisor.config.load import exposed_keys, load_config
from lmx.supervisor.config.schema import Config
from lmx.supervisor.peers.peers import MOST_PEERS, Peers

KEY = "sk-lmx-of-a-peer-of-this-test"
STUDIO = Peer("studio", "http://studio:8000", PeerKind.LMX, KEY)


class Made:
    """The peers of a folder, and what became of them."""

    def __init__(self, folder: Path, *configured: Peer) -> None:
        self.path = folder / "peers.json"
        self.lists: list[PeerList] = []
        self.said: list[str] = []
        self.peers = Peers(self.path, lambda: configured, self.lists.append, self.said.append)


def test_a_peer_is_stored_replaced_and_removed(tmp_path: Path) -> None:
    made = Made(tmp_path)
    assert made.peers.list == PeerList.of(())
    made.peers.put(STUDIO)
    assert made.peers.list.peers == (STUDIO,)
    assert made.lists == [made.peers.list]
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert KEY not in repr(made.peers.list), "as a log or a traceback has it"
    assert Made(tmp_path).peers.list == made.peers.list, "another supervisor knows the same"
    moved = Peer("studio", "http://studio:9000")
    made.peers.put(moved)
    assert made.peers.list.peers == (moved,)
    assert made.lists[0].digest != made.lists[1].digest
    made.peers.remove("studio")
    assert not made.peers.list.peers
    with pytest.raises(OperationError, match="no peer is named") as caught:
        made.peers.remove("studio")
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_configured_peer_wins_and_is_changed_there_alone(tmp_path: Path) -> None:
    Made(tmp_path).peers.put(STUDIO)
    configured = Peer("studio", "http://other:8000")
    made = Made(tmp_path, configured)
    assert made.peers.list.peers == (configured,)
    with pytest.raises(OperationError, match="of the configuration"):
        made.peers.put(STUDIO)
    with pytest.raises(OperationError, match="of the configuration"):
        made.peers.remove("studio")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", '{"peers": [{"name": 1}]}', "[]",
        '{"peers": [{"name": "a", "url": "https://a", "certificate": "of nobody"}]}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "peers.json").write_text(text)
    made = Made(tmp_path)
    assert made.peers.list.peers == ()
    assert len(made.said) == 1
    made.peers.put(STUDIO)
    assert Made(tmp_path).peers.list.peers == (STUDIO,)


def test_there_are_so_many_peers_at_most(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for number in range(MOST_PEERS):
        made.peers.put(Peer(f"m{number}", "http://m:8000"))
    with pytest.raises(OperationError, match="as many as can be"):
        made.peers.put(STUDIO)


def test_the_configuration_names_peers() -> None:
    peers: list[dict[str, Any]] = [
        {"name": "studio", "url": "http://studio:8000/v1/", "key": KEY},
        {"name": "cloud", "url": "https://api.example.com/x", "kind": "openai"},
    ]
    config = Config.model_validate({"peers": peers})
    assert [one.peer for one in config.peers] == [
        STUDIO,
        Peer("cloud", "https://api.example.com/x", PeerKind.OPENAI),
    ]
    assert KEY not in repr(config)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{name: a@b, url: 'http://x:1'}", "peers.a@b.name"),
        ("{name: a, url: 'ftp://x:1'}", "is the address of a server"),
        ("{name: a, url: 'http://u:secret-of-someone@x:1'}", "the peer's key goes into"),
        ("{name: a, url: 'http://x:1', key: 'too-short'}", "at least 16"),
        ("{name: a, url: 'http://x:1'}, {name: a, url: 'http://y:1'}", "two peers of the same"),
    ],
)
def test_what_is_wrong_with_a_peer_is_said_without_its_key(
    tmp_path: Path, entry: str, words: str
) -> None:
    file = tmp_path / "lmx.yaml"
    file.write_text(f"peers: [{entry}]\n")
    with pytest.raises(LmxError) as caught:
        load_config(file, {})
    assert words in caught.value.message
    assert "too-short" not in caught.value.message
    assert "secret-of" not in caught.value.message


def test_a_file_with_the_key_of_a_peer_is_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "lmx.yaml"
    file.write_text(f"peers: [{{name: a, url: 'http://x:1', key: {KEY}}}]\n")
    file.chmod(0o644)
    assert exposed_keys(file) == 0o644
