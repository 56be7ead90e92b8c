"""``lmx chat`` on a terminal, and one answer where there is none."""

import base64
import contextlib
import mimetypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import TooLargeError, read_regular
from lmx.protocol.states import ModelKind, ModelState
from lmx.supervisor.cli.chat.client import ChatClient, PieceKind
from lmx.supervisor.cli.chat.conversation import COMMANDS, Conversation, Lines, command_of, shown
from lmx.supervisor.cli.command import given_key, read_config
from lmx.supervisor.cli.views.words import no_such_model
from lmx.supervisor.config.known_models import meant_instead, repository_of
from lmx.supervisor.sockets.client import Place, open_client
from lmx.supervisor.sockets.http_client import Remote
from lmx.supervisor.state.home import Home

_HISTORY_LINES: Final = 1000


def chat(place: Place, model: str | None, prompt: str | None, *, fetch: bool = False) -> None:
    """Talk with a model until Ctrl-D; with a prompt, or where stdin is no terminal, print one
    answer. With ``fetch`` a model that is not served is downloaded first. Raises
    :class:`OperationError`."""
    client = connect(place)
    chosen = _served(place, client, model) if fetch and model else choose(client, model)
    if not sys.stdin.isatty():
        piped = sys.stdin.read().strip()
        prompt = "\n\n".join(text for text in (prompt, piped) if text)
        if not prompt:
            raise OperationError(ErrorCode.MISSING_PARAMETER, "nothing was asked: stdin is empty")
    if prompt is not None:
        _print_answer(client, Conversation(chosen), prompt)
        return
    history = place.state if isinstance(place, Home) else Home.from_environment(os.environ).state
    _talk(history / "chat_history", client, Conversation(chosen))


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

    download_model(place, model, None)
    return choose(client, model)


def connect(place: Place) -> ChatClient:
    """Return a client for the API of an lmx. Raises :class:`OperationError`: not_running,
    supervisor_unavailable."""
    if isinstance(place, Remote):
        return ChatClient(place)
    with open_client(place) as control:
        urls = control.status().router.urls
    if not urls:
        raise OperationError(
            ErrorCode.SUPERVISOR_UNAVAILABLE, "the router is being restarted: try again"
        )
    keys = read_config(None).config.security.api_key_specs
    key = given_key(ParameterSource.COMMANDLINE) or (keys[0].key if keys else given_key())
    # The last one is the nearest: of this machine itself, if lmx listens on all addresses.
    return ChatClient(Remote.parse(urls[-1], key))


def choose(client: ChatClient, model: str | None) -> str:
    """Return the name of the model to ask: a loaded one that chats, else the first, if none is
    named. Raises :class:`OperationError` (model_not_found)."""
    if model is not None:
        name = repository_of(model)
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


def _print_answer(client: ChatClient, conversation: Conversation, prompt: str) -> None:
    answer = ""
    for piece in client.answer(conversation.model, conversation.ask(prompt)):
        if piece.kind is PieceKind.TEXT:
            answer += piece.text
            sys.stdout.write(shown(piece.text) if sys.stdout.isatty() else piece.text)
            sys.stdout.flush()
    if not answer.endswith("\n"):
        sys.stdout.write("\n")


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
            message = lines.add(line)
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
                    click.echo(f"  {f'{each} {wanted}':<16} {does}")
                click.echo('  several lines: between two """, or with \\ at the end of each')
            case _:
                click.echo(f"there is no command {name}: /help lists them")
    except OperationError as error:
        click.echo(f"lmx: {error.message}", err=True)


def _exchange(client: ChatClient, conversation: Conversation, message: str) -> None:
    """Send a message and print the answer. Ctrl-C ends the answer, and what has come of it stays
    part of the conversation."""
    answer = ""
    last: PieceKind | None = None
    try:
        with contextlib.closing(
            client.answer(conversation.model, conversation.ask(message))
        ) as pieces:
            for piece in pieces:
                if piece.kind is not last and last not in (None, PieceKind.WAITING):
                    click.echo("\n" if last is PieceKind.REASONING else "")
                last = piece.kind
                text = shown(piece.text)
                match piece.kind:
                    case PieceKind.WAITING:
                        click.secho(f"({text})", dim=True)
                    case PieceKind.REASONING:
                        click.secho(text, dim=True, nl=False)
                    case PieceKind.TEXT:
                        answer += piece.text
                        click.echo(text, nl=False)
        click.echo()
    except KeyboardInterrupt:
        click.secho("\n(stopped)", dim=True)
    except OperationError as error:
        click.echo(("\n" if answer else "") + f"lmx: {error.message}", err=True)
    finally:
        conversation.answered(answer)
        if conversation.attached:
            click.secho("(what was attached goes with your next message: or /drop it)", dim=True)


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
    kind = mimetypes.guess_type(name)[0] or "image/png"  # lmx itself looks at the content
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
