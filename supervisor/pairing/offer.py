"""A code that this machine shows, from its first moment to its end. Pure, but for what is drawn by
the caller."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.pairing import OfferState, OfferView
from lmx.supervisor.pairing.exchange import OwnPart, Said

LIFE_S: Final = 300.0
MOST_TRIES: Final = 5
_EXCHANGE_S: Final = 60.0
_MOST_EXCHANGES: Final = 32
"""The oldest one goes for a newer one: whoever only begins them costs nothing else."""


@dataclass(slots=True)
class Offer:
    """One code."""

    offer_id: str
    code: str = field(repr=False)
    until_s: float
    state: OfferState = OfferState.OPEN
    detail: str = "waiting for the other machine"
    tries_left: int = MOST_TRIES
    judged: int = 0
    """How many tries are just being judged: one of them may be right."""
    taken: bool = False
    """Another machine had the right code, and is just being paired: the state is open until it is
    known how that ends, but the code is of no use to anybody else."""
    _exchanges: OrderedDict[str, tuple[float, OwnPart, Said]] = field(default_factory=OrderedDict)

    def begin(self, own: OwnPart, said: Said, now_s: float) -> None:
        """Note that another machine has begun an exchange."""
        self._exchanges[said.exchange_id] = (now_s + _EXCHANGE_S, own, said)
        while len(self._exchanges) > _MOST_EXCHANGES:
            self._exchanges.popitem(last=False)

    def attempt(self, exchange_id: str, now_s: float) -> tuple[OwnPart, Said]:
        """Return the exchange of a proof, and count the proof as a try before it is judged, so that
        several at the same time are no more than that. Each exchange has one. Raises
        :class:`OperationError`."""
        until_s, own, said = self._exchanges.pop(exchange_id, (0.0, None, None))
        if own is None or said is None or now_s >= until_s:
            raise OperationError(
                ErrorCode.NOT_FOUND,
                "this exchange is over: run `lmx pair CODE@HOST` again",
            )
        if self.tries_left <= 0:
            raise OperationError(
                ErrorCode.NOT_FOUND, "the code was tried too often: run `lmx pair` there again"
            )
        self.tries_left -= 1
        self.judged += 1
        return own, said

    def was_wrong(self) -> OperationError:
        """Return the error for a wrong code. The code is void after too many of them."""
        words = "the code is wrong"
        self.judged -= 1
        if self.tries_left <= 0 and not self.judged:
            self.end(OfferState.VOID, f"it was tried {MOST_TRIES} times without success")
            words += ", and void now: run `lmx pair` on the other machine for another one"
        return OperationError(ErrorCode.PERMISSION_DENIED, words)

    def take(self) -> None:
        """Note that another machine had the right code. Only :meth:`settle` ends it then."""
        self.taken, self.detail, self.code = True, "the other machine is being paired", ""
        self._exchanges.clear()

    def settle(self, state: OfferState, detail: str) -> None:
        """Note how the pairing with the machine that took the code has ended."""
        self.state, self.detail = state, detail

    def end(self, state: OfferState, detail: str) -> None:
        """Let it be void. The first end counts, and none does once it is taken."""
        if self.state is OfferState.OPEN and not self.taken:
            self.state, self.detail, self.code = state, detail, ""
            self._exchanges.clear()

    def is_open(self, now_s: float) -> bool:
        """Return whether it can be used. It expires here."""
        if now_s >= self.until_s:
            self.end(OfferState.VOID, "it has expired")
        return self.state is OfferState.OPEN and not self.taken

    def view(self, now_s: float) -> OfferView:
        """Return what has become of it."""
        self.is_open(now_s)
        return OfferView(self.state, self.detail)
