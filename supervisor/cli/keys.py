"""`lmx key`: who may use lmx, and how much."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.supervisor.cli.command import (
    admin_key,
    command,
    json_option,
    notice,
    own_config,
    place,
)

if TYPE_CHECKING:
    from lmx.protocol.messages.keys import KeyMade, KeyView

_SCOPES: Final = ("inference", "metrics", "operator", "admin", "peer")
_FAMILIES: Final = ("openai", "anthropic", "ollama")
_AMOUNT: Final = click.IntRange(min=1, max=10**15)
_ROUTER_S: Final = 10.0
"""How long a router has for what only it knows."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class _Span(click.ParamType[float]):
    """A time such as 90s, 1h or 30d, in seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = _span_s(str(value))
        if seconds is None:
            self.fail(f"{value!r} is no time: write 90s, 15m, 1h or 30d", param, ctx)
        return seconds


class _Expiry(click.ParamType[float]):
    """When a key expires: after a time, or with the end of a day; in Unix time."""

    name = "time or date"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = _span_s(str(value))
        if seconds is not None:
            return time.time() + seconds
        try:
            day = datetime.strptime(str(value), "%Y-%m-%d")  # local, as meant
            return (day + timedelta(days=1)).timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a time (30d, 12h) nor a day (2027-01-31)", param, ctx)


def _span_s(text: str) -> float | None:
    number, unit = text[:-1], text[-1:]
    if not number.isascii() or not number.isdecimal() or unit not in _UNITS:
        return None
    return float(number) * _UNITS[unit]


@click.group("key")
def key_group() -> None:
    """Make and change the keys with which others use lmx.

    A change is in effect at once, without a restart, whether lmx runs or not. Only a hash of a
    key's secret is kept: it is printed once. The keys in lmx.yaml stay as they are.

    \b
    Examples:
      lmx key add laptop
      lmx key add ci --model 'qwen3-*' --tokens-per-day 2000000 --expires 30d
      lmx key add grafana --scope metrics
      lmx key rotate ci --grace 1h
      lmx key revoke laptop
    """


@key_group.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(_SCOPES),
    help="What it opens (default: inference). May be repeated.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="PATTERN",
    help="Only models whose id is like this, such as 'qwen3-*'. May be repeated.",
)
@click.option(
    "--family",
    "families",
    multiple=True,
    type=click.Choice(_FAMILIES),
    help="Only this API. May be repeated.",
)
@click.option("--requests-per-minute", type=_AMOUNT, metavar="N", help="At most N a minute.")
@click.option("--tokens-per-minute", type=_AMOUNT, metavar="N", help="Prompts and answers.")
@click.option("--concurrent-requests", type=_AMOUNT, metavar="N", help="At most N at a time.")
@click.option("--requests-per-day", type=_AMOUNT, metavar="N", help="From midnight to midnight.")
@click.option("--tokens-per-day", type=_AMOUNT, metavar="N", help="From midnight to midnight.")
@click.option(
    "--priority",
    type=click.IntRange(-1_000_000, 1_000_000),
    metavar="N",
    help="Its requests come after those of a lower value (default: what each request "
    "says, else 0).",
)
@click.option(
    "--expires",
    "expires_at_s",
    type=_Expiry(),
    metavar="TIME|DATE",
    help="After 12h or 30d, or with the end of 2027-01-31.",
)
@json_option
@command
def add(
    name: str,
    scopes: tuple[str, ...],
    models: tuple[str, ...],
    families: tuple[str, ...],
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    concurrent_requests: int | None,
    requests_per_day: int | None,
    tokens_per_day: int | None,
    priority: int | None,
    expires_at_s: float | None,
    as_json: bool,
) -> None:
    """Make the key NAME, and print its secret: it is shown this once.

    The secret alone goes to stdout, so that a script can take it. Once there is a key for
    requests to models, requests without a key are refused.
    """
    from lmx.protocol.messages.keys import AddKey, DayBudget, KeyFamily, KeyScope, RateLimits

    limits = RateLimits(requests_per_minute, tokens_per_minute, concurrent_requests)
    budget = DayBudget(requests_per_day, tokens_per_day)
    made = _ask(
        AddKey(
            name=name,
            scopes=tuple(map(KeyScope, scopes)) or (KeyScope.INFERENCE,),
            models=models,
            families=tuple(map(KeyFamily, families)),
            limits=None if limits == RateLimits() else limits,
            budget=None if budget == DayBudget() else budget,
            priority=priority,
            expires_at_s=expires_at_s,
        )
    )
    _print_made(made, as_json, f"made the key {name} ({', '.join(made.key.scopes)})")


@key_group.command("list")
@json_option
@command
def list_keys(as_json: bool) -> None:
    """List the keys: what each opens, its limits, until when, and while lmx runs what it has used
    today. No secrets.
    """
    keys = _listed()
    if as_json:
        click.echo(json.dumps([_as_json(key) for key in keys], indent=2))
        return
    if not keys:
        click.echo("there are no keys: `lmx key add NAME` makes one")
    for key in keys:
        click.echo(key_line(key, time.time()))


@key_group.command()
@click.argument("name")
@click.option(
    "--grace",
    "grace_s",
    type=_Span(),
    default="0s",
    metavar="TIME",
    help="How long the former secret stays valid, as 1h (default: it ends now).",
)
@json_option
@command
def rotate(name: str, grace_s: float, as_json: bool) -> None:
    """Give the key NAME another secret, and print it: it is shown this once."""
    from lmx.protocol.messages.keys import RotateKey

    made = _ask(RotateKey(name, grace_s))
    until = made.key.former_until_s
    former = "is no longer valid" if until is None else f"is valid until {_time_text(until)}"
    _print_made(made, as_json, f"the key {name} has another secret; the former one {former}")


@key_group.command()
@click.argument("name")
@command
def revoke(name: str) -> None:
    """Revoke the key NAME. Requests that are being answered end as they would."""
    from lmx.protocol.messages.keys import RevokeKey

    click.echo(_ask(RevokeKey(name)).message)


def _listed() -> Sequence[KeyView]:
    """Return the keys, with what they have used today where a router says it."""
    from lmx.protocol.messages.keys import KeyList, ListKeys
    from lmx.supervisor.sockets.client import open_client, supervisor_runs
    from lmx.supervisor.sockets.http_client import Remote
    from lmx.supervisor.state.home import Home

    here = place()
    if isinstance(here, Home) and supervisor_runs(here):
        # A router that hangs, or is just being replaced, is no reason to list nothing.
        with contextlib.suppress(LmxError, OSError):
            with open_client(here) as client:
                urls = client.status().router.urls
            if urls:
                with open_client(Remote.parse(urls[-1], admin_key(here)), _ROUTER_S) as client:
                    listed: KeyList = client.ask(ListKeys())
                    return listed.keys
    return _ask(ListKeys()).keys  # type: ignore[no-any-return]  # as its question


def _ask(question: Any) -> Any:
    """Return the supervisor's reply, or do the same with the file if none runs."""
    from lmx.protocol.messages.keys import AddKey, ListKeys, RevokeKey, RotateKey
    from lmx.supervisor.keys.without_supervisor import keys_of_file
    from lmx.supervisor.sockets.client import open_client, supervisor_runs
    from lmx.supervisor.state.home import Home

    here = place()
    if not isinstance(here, Home) or supervisor_runs(here):
        with open_client(here) as client:
            return client.ask(question)
    try:
        keys = keys_of_file(here, own_config(None), notice)
    except OperationError as error:
        if error.code is not ErrorCode.CONFIG_INVALID:
            raise
        keys = keys_of_file(here, error, notice)
    match question:
        case AddKey():
            return keys.add(question)
        case RotateKey():
            return keys.rotate(question)
        case RevokeKey():
            return keys.revoke(question)
        case ListKeys():
            return keys.list()
        case _:
            raise LmxError(ErrorCode.PROTOCOL_ERROR, f"{type(question).__name__} is no question")


def _print_made(made: KeyMade, as_json: bool, what: str) -> None:
    if as_json:
        click.echo(json.dumps({**_as_json(made.key), "secret": made.secret}, indent=2))
    else:
        click.echo(f"{what}. Its secret is shown this once:", err=True)
        click.echo(made.secret)
    if made.note:
        click.echo(made.note, err=True)


def _as_json(key: KeyView) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(key)


def key_line(key: KeyView, now_s: float) -> str:
    """Return a key as a line for people."""
    parts: list[str] = [", ".join(key.scopes)]
    if key.models:
        parts.append(f"models {' '.join(key.models)}")
    if key.families:
        parts.append(f"API {' '.join(key.families)}")
    for values, when in ((key.limits, "a minute"), (key.budget, "a day")):
        parts += _amounts(values, when)
    if key.used_today is not None:
        used = key.used_today
        word = "request" if used.requests == 1 else "requests"
        parts.append(f"used today {used.requests:,} {word}, {used.tokens:,} tokens")
    if key.priority is not None:
        parts.append(f"priority {key.priority}")
    if key.expires_at_s is not None:
        word = "expired" if key.has_expired(now_s) else "expires"
        parts.append(f"{word} {_time_text(key.expires_at_s)}")
    if key.former_until_s is not None:
        parts.append(f"former secret until {_time_text(key.former_until_s)}")
    if key.configured:
        parts.append("in the configuration")
    return f"{key.name:<16} {'; '.join(parts)}"


def _amounts(values: Any, when: str) -> Sequence[str]:
    if values is None:
        return []
    found = [
        (getattr(values, name, None), words)
        for name, words in (
            ("requests_per_minute", f"requests {when}"),
            ("tokens_per_minute", f"tokens {when}"),
            ("concurrent_requests", "requests at a time"),
            ("requests", f"requests {when}"),
            ("tokens", f"tokens {when}"),
        )
    ]
    return [f"{value:,} {words}" for value, words in found if value is not None]


def _time_text(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s):%Y-%m-%d %H:%M}"
