"""Asks a supervisor over the HTTP API of its router: the same questions and replies as on the
control socket.

``_ROUTES`` is the table of the questions that have a route. A question without one is refused in
words.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.messages import control, inventory, keys
from lmx.protocol.messages.status import GetStatus, Status, SystemStatus
from lmx.protocol.states import DownloadStatus, QuantizedBits
from lmx.protocol.wire.codec import from_map, to_map
from lmx.supervisor.sockets.http_client import UNREADABLE, HttpClient, Remote

_LEAST_S: Final = 10.0
"""How long an answer over a network may take at least."""


class RemoteClient:
    """A connection to another lmx, as a context manager. ``answer_s`` is how long an answer may
    take."""

    def __init__(self, remote: Remote, answer_s: float) -> None:
        self._api = _Api(remote, max(answer_s, _LEAST_S))

    def __enter__(self) -> "RemoteClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open between two questions."""

    def ask(self, question: Any) -> Any:
        """Return the reply. Raises :class:`OperationError`: not_running when nothing answers at the
        address, unsupported_value when the question has no route, and the error that lmx
        reports."""
        route = _ROUTES.get(type(question))
        if route is None:
            raise not_remote("this")
        try:
            return route(self._api, question)
        except (*UNREADABLE, ProtocolError) as error:
            raise self._api.not_lmx(f"{type(error).__name__}: {error}") from error

    def status(self) -> SystemStatus:
        reply: Status = self.ask(GetStatus())
        return reply.status


def not_remote(what: str) -> OperationError:
    """Return the error for what has no route in the API."""
    return OperationError(
        ErrorCode.UNSUPPORTED_VALUE,
        f"{what} works only on the machine where lmx runs, because the API has no route for it: "
        "run it there, or leave out --url and LMX_URL for the lmx on this machine",
    )


class _Api(HttpClient):
    epoch: str | None = None
    """The life of the supervisor whose events were read last."""


def _status(api: _Api, _: GetStatus) -> Status:
    return Status(from_map(SystemStatus, api.call("GET", "/admin/status/full"), "status"))


def _command(path: str) -> Callable[[_Api, Any], control.Done]:
    def send(api: _Api, question: Any) -> control.Done:
        return _done(api.call("POST", f"/admin/models/{path}", {"model": question.model_id}))

    return send


def _done(answer: Any) -> control.Done:
    return control.Done(str(answer["message"]), answer["pid"])


def _pin(api: _Api, question: control.PinModel) -> control.Done:
    body = {"model": question.model_id, "pinned": question.pinned}
    return _done(api.call("POST", "/admin/models/pin", body))


def _drain_machine(api: _Api, question: control.DrainMachine) -> control.Done:
    answer = api.call("POST", "/admin/drain", {"drained": question.drained})
    return control.Done(str(answer["message"]))


def _load(api: _Api, question: control.LoadModel) -> control.Done:
    body: dict[str, Any] = {"model_id": question.model_id, "wait": False}
    if question.context_length is not None:
        body["max_context_length"] = question.context_length
    return _done(api.call("POST", "/admin/models/load", body))


def _unload(api: _Api, question: control.UnloadModel) -> control.Done:
    body = {"model_id": question.model_id, "wait": False}
    return _done(api.call("POST", "/admin/models/unload", body))


def _kill(api: _Api, question: control.KillModel) -> control.Done:
    answer = api.call("POST", f"/admin/workers/{quote(question.model_id)}/kill")
    message = str(answer["message"])
    if answer["memory"] is not None:
        # The status has it too, where commands read it.
        message = message.removesuffix(f"; {answer['memory']['detail']}")
    return control.Done(message, answer["pid"])


def _add(api: _Api, question: inventory.AddModel) -> control.Done:
    body = {
        "engine_id": question.model_id,
        "model_path": question.source,
        "n_ctx": question.context_length,
        "load_immediately": False,
    }
    api.call("POST", "/engines", body)
    return control.Done(f"{question.model_id} is served: its first request loads it")


def _remove(api: _Api, question: inventory.RemoveModel) -> control.Done:
    # It is answered when the model's streams have ended.
    answer = api.call("DELETE", f"/engines/{quote(question.model_id)}", limit_s=_STREAMS_S)
    return control.Done(f"{answer['engine_id']} is removed; its files stay")


_STREAMS_S: Final = 900.0
DELETE_S: Final = 3900.0
"""How long a deletion may take, with the wait for its worker and for a slow disk."""


def _reload(api: _Api, _: control.ReloadConfig) -> control.Reloaded:
    answer = api.call("POST", "/admin/config/reload")
    return control.Reloaded(tuple(answer["updated"]), tuple(answer["changes"]))


def _plan(api: _Api, question: control.PlanLoad) -> control.LoadPlan:
    query = {"model": question.model_id, "context_length": question.context_length}
    answer = api.call("GET", "/admin/models/plan", query=query)
    values = {**answer, "model_id": answer["model"], "detail": answer["message"]}
    return from_map(control.LoadPlan, values, "plan")


_DOWNLOADS: Final = "/admin/models/download"
_STATES: Final = {state.value: state for state in DownloadStatus}
_BYTES_IN_MEGABIT: Final = 1e6 / 8


def _start_download(api: _Api, question: inventory.StartDownload) -> inventory.DownloadView:
    body: dict[str, Any] = {"repo_id": question.repo_id}
    for name in ("revision", "filename"):
        if (value := getattr(question, name)) is not None:
            body[name] = value
    if question.bits is not None:
        mixed = question.bits is QuantizedBits.MIXED
        body["bits"] = question.bits.value if mixed else int(question.bits)
    return _download(api.call("POST", _DOWNLOADS, body))


def _cancel_download(api: _Api, question: inventory.CancelDownload) -> inventory.DownloadView:
    return _download(api.call("DELETE", f"{_DOWNLOADS}/{quote(question.download_id)}"))


def _downloads(api: _Api, question: inventory.GetDownloads) -> inventory.Downloads:
    if question.download_id is not None:
        found = [api.call("GET", f"{_DOWNLOADS}/{quote(question.download_id)}")]
    else:
        found = api.call("GET", _DOWNLOADS)["downloads"]
    return inventory.Downloads(tuple(map(_download, found)))


def _download(answer: Any) -> inventory.DownloadView:
    error = answer["error"]
    return inventory.DownloadView(
        download_id=answer["download_id"],
        repo_id=answer["repo_id"],
        revision=None if answer["revision"] == "main" else answer["revision"],
        filename=answer["filename"],
        status=_STATES[answer["status"]],
        total_bytes=answer["estimated_size_bytes"],
        downloaded_bytes=answer["downloaded_bytes"],
        speed_bytes_per_s=answer["speed_mbps"] * _BYTES_IN_MEGABIT,
        started_s=answer["started_at"],
        ended_s=answer["ended_at"],
        model_id=answer["model_id"],
        error_code=None if error is None else ErrorCode.DOWNLOAD_FAILED,
        error=None if error is None else error["message"],
        bits=None if answer.get("bits") is None else QuantizedBits(answer["bits"]),
        note=answer.get("note"),
    )


def _available(api: _Api, _: inventory.GetAvailable) -> inventory.Available:
    return inventory.Available(
        tuple(
            inventory.AvailableModel(
                repo_id=model["repo_id"],
                local_path=model["local_path"],
                size_bytes=model["size_bytes"],
                downloaded_at_s=datetime.fromisoformat(model["downloaded_at"])
                .replace(tzinfo=UTC)
                .timestamp(),
                model_id=model["model_id"],
            )
            for model in api.call("GET", "/admin/models/available")
        )
    )


def _delete(api: _Api, question: inventory.DeleteModel) -> inventory.Deleted:
    query = {"force": "true"} if question.force else None
    answer = api.call(
        "DELETE", f"/admin/models/{quote(question.model_id)}", query=query, limit_s=DELETE_S
    )
    forgotten = tuple(answer.get("forgotten", ()))
    return inventory.Deleted(answer["model_id"], answer["freed_bytes"], forgotten)


def _events(api: _Api, question: control.GetEvents) -> control.EventList:
    headers = {}
    if question.after_seq and api.epoch is not None:
        headers["Last-Event-ID"] = f"{api.epoch}-{question.after_seq}"
    query = {"last": min(question.limit, _MOST_EVENTS), "follow": "false"}
    lines = api.stream("GET", "/admin/events", query=query, headers=headers)
    found = [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
    lives = [
        control.EarlierEvents(epoch, tuple(map(_event, events)))
        for epoch, events in groupby(found, lambda event: str(event["epoch"]))
    ]
    latest = lives.pop() if lives else control.EarlierEvents(api.epoch or "", ())
    api.epoch = latest.epoch
    last_seq = latest.events[-1].seq if latest.events else question.after_seq
    earlier = tuple(lives) if question.earlier else ()
    return control.EventList(latest.epoch, last_seq, latest.events, earlier)


_MOST_EVENTS: Final = 2000
_KEYS: Final = "/admin/keys"


def _list_keys(api: _Api, _: keys.ListKeys) -> keys.KeyList:
    return keys.KeyList(tuple(map(_key, api.call("GET", _KEYS)["keys"])))


def _add_key(api: _Api, question: keys.AddKey) -> keys.KeyMade:
    limits, budget = question.limits, question.budget
    body = {
        "name": question.name,
        "scopes": question.scopes,
        "models": question.models,
        "families": question.families,
        **({} if limits is None else to_map(limits)),
        **({} if budget is None else {f"{what}_per_day": n for what, n in to_map(budget).items()}),
        "priority": question.priority,
        "expires_at_s": question.expires_at_s,
    }
    return _key_made(api.call("POST", _KEYS, body))


def _rotate_key(api: _Api, question: keys.RotateKey) -> keys.KeyMade:
    path = f"{_KEYS}/{quote(question.name, safe='')}/rotate"
    return _key_made(api.call("POST", path, {"grace_s": question.grace_s}))


def _revoke_key(api: _Api, question: keys.RevokeKey) -> control.Done:
    answer = api.call("DELETE", f"{_KEYS}/{quote(question.name, safe='')}")
    return control.Done(str(answer["message"]))


def _key_made(answer: Any) -> keys.KeyMade:
    return keys.KeyMade(_key(answer), str(answer["secret"]), str(answer["note"]))


def _key(answer: Any) -> keys.KeyView:
    return from_map(keys.KeyView, answer, "key")


def _event(found: Any) -> control.Event:
    return control.Event(
        found["seq"], found["at_s"], found["name"], found["model"], found["detail"], found["data"]
    )


def log_lines(remote: Remote, name: str, count: int, *, follow: bool) -> Iterator[str]:
    """Yield the last lines of a log of another lmx, at most :data:`MOST_LINES`, and each new one
    with ``follow``, which ends only by an :class:`OperationError`. The name is a model's, or that
    of another process: ``router``, ``supervisor``, ``fetch``."""
    api = HttpClient(remote, _STREAMS_S)
    query = {"lines": min(count, MOST_LINES), "follow": "true" if follow else "false"}
    for line in api.stream("GET", f"/admin/logs/{quote(name)}", query=query):
        if line.startswith("data:"):
            try:
                yield json.loads(line.removeprefix("data:"))["line"]
            except UNREADABLE as error:
                raise api.not_lmx(line) from error
    if follow:
        raise OperationError(
            ErrorCode.SUPERVISOR_UNAVAILABLE,
            f"the router at {remote.url} has ended or was replaced: type the command again",
        )


MOST_LINES: Final = 10_000


_ROUTES: Final[dict[type, Callable[[_Api, Any], Any]]] = {
    GetStatus: _status,
    control.LoadModel: _load,
    control.UnloadModel: _unload,
    control.RestartModel: _command("restart"),
    control.ResetModel: _command("reset"),
    control.DrainModel: _command("drain"),
    control.DrainMachine: _drain_machine,
    control.PinModel: _pin,
    control.KillModel: _kill,
    control.PlanLoad: _plan,
    control.ReloadConfig: _reload,
    control.GetEvents: _events,
    inventory.AddModel: _add,
    inventory.RemoveModel: _remove,
    inventory.StartDownload: _start_download,
    inventory.CancelDownload: _cancel_download,
    inventory.GetDownloads: _downloads,
    inventory.GetAvailable: _available,
    inventory.DeleteModel: _delete,
    keys.ListKeys: _list_keys,
    keys.AddKey: _add_key,
    keys.RotateKey: _rotate_key,
    keys.RevokeKey: _revoke_key,
}
"""How each question is asked over HTTP. A question with a new route is a line here."""
