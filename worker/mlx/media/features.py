"""Features of pictures, sounds and videos that were computed before, within a limit of memory."""

from __future__ import annotations

from collections import OrderedDict

from lmx.worker.mlx.media.encoding import Features

_Key = tuple[bytes, str]


class FeatureCache:
    """The features of what was seen or heard last. Engine thread.

    What was computed for requests with one salt is found only by those with the same: the time that
    an answer takes must not show whether somebody else has sent the same picture.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.hits = 0
        self.encoded = 0
        """How many features were put in."""
        self._budget_bytes = limit_bytes
        self._limit_bytes = limit_bytes
        self._held: OrderedDict[_Key, Features] = OrderedDict()
        self._held_bytes = 0

    @property
    def bytes_held(self) -> int:
        """The size of what is kept."""
        return self._held_bytes

    def get(self, digest: bytes, salt: str) -> Features | None:
        """Return the features of what has this digest; None: they are not here."""
        found = self._held.get((digest, salt))
        if found is not None:
            self._held.move_to_end((digest, salt))
            self.hits += 1
        return found

    def put(self, digest: bytes, salt: str, features: Features) -> None:
        """Keep features, which are evaluated, and give up those that were used least recently."""
        self.encoded += 1
        if features.nbytes > self._limit_bytes or (digest, salt) in self._held:
            return
        self._held[digest, salt] = features
        self._held_bytes += features.nbytes
        self._fit()

    def shrink(self) -> None:
        """Give up half of what is kept, and keep no more than the other half."""
        self._limit_bytes = self._held_bytes // 2
        self._fit()

    def regrow(self) -> None:
        """Keep as much as at first again."""
        self._limit_bytes = self._budget_bytes

    def _fit(self) -> None:
        while self._held_bytes > self._limit_bytes:
            _, features = self._held.popitem(last=False)
            self._held_bytes -= features.nbytes
