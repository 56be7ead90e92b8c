"""``lmx chat`` on a terminal, and one answer where there is none."""

import base64
import contextlib
import mimetypes
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, TextIO

import click
from click.core import ParameterSource

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import TooLargeError, read_regular
from lmx.protocol.messages.keys import GetLocalKey
from lmx.protocol.states import ModelKind, ModelState
from lmx.supervisor.cli.chat.client import ChatClient
from lmx.supervisor.cli.chat.conversation import (
    COMMANDS,
    PARAMETERS,
    Conversation,
    Lines,
    command_of,
    parameter,
    saved_text,
    typed_text,
)
from lmx.supervisor.cli.chat.terminal import AnswerView, stats_text, typing_off
from lmx.supervisor.cli.command import Exit, given_key, valid_config
from lmx.supervisor.cli.views.words import no_such_model
from lmx.supervisor.config.known_models import meant_instead, repository_of
from lmx.supervisor.sockets.client import Place, open_client
from lmx.supervisor.sockets.http_client import Remote
from lmx.supervisor.state.home import Home

_HISTORY_LINES: Final = 1000
_CONFIGURED_KEY: Final = (
    "It is the first of security.api_keys: if these were changed since lmx read them, `lmx reload` "
    "puts them into effect."
)


def chat(
    place: Place,
    model: str | None,
    prompt: str | None,
    conversation: Conversation,
    *,
    fetch: bool = False,
) -> None:
    """Talk with a model until Ctrl-D; with a prompt, or where stdin is no terminal, print one
    answer. An lmx of this machine that does not run is started. With ``fetch`` a model that is not
    served is downloaded first. Raises :class:`OperationError`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may have another encoding
    if not sys.stdin.isatty():
        piped = _all_of(sys.stdin).strip()
        prompt = "\n\n".join(text for text in (prompt, piped) if text)
        if not prompt:
            raise OperationError(ErrorCode.MISSING_PARAMETER, "nothing was asked: stdin is empty")
    if isinstance(place, Home):
        from lmx.supervisor.cli.chat.start import start_for

        start_for(place, model, fetch=fetch)
    client = connect(place)
    if fetch and model is not None:
        conversation.model = _served(place, client, model)
    else:
        conversation.model = choose(client, model)
    if prompt is not None:
        _print_answer(client, conversation, prompt)
        return
    home = place if isinstance(place, Home) else Home.from_environment(os.environ)
    _talk(home.state / "chat_history", client, conversation)


def _all_of(stdin: TextIO) -> str:
    """Return all that is piped in, which is UTF-8 whatever encoding the locale has. Raises
    :class:`OperationError`."""
    content = stdin.buffer.read()
    return typed_text(content.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def _served(place: Place, client: ChatClient, model: str) -> str:
    """Return the name of a model to ask, after downloading it if it is a short name or a repository
    that is not served. Raises :class:`OperationError`."""
    try:
        return choose(client, model)
    except OperationError as error:
        if error.code is not ErrorCode.MODEL_NOT_FOUND:
            raise
        if "/" not in repository_of(model):
            raise OperationError(error.code, f"{error.message}{meant_instead(model)}") from error
    from lmx.supervisor.cli.download import download_model

    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer
        download_model(place, model, None)
    return choose(client, model)


def connect(place: Place) -> ChatClient:
    """Return a client for the API of an lmx. Raises :class:`OperationError`: not_running,
    supervisor_unavailable."""
    if isinstance(place, Remote):
        return ChatClient(place)
    return ChatClient(_this_machine(place), lambda: _this_machine(place))


def _this_machine(place: Home) -> Remote:
    config = valid_config()
    own = None if config is None else config.security.client_key
    typed = given_key(ParameterSource.COMMANDLINE)
    key = typed or own or given_key()
    with open_client(place) as control:
        urls = control.status().router.urls
        if urls and key is None:
            key = control.ask(GetLocalKey()).secret or None
    if not urls:
        raise OperationError(
            ErrorCode.SUPERVISOR_UNAVAILABLE, "the router is being restarted: try again"
        )
    # The last one is the nearest: of this machine itself, if lmx listens on all addresses.
    remote = Remote.parse(urls[-1], key)
    return remote if typed or own is None else replace(remote, key_words=_CONFIGURED_KEY)


def choose(client: ChatClient, model: str | None) -> str:
    """Return the name of the model to ask: a loaded one that chats, else the first, if none is
    named. Raises :class:`OperationError` (model_not_found)."""
    if model is not None:
        name = repository_of(model)
        if name != model and _is_listed(client, model):
            name = model
        try:
            client.model(name)
        except OperationError as error:
            if error.code is not ErrorCode.MODEL_NOT_FOUND:
                raise
            raise no_such_model(model, [str(each["id"]) for each in client.models()]) from error
        return name
    chats = [each for each in client.models() if each["kind"] in (None, ModelKind.CHAT)]
    if not chats:
        raise OperationError(
            ErrorCode.MODEL_NOT_FOUND,
            "no model that chats is served: `lmx pull qwen3-8b` downloads one and serves it",
        )
    ready = [each for each in chats if each["state"] == ModelState.READY]
    return str((ready or chats)[0]["id"])


def _is_listed(client: ChatClient, name: str) -> bool:
    return any(name in (each["id"], *each["aliases"]) for each in client.models())


def _print_answer(client: ChatClient, conversation: Conversation, prompt: str) -> None:
    with typing_off(), AnswerView() as view:
        facts = _answer(client, conversation, prompt, view, reasoning=False)
    _print_facts(conversation, facts)
    if _is_cut(facts) and ("response_format" in conversation.parameters or not view.text):
        sys.exit(Exit.FAILED)  # What a script reads is no object, or nothing.


def _answer(
    client: ChatClient,
    conversation: Conversation,
    prompt: str,
    view: AnswerView,
    *,
    reasoning: bool,
) -> Mapping[str, Any]:
    """Send a message and show the answer. Returns the facts about it, nothing if it has none."""
    asked = conversation.ask(prompt)
    facts: Mapping[str, Any] = {}
    with contextlib.closing(
        client.answer(conversation.model, asked, **conversation.parameters)
    ) as pieces:
        for piece in pieces:
            view.show(piece, reasoning=reasoning)
            facts = {**facts, **piece.facts}
    return facts


def _is_cut(facts: Mapping[str, Any]) -> bool:
    return facts.get("finish_reason") == "length"


def _print_facts(conversation: Conversation, facts: Mapping[str, Any]) -> None:
    if _is_cut(facts):
        words = "(the answer is cut off: it has as many tokens as it may have, see max_tokens)"
        click.secho(words, dim=True, err=True)
    if conversation.stats and "usage" in facts:
        click.secho(f"({stats_text(facts['usage'], facts['timings'])})", dim=True, err=True)


def _talk(history: Path, client: ChatClient, conversation: Conversation) -> None:
    click.echo(f"{conversation.model}: /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves")
    with _history(history):
        lines = Lines()
        while True:
            try:
                line = input("... " if lines.begun else ">>> ")
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                lines.drop()
                click.echo("\n(Ctrl-D leaves)")
                continue
            command = None if lines.begun else command_of(line)
            if command is not None:
                if command[0] in ("/bye", "/exit", "/quit"):
                    return
                _obey(client, conversation, *command)
                continue
            try:
                message = lines.add(typed_text(line))
            except OperationError as error:
                click.echo(f"lmx: {error.message}", err=True)
                continue
            if message is not None and message.strip():
                _exchange(client, conversation, message)


def _obey(client: ChatClient, conversation: Conversation, name: str, argument: str) -> None:
    """Carry out a command, and say what came of it."""
    try:
        match name:
            case "/model" if argument:
                conversation.model = choose(client, argument)
                click.echo(f"continuing with {conversation.model}")
            case "/model":
                click.echo(conversation.model)
            case "/system":
                conversation.system = argument or None
            case "/set":
                _set(conversation, argument)
            case "/save":
                _save(conversation, argument)
            case "/image":
                conversation.attached.append(image_part(argument))
                click.echo("it goes with your next message")
            case "/audio":
                conversation.attached.append(audio_part(argument))
                click.echo("it goes with your next message")
            case "/drop":
                conversation.attached.clear()
            case "/clear":
                conversation.clear()
            case "/help" | "/?":
                for each, (wanted, does) in COMMANDS.items():
                    click.echo(f"  {f'{each} {wanted}':<18} {does}")
                click.echo('  several lines: between two """, or with \\ at the end of each')
            case _:
                click.echo(f"there is no command {name}: /help lists them")
    except KeyboardInterrupt:
        click.secho("\n(stopped)", dim=True)
    except OperationError as error:
        click.echo(f"lmx: {error.message}", err=True)


def _exchange(client: ChatClient, conversation: Conversation, message: str) -> None:
    """Send a message and print the answer. Ctrl-C ends the answer, and what has come of it stays
    part of the conversation."""
    view = AnswerView()
    try:
        with typing_off(), view:
            facts = _answer(client, conversation, message, view, reasoning=True)
        _print_facts(conversation, facts)
    except KeyboardInterrupt:
        click.secho("\n(stopped)", dim=True)
    except OperationError as error:
        click.echo(f"lmx: {error.message}", err=True)
    finally:
        conversation.answered(view.text)
        if conversation.attached:
            click.secho("(what was attached goes with your next message: or /drop it)", dim=True)


def _set(conversation: Conversation, argument: str) -> None:
    """Set a parameter, take it back where no value is given, or list them."""
    name, _, text = argument.partition(" ")
    if name == "stats":
        conversation.stats = text.strip() not in ("off", "false")
    elif name and text:
        conversation.parameters[name] = parameter(name, text.strip())
    elif name:
        conversation.parameters.pop(name, None)
    else:
        for each in PARAMETERS:
            click.echo(f"  {each:<20}{conversation.parameters.get(each, '')}")
        click.echo(f"  {'stats':<20}{'on' if conversation.stats else 'off'}")


def _save(conversation: Conversation, name: str) -> None:
    """Write the conversation to a file that is not there yet, or that was written by this. Raises
    :class:`OperationError`."""
    if not name:
        raise OperationError(ErrorCode.MISSING_PARAMETER, "name a file")
    path = Path(name)
    try:
        path = path.expanduser()
        new = path not in _saved
        text = saved_text(conversation, as_json=path.suffix == ".json")
        # Nobody else may read it, unless its owner lets them.
        kept = path if new else path.resolve()
        target = kept if new else kept.with_name(f".{kept.name}.lmx")
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if new else os.O_TRUNC)
        descriptor = os.open(target, flags, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123
                if not new:
                    with contextlib.suppress(OSError):  # it was removed, or its disk has no modes
                        os.fchmod(descriptor, stat.S_IMODE(kept.stat().st_mode))
                file.write(text)
        except OSError:
            target.unlink()  # a part of it is of no use, and what was saved before stays
            raise
        target.replace(kept)
    except FileExistsError as error:
        raise OperationError(ErrorCode.INVALID_VALUE, f"{path} is there already") from error
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise OperationError(ErrorCode.INVALID_VALUE, f"can't write {path}: {why}") from error
    _saved.add(path)
    click.echo(f"saved to {path}")


_saved: Final[set[Path]] = set()
"""The files that this conversation was saved to."""


@contextlib.contextmanager
def _history(path: Path) -> Iterator[None]:
    """Edit lines with the keys that people know, and remember them for the next time."""
    try:
        import readline
    except ImportError:  # Python can be built without it
        yield
        return
    readline.set_history_length(_HISTORY_LINES)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        # Nobody else may read it, not even for the moment in which it is written.
        before = os.umask(0o077)
        try:
            with contextlib.suppress(OSError):
                path.touch()
                path.chmod(0o600)
                readline.write_history_file(path)
        finally:
            os.umask(before)


_MOST_BYTES: Final = 24 * 1000**2
"""A body of a request has 32 MiB by default, and base64 takes four bytes for three."""


def image_part(name: str) -> dict[str, Any]:
    """Return the part of a message that is an image. Raises :class:`OperationError`."""
    # A name alone may look like a URL. lmx itself looks at the content.
    kind = mimetypes.guess_type(f"/{Path(name).name}")[0] or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{_content(name)}"}}


def audio_part(name: str) -> dict[str, Any]:
    """Return the part of a message that is a sound. Raises :class:`OperationError`."""
    form = Path(name).suffix.removeprefix(".").lower() or "wav"
    return {"type": "input_audio", "input_audio": {"data": _content(name), "format": form}}


def _content(name: str) -> str:
    if not name:
        raise OperationError(ErrorCode.MISSING_PARAMETER, "name a file")
    path = Path(name)
    try:
        return base64.b64encode(read_regular(path.expanduser(), _MOST_BYTES)).decode("ascii")
    except TooLargeError as error:
        raise OperationError(ErrorCode.MEDIA_TOO_LARGE, str(error)) from error
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise OperationError(ErrorCode.INVALID_MEDIA, f"can't read {path}: {why}") from error
