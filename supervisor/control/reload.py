"""Puts another configuration into effect while lmx runs: all of it, or nothing of it."""

from collections.abc import Callable
from dataclasses import dataclass

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.messages import control
from lmx.supervisor.config.diff import compare
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.core import Core
from lmx.supervisor.events import Events
from lmx.supervisor.inventory.added import AddedModels


def report_routing_gaps(config: Config, events: Events) -> None:
    """Note which names in ``routing`` belong to no model, neither a configured nor an added one."""
    for gap in config.routing_gaps():
        events.note("routing.incomplete", None, gap)


@dataclass(eq=False, repr=False)
class Reloader:
    """Reads the configuration that a person wrote, and applies it with the added models."""

    _read: Callable[[], Config]
    _added: AddedModels
    _core: Core
    _settings: Settings
    _events: Events

    def reload(self, why: str, now_s: float) -> control.Reloaded:
        """Read the configuration and put it into effect.

        Raises :class:`LmxError` when it is not valid, its address can't be bound, or lmx is being
        stopped. Nothing has changed then.
        """
        try:
            return self._reload(why, now_s)
        except LmxError as error:
            self._events.note("config.rejected", None, error.message, why=why)
            raise

    def differs(self) -> tuple[str, ...]:
        """Return the sections of the file that are not in effect. Raises :class:`LmxError` when
        it is not valid."""
        return compare(self._settings.current, self._added.join(self._read())).sections

    def _reload(self, why: str, now_s: float) -> control.Reloaded:
        self._core.refuse_while_stopping()
        old, written = self._settings.current, self._read()
        if not written.models and not all(isinstance(m, AddedModelConfig) for m in old.models):
            # Most likely the file is just being written. To take it would unload everything.
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                "the configuration names no models, and nothing was changed: to serve none, run "
                "`lmx stop`",
            )
        new = self._added.join(written)
        diff = self._settings.apply(new, now_s)
        self._added.report_shadowed(written, self._events)
        report_routing_gaps(new, self._events)
        detail = "; ".join(diff.sentences) or "it is the same"
        self._events.note("config.reloaded", None, detail, why=why, sections=list(diff.sections))
        return control.Reloaded(diff.sections, diff.sentences)
