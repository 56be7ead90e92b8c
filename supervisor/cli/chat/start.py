"""Starts lmx for a conversation, if it is clear that there will be somebody to talk with."""

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.snapshot import ROUTE_NAMES
from lmx.supervisor.cli.command import own_config
from lmx.supervisor.cli.serving.background import ensure_started
from lmx.supervisor.cli.views.words import no_such_model
from lmx.supervisor.config.known_models import meant_instead, repository_of
from lmx.supervisor.config.schema import Config
from lmx.supervisor.inventory.added import with_added
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.sockets.client import supervisor_runs
from lmx.supervisor.state.home import Home


def start_for(home: Home, model: str | None, *, fetch: bool) -> None:
    """Start lmx in the background if it does not run. With ``fetch`` a repository is downloaded
    later. Raises :class:`OperationError`: model_not_found for a model that it would not have."""
    if supervisor_runs(home):
        return
    config = with_added(own_config(None), AddedFile(home.added_models).read())
    refuse_unknown(config, model, fetch=fetch)
    ensure_started(home)


def refuse_unknown(config: Config, model: str | None, *, fetch: bool) -> None:
    """Raise :class:`OperationError` (model_not_found) for a name that an lmx with a configuration
    would not answer for, and for no name if it has no models. Pure."""
    if model is None:
        if not config.models:
            raise OperationError(
                ErrorCode.MODEL_NOT_FOUND,
                "no model is served yet: `lmx run qwen3-8b` downloads one and talks with it",
            )
        return
    known = {
        name for each in config.models for name in (*each.names, each.source.partition("@")[0])
    }
    known |= {*ROUTE_NAMES, *config.routing.routes}
    name = repository_of(model)
    if known & {model, name} or config.routing.patterns:
        return
    if not (fetch and "/" in name):
        error = no_such_model(model, [each.id for each in config.models])
        raise OperationError(error.code, f"{error.message}{meant_instead(model)}")
