"""What may be said to lmx when it is started: models, address and keys. They become variables of
the environment, so that they hold for every program that takes this one's place."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.command import config_option, config_path, from_words, home, own_config
from lmx.supervisor.cli.completion import MODEL_OR_SHORT_NAME
from lmx.supervisor.state.home import Home


def serving_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments and options of :func:`apply` to a command."""
    for decorate in reversed(
        (
            click.argument("models", metavar="[MODEL]...", nargs=-1, type=MODEL_OR_SHORT_NAME),
            click.option("--host", metavar="ADDRESS", help="Listen there (default: 127.0.0.1)."),
            click.option(
                "--port", type=click.IntRange(0, 65_535), help="Listen there (default: 8000)."
            ),
            click.option(
                "--api-key", "api_keys", multiple=True, metavar="KEY",
                help="Require this key. Other users can see it in `ps`; use LMX_SECURITY_API_KEYS "
                "instead.",
            ),
            click.option(
                "--take-over", "take_over", type=click.Choice(["recorded", "new"]),
                help="After a supervisor died: keep its configuration, or apply this one.",
            ),
            config_option,
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


def apply(
    models: Sequence[str],
    host: str | None,
    port: int | None,
    api_keys: Sequence[str],
    take_over: str | None,
    config: Path | None,
) -> None:
    """Put the options into this process's environment, over the variables that are there, and
    settle in whose place this lmx comes. Raises :class:`OperationError`."""
    if host is not None:
        os.environ["LMX_SERVER_HOST"] = host
    if port is not None:
        os.environ["LMX_SERVER_PORT"] = str(port)
    if api_keys:
        os.environ["LMX_SECURITY_API_KEYS"] = json.dumps(list(api_keys))
    if models:
        os.environ["LMX_MODELS"] = json.dumps(_entries(models, config), default=str)
    settle_handover(home(), config, take_over)


def refuse_unloadable(models: Sequence[str], config: Path | None) -> None:
    """Refuse models that a person has just named, and that can never be loaded, after
    :func:`apply`. Those of a configuration cost themselves alone. Raises :class:`OperationError`
    (model_source_invalid)."""
    if not models:
        return
    from lmx.protocol.host.imports import quick_imports

    with quick_imports():
        from lmx.supervisor.core.inspect_files import question_of
        from lmx.supervisor.processes.inspector import inspect_now

    named = own_config(config).models
    found = inspect_now(home(), [question_of(model) for model in named])
    problems = [
        f"{model.id} can't be loaded: {each.problem}"
        for model, each in zip(named, found, strict=True)
        if each.problem is not None and not each.by_host
    ]
    if problems:
        raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, "\n".join(problems))


def settle_handover(home: Home, config: Path | None, choice: str | None) -> None:
    """Look whether a supervisor that died has left processes, and with which configuration.

    Paths in ``LMX_MODELS`` become absolute. With the choice ``recorded`` the environment of this
    process becomes that of the launch before. Raises :class:`OperationError` (config_invalid)
    without a choice, when the configuration of this command is another one: models would end, and
    the address might change.
    """
    from lmx.protocol.host.imports import quick_imports

    with quick_imports():
        from lmx.supervisor.service.launch import left_launch, other_configuration

    _settle_variable(os.environ.get("LMX_MODELS", ""))
    launch = left_launch(home)
    if launch is None or choice == "new":
        return
    if choice == "recorded":
        launch.restore(os.environ)
        return
    other = other_configuration(launch, own_config(config), keys_kept=home.has_keys)
    if other is not None:
        here = from_words(config_path(config), os.environ)
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            "a supervisor has died, and what it started still serves with another configuration "
            "than this command has:\n"
            f"  - it was started with: {launch.words}\n"
            f"  - this command has: {here}\n"
            f"  - what would change: {other}\n"
            "Choose: --take-over recorded continues as it was, --take-over new makes these "
            "changes, and `lmx stop` ends what serves",
        )


def _settle_variable(text: str) -> None:
    """Refuse a folder in ``LMX_MODELS`` that would be taken for a repository, and make its paths
    absolute: the supervisor may continue in another folder. What else is wrong there the
    configuration says."""
    from lmx.supervisor.config.load import absolute_models
    from lmx.supervisor.config.sources import (
        SourceError,
        parse_models_variable,
        refuse_folder_as_repository,
    )

    if not text.lstrip().startswith("["):
        try:
            pairs = parse_models_variable(text)
        except SourceError:
            return
        try:
            for _, source in pairs:
                refuse_folder_as_repository(source)
        except SourceError as error:
            raise OperationError(ErrorCode.CONFIG_INVALID, f"LMX_MODELS: {error}") from error
    absolute = absolute_models(text, Path.cwd())
    if absolute != text:
        os.environ["LMX_MODELS"] = absolute


def _entries(names: Sequence[str], config: Path | None) -> list[dict[str, Any]]:
    """Return the models as the configuration has them: those of the file or of ``LMX_MODELS`` with
    all their keys, others by their source. Models that were added are served in any case."""
    from lmx.supervisor.config.load import configured_models
    from lmx.supervisor.config.sources import SourceError
    from lmx.supervisor.inventory.added_file import AddedFile

    known: dict[str, dict[str, Any]] = {}
    for entry in configured_models(config_path(config), os.environ):
        for name in (entry.get("id"), *_aliases(entry)):
            if isinstance(name, str):
                known.setdefault(name, entry)
    added = AddedFile(home().added_models).read()
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in known:
            found[str(known[name].get("id"))] = known[name]  # the configuration says if it has none
        elif name not in added:
            try:
                model_id, source = named_source(name)
            except SourceError as error:
                raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, str(error)) from error
            found[model_id] = {"id": model_id, "source": source}
    return list(found.values())


def named_source(name: str) -> tuple[str, str]:
    """Return the id and the source of a model that a person names: a short name, ``id=source``, a
    folder, a .gguf file or a repository. Raises ``SourceError``."""
    from lmx.supervisor.config.sources import (
        HubSource,
        SourceError,
        folder_path,
        parse_models_variable,
        parse_source,
        refuse_folder_as_repository,
    )

    pairs = parse_models_variable(name)
    if len(pairs) != 1:
        raise SourceError(f"{name!r} is not one model: separate models by spaces")
    model_id, source = pairs[0]
    parsed = parse_source(source)
    refuse_folder_as_repository(source)
    if not isinstance(parsed, HubSource):
        source = str(folder_path(parsed.path))  # the supervisor may continue in another one
    return model_id, source


def _aliases(entry: dict[str, Any]) -> list[Any]:
    aliases = entry.get("aliases")
    return aliases if isinstance(aliases, list) else [aliases]
