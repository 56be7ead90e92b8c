"""The keys while no supervisor runs."""

from collections.abc import Callable

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.keys import ApiKey
from lmx.supervisor.config.schema import Config
from lmx.supervisor.keys.file import KeyFile
from lmx.supervisor.keys.keys import Keys
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import SupervisorLock


def keys_of_file(home: Home, config: Config | LmxError, notify: Callable[[str], None]) -> Keys:
    """Return the keys of a home's file, which the next supervisor reads. ``config`` is what it
    would have, or why there is none.

    Holds the lock of the home until the process ends. Raises :class:`OperationError`
    (already_running) if a supervisor was started meanwhile.
    """
    home.prepare()
    SupervisorLock(home.lock, notify).acquire(by_command=True)
    configured: tuple[ApiKey, ...] = ()
    closed = False
    if isinstance(config, Config):
        configured, closed = config.security.api_key_specs, config.closed_without_key
    return Keys(KeyFile(home.keys), lambda: configured, lambda: closed, lambda _name, _detail: None)
