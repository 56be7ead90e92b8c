"""The configuration in effect, in one place that every part reads when it needs a value."""

from collections.abc import Callable
from dataclasses import dataclass

from lmx.supervisor.config.diff import ConfigDiff, compare
from lmx.supervisor.config.schema import Config


@dataclass(frozen=True, slots=True)
class Change:
    """A configuration takes the place of another one."""

    old: Config
    """The configuration that was in effect."""
    new: Config
    """The configuration that is in effect from now on."""
    diff: ConfigDiff
    """What differs between the two."""


Reaction = Callable[[Change, float], None]
"""``react(change, now_s)`` carries out what a change needs. ``Settings.current`` is the new
configuration already."""


class Settings:
    """The owner of the configuration in effect: what a person wrote, with the models that were
    added while lmx ran.

    A part that needs a value reads :attr:`current` when it needs it, and keeps no copy. So a change
    reaches all parts at once, and this class need not know them. Only the parts that must do
    something about a change are called, see :meth:`on_change`.
    """

    def __init__(self, config: Config) -> None:
        self._current = config
        self._reactions: tuple[Reaction, ...] = ()

    @property
    def current(self) -> Config:
        """The configuration in effect."""
        return self._current

    def on_change(self, *reactions: Reaction) -> None:
        """Add functions that are called at each change, in this order. The first of them may refuse
        a change by raising :class:`LmxError`, and must have done nothing then. The others must
        accept it."""
        self._reactions = reactions

    def apply(self, new: Config, now_s: float) -> ConfigDiff:
        """Put another configuration into effect, and return what differs. If nothing differs, no
        function is called. Raises :class:`LmxError` when it is refused, and then the old one stays
        in effect, as it does where the first function fails in any other way."""
        old = self._current
        change = Change(old, new, compare(old, new))
        if not change.diff.sections:
            return change.diff
        self._current = new
        for react in self._reactions:
            try:
                react(change, now_s)
            except Exception:
                if react is self._reactions[0]:
                    self._current = old
                raise
        return change.diff
