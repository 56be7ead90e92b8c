"""The tables of the conversations: what each holds, and every SQL statement on them.

They are in the file of the job records, so that the items of a response are added in the
transaction that records its end: once, or not at all. The functions work on a given connection, in
the thread that owns it (:mod:`lmx.router.jobs.store`).
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

CREATE: Final = """
CREATE TABLE IF NOT EXISTS conversations (
  id TEXT PRIMARY KEY, owner TEXT, metadata BLOB NOT NULL, created_s INTEGER NOT NULL,
  used_s REAL NOT NULL, items INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS conversations_by_use ON conversations (used_s, id, owner, bytes);
CREATE TABLE IF NOT EXISTS conversation_items (
  seq INTEGER PRIMARY KEY, conversation TEXT NOT NULL, id TEXT NOT NULL, item BLOB NOT NULL,
  UNIQUE (conversation, id)
);
CREATE INDEX IF NOT EXISTS conversation_items_in_order ON conversation_items (conversation, seq);
CREATE TRIGGER IF NOT EXISTS items_go_with_conversations AFTER DELETE ON conversations
  BEGIN DELETE FROM conversation_items WHERE conversation = OLD.id; END;
"""

TABLES: Final = {
    "conversations": ("id", "owner", "metadata", "created_s", "used_s", "items", "bytes"),
    "conversation_items": ("seq", "conversation", "id", "item"),
}
"""The columns of each table."""

_RECORD_BYTES: Final = 512
"""What a conversation takes besides its metadata and its items, and an item besides its text,
about."""

Piece = tuple[str, bytes]
"""An item: its id, and the item as JSON."""


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation without its items."""

    id: str
    owner: str | None
    metadata: bytes
    """JSON."""
    created_s: int
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much a conversation may hold."""

    items: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Which of a conversation's items are wanted."""

    limit: int
    newest_first: bool
    after: str | None
    """The page begins after the item with this id."""


def add(connection: sqlite3.Connection, row: ConversationRow, items: Sequence[Piece]) -> None:
    """Add a conversation with its first items."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.execute(
            "INSERT INTO conversations (id, owner, metadata, created_s, used_s, bytes) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                row.id,
                row.owner,
                row.metadata,
                row.created_s,
                float(row.created_s),
                _size_bytes(row.metadata),
            ),
        )
        append(connection, row.id, row.owner, items, float(row.created_s))


def append(
    connection: sqlite3.Connection,
    conversation: str,
    owner: str | None,
    items: Iterable[Piece],
    now_s: float,
) -> None:
    """Add items at the end, within the caller's transaction and whatever the conversation holds.
    Those that it has already, by their ids, are left out, and so are all if the conversation is not
    there."""
    if get(connection, conversation, owner) is None:
        return
    added = added_bytes = 0
    for item_id, item in items:
        added_now = connection.execute(
            "INSERT OR IGNORE INTO conversation_items (conversation, id, item) VALUES (?, ?, ?)",
            (conversation, item_id, item),
        ).rowcount
        added += added_now
        added_bytes += added_now * _size_bytes(item)
    connection.execute(
        "UPDATE conversations SET used_s = ?, items = items + ?, bytes = bytes + ? WHERE id = ?",
        (now_s, added, added_bytes, conversation),
    )


def extend(
    connection: sqlite3.Connection,
    conversation: str,
    owner: str | None,
    items: Sequence[Piece],
    room: Room,
    now_s: float,
) -> bool:
    """Add items at the end; return whether the conversation is there. Raises ``OverflowError``
    if it would hold more than it may."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        taken = connection.execute(
            "SELECT items, bytes FROM conversations WHERE id = ? AND owner IS ?",
            (conversation, owner),
        ).fetchone()
        if taken is None:
            return False
        size_bytes = sum(_size_bytes(item) for _, item in items)
        if taken[0] + len(items) > room.items or taken[1] + size_bytes > room.bytes:
            raise OverflowError
        append(connection, conversation, owner, items, now_s)
    return True


def get(
    connection: sqlite3.Connection, conversation: str, owner: str | None
) -> ConversationRow | None:
    """Return a conversation; None if it does not exist or belongs to another owner."""
    found = connection.execute(
        "SELECT id, owner, metadata, created_s FROM conversations WHERE id = ? AND owner IS ?",
        (conversation, owner),
    ).fetchone()
    return None if found is None else ConversationRow(*found)


def set_metadata(
    connection: sqlite3.Connection, conversation: str, owner: str | None, metadata: bytes
) -> ConversationRow | None:
    """Put other metadata in the place of a conversation's; return it as :func:`get` does."""
    with connection:
        connection.execute(
            "UPDATE conversations SET metadata = :new, "
            "bytes = bytes - length(metadata) + length(:new) WHERE id = :id AND owner IS :owner",
            {"new": metadata, "id": conversation, "owner": owner},
        )
    return get(connection, conversation, owner)


def remove(connection: sqlite3.Connection, conversation: str, owner: str | None) -> bool:
    """Remove a conversation and its items; return whether it was there."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        gone = connection.execute(
            "DELETE FROM conversations WHERE id = ? AND owner IS ?", (conversation, owner)
        )
    return gone.rowcount > 0


def item(
    connection: sqlite3.Connection, conversation: str, owner: str | None, item_id: str
) -> bytes | None:
    """Return one item; None if it is not there, or the conversation is another owner's."""
    found = connection.execute(
        "SELECT item FROM conversation_items JOIN conversations ON conversations.id = conversation "
        "WHERE conversation = ? AND owner IS ? AND conversation_items.id = ?",
        (conversation, owner, item_id),
    ).fetchone()
    return None if found is None else bytes(found[0])


def remove_item(
    connection: sqlite3.Connection, conversation: str, owner: str | None, item_id: str
) -> bool:
    """Remove one item; return whether it was there."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        found = item(connection, conversation, owner, item_id)
        if found is None:
            return False
        connection.execute(
            "DELETE FROM conversation_items WHERE conversation = ? AND id = ?",
            (conversation, item_id),
        )
        connection.execute(
            "UPDATE conversations SET items = items - 1, bytes = bytes - ? WHERE id = ?",
            (_size_bytes(found), conversation),
        )
    return True


def page(
    connection: sqlite3.Connection, conversation: str, wanted: ItemPage
) -> tuple[list[Piece], bool] | None:
    """Return some items of a conversation, and whether more follow; None if there is no item
    ``wanted.after``."""
    where, values = "conversation = ?", [conversation]
    order = "DESC" if wanted.newest_first else "ASC"
    if wanted.after is not None:
        last = connection.execute(
            "SELECT seq FROM conversation_items WHERE conversation = ? AND id = ?",
            (conversation, wanted.after),
        ).fetchone()
        if last is None:
            return None
        where += f" AND seq {'<' if wanted.newest_first else '>'} ?"
        values.append(last[0])
    found = connection.execute(
        f"SELECT id, item FROM conversation_items WHERE {where} ORDER BY seq {order} LIMIT ?",  # noqa: S608
        (*values, wanted.limit + 1),
    ).fetchall()
    return found[: wanted.limit], len(found) > wanted.limit


def whole(
    connection: sqlite3.Connection, conversation: str, owner: str | None, room: Room
) -> list[bytes] | None:
    """Return all items, the oldest first; None if there is no such conversation. Raises
    ``OverflowError`` if it holds more than it may."""
    taken = connection.execute(
        "SELECT items, bytes FROM conversations WHERE id = ? AND owner IS ?",
        (conversation, owner),
    ).fetchone()
    if taken is None:
        return None
    if taken[0] > room.items or taken[1] > room.bytes:
        raise OverflowError
    found = connection.execute(
        "SELECT item FROM conversation_items WHERE conversation = ? ORDER BY seq", (conversation,)
    )
    return [one for (one,) in found]


def taken(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many conversations there are, and about how many bytes they take."""
    count, size_bytes = connection.execute(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM conversations"
    ).fetchone()
    return count, size_bytes


def by_use(connection: sqlite3.Connection) -> list[tuple[str, str | None, int]]:
    """Return the id, the owner and the bytes of each, the one that was added to longest ago
    first."""
    return connection.execute(
        "SELECT id, owner, bytes FROM conversations ORDER BY used_s, id"
    ).fetchall()


def remove_all(connection: sqlite3.Connection, gone: Iterable[str]) -> None:
    """Remove conversations, whoever owns them, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.executemany("DELETE FROM conversations WHERE id = ?", [(one,) for one in gone])


def _size_bytes(text: bytes) -> int:
    return len(text) + _RECORD_BYTES
