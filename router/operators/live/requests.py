"""The topic ``requests``: those under way that have changed, and those that have ended."""

import time
from collections import deque
from typing import Any, Final

import orjson

from lmx.router.event_loop import yield_to_loop
from lmx.router.http.responses import Answer
from lmx.router.jobs.live import MOST_ENDED, LiveRequest, LiveRequests, LiveState, RequestShown
from lmx.router.operators.live.feed import Topic, event_text

_STEP: Final = 200
"""So many requests are looked at in one step, which takes some milliseconds if all have changed."""

_EXACT_PLACES: Final = 20
"""Up to this place in a model's line each change is sent, with the progress of the load. Of the
others the place is sent when it has changed by as much: a line of thousands that moves on would
otherwise be sent whole each second."""


class LiveRequestsShown(Answer):
    """An event `requests` of GET /admin/live. `age_s` and the phase that a request is in continue
    from `created + age_s`, when that was so: they are not sent again."""

    at_s: float
    """When the event was made, in Unix time. What it has of a request may be from before."""
    whole: bool
    """Whether these are all: then the reader forgets those that it had."""
    live: list[RequestShown]
    """The requests under way, or those of them that have changed."""
    ended: list[RequestShown]
    """Those that have ended, the newest first. They are not under way any more, whatever `live` of
    this or an earlier event says."""


class RequestsTopic(Topic):
    """Encodes each request once for all readers, and again when it has changed."""

    def __init__(self, requests: LiveRequests) -> None:
        self._requests = requests
        self._live: dict[str, tuple[object, bytes]] = {}
        """What was sent of each request under way: what it was made of, and the text."""
        self._ended: deque[bytes] = deque(maxlen=MOST_ENDED)
        """The ended ones, the newest first."""
        self._ended_total = 0

    async def look(self) -> bytes:
        changed = []
        for number, live in enumerate(self._requests.all, 1):
            known, now = self._live.get(live.id), _version(self._requests, live)
            if known is None or known[0] != now:
                text = orjson.dumps(self._requests.shown(live))
                self._live[live.id] = (now, text)
                changed.append(text)
            if number % _STEP == 0:
                await yield_to_loop()
        # No request can end from here on: there is no await.
        missed = self._requests.ended_total - self._ended_total
        newest = self._requests.last_ended(missed)
        ended = [orjson.dumps(one) for one in newest]
        self._ended_total = self._requests.ended_total
        self._ended.extendleft(reversed(ended))
        under_way = self._requests.ids
        gone = self._live.keys() - under_way
        for name in gone:
            del self._live[name]
        # One that is forwarded to another machine is not among the ended ones: a reader forgets it
        # with the whole list.
        if missed > MOST_ENDED or gone - {one["id"] for one in newest}:
            return self.whole()
        return _text(changed, ended, whole=False) if changed or ended else b""

    def whole(self) -> bytes:
        return _text([text for _, text in self._live.values()], list(self._ended), whole=True)


def _version(requests: LiveRequests, live: LiveRequest) -> object:
    """Return what changes when the request has to be sent again."""
    waits, (state, position) = live.waits, requests.place(live)
    text = None
    if state is LiveState.WAITING and position is not None:
        if position <= _EXACT_PLACES:
            text = requests.shown(live)["waits_for"]
        else:
            position //= _EXACT_PLACES
    return (
        state,
        position,
        text,
        live.tokens,
        live.prompt_tokens,
        live.model_id,
        waits.loading_since_s,
        waits.sent_s,
        waits.turn is not None and waits.turn.begun,
        waits.accepted_s,
        live.first_output_s is None,
        live.detached,
        live.error is None,
        live.reread is None,
    )


def _text(live: list[bytes], ended: list[bytes], *, whole: bool) -> bytes:
    message: dict[str, Any] = {
        "at_s": round(time.time(), 3),
        "whole": whole,
        "live": [orjson.Fragment(text) for text in live],
        "ended": [orjson.Fragment(text) for text in ended],
    }
    return event_text("requests", message)
