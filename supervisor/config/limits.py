"""How much each key, and all of them together, may ask for, as the configuration has it."""

from __future__ import annotations

from pydantic import Field

from lmx.protocol.messages.specs import RateLimits
from lmx.supervisor.config.values import Section


class LimitsConfig(Section):
    """Limits of inference. None: without one."""

    requests_per_minute: int | None = Field(None, ge=1, le=10_000_000)
    tokens_per_minute: int | None = Field(None, ge=1, le=100_000_000_000)
    concurrent_requests: int | None = Field(None, ge=1, le=100_000)

    @property
    def spec(self) -> RateLimits:
        """The same for the router."""
        return RateLimits(
            self.requests_per_minute, self.tokens_per_minute, self.concurrent_requests
        )


class RateLimitsConfig(Section):
    """``per_key``: of each key that has no ``limits`` of its own; of each client's address where
    there are no keys. ``total``: of all of them together."""

    per_key: LimitsConfig = LimitsConfig()
    total: LimitsConfig = LimitsConfig()
