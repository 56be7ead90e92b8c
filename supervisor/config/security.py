"""The keys that open lmx, and how much each of them may ask for, as the configuration has them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, field_validator, model_validator

from lmx.protocol.messages.keys import ApiKey, RateLimits
from lmx.supervisor.config.needs import Needs
from lmx.supervisor.config.values import Key, Section

KEY_NAME_PATTERN: Final = r"^[^\x00-\x1f\x7f]*$"
KEY_NAME_WORDS: Final = "it has no control characters"


class LimitsConfig(Section):
    """Limits of requests to models. What is not said is not limited."""

    requests_per_minute: int | None = Field(None, ge=1, le=10_000_000, examples=[60])
    """How many requests a minute are answered."""
    tokens_per_minute: int | None = Field(None, ge=1, le=100_000_000_000, examples=[100_000])
    """How many tokens a minute are allowed, of prompts and answers together."""
    concurrent_requests: int | None = Field(None, ge=1, le=100_000, examples=[8])
    """How many requests are answered at a time."""

    @property
    def spec(self) -> RateLimits:
        """The same for the router."""
        return RateLimits(
            self.requests_per_minute, self.tokens_per_minute, self.concurrent_requests
        )


class RateLimitsConfig(Section):
    """Limits of requests to models. One too many gets a 429 that says when to try again."""

    per_key: Annotated[LimitsConfig, Needs.ROUTER] = LimitsConfig()
    """The limits of each key that has none of its own; of each client's address where there are no
    keys."""
    total: Annotated[LimitsConfig, Needs.ROUTER] = LimitsConfig()
    """The limits of all of them together."""


class ApiKeyConfig(Section):
    """A key for requests to models. One without a name and limits may stand alone, as a text."""

    key: Key
    """At least 16 characters. `openssl rand -hex 24` makes one."""
    name: str = Field("", max_length=60, pattern=KEY_NAME_PATTERN)
    """What logs and refusals call the key."""
    limits: LimitsConfig | None = None
    """The key's own limits, instead of `rate_limits.per_key`."""
    priority: int | None = Field(None, ge=-1_000_000, le=1_000_000, examples=[10])
    """The lowest `priority` that requests with this key may have, and the one of those that name
    none. Of requests that wait for the same model, those of a lower value begin first, and their
    prompts are read first."""


class SecurityConfig(Section):
    """The keys that open lmx. Each has at least 16 characters, ASCII and without spaces."""

    api_keys: Annotated[tuple[ApiKeyConfig, ...], Needs.ROUTER] = ()
    """A request to a model needs one of these keys, or one of `lmx key add`. Where there is no key,
    no request needs any. A key may have a name and limits of its own: `{key: KEY, name: ci, limits:
    {requests_per_minute: 60}}`."""
    admin_key: Annotated[Key | None, Needs.ROUTER] = Field(None, examples=["KEY"])
    """It opens the routes for operators. Without it the key in `$LMX_HOME/admin.key` does."""
    metrics_key: Annotated[Key | None, Needs.ROUTER] = Field(None, examples=["KEY"])
    """It opens the metrics and nothing else, as keys of `lmx key add --scope metrics` do. On
    loopback `/metrics` needs no key until models need one."""
    share_prefix_cache: Annotated[bool, Needs.ROUTER] = False
    """Whether requests of one key use the prefixes and the features of images that were computed
    for another. It saves time where keys have long prompts in common, and lets whoever has a key
    find out, by `cached_tokens` and by the time of the first token, whether another has sent a
    certain prompt or image. With one key, or none, all requests share them anyway."""

    @property
    def api_key_specs(self) -> tuple[ApiKey, ...]:
        """The keys for the router."""
        return tuple(
            ApiKey.of_secret(
                one.key.get_secret_value(),
                one.name,
                limits=None if one.limits is None else one.limits.spec,
                priority=one.priority,
            )
            for one in self.api_keys
        )

    @property
    def client_key(self) -> str | None:
        """The key with which this machine's own commands ask models; None if none is set."""
        return self.api_keys[0].key.get_secret_value() if self.api_keys else None

    @property
    def admin_key_text(self) -> str | None:
        """The admin key as it is sent; None: the file's."""
        return None if self.admin_key is None else self.admin_key.get_secret_value()

    @property
    def metrics_key_text(self) -> str:
        """The metrics key as it is sent; empty if none is set."""
        return "" if self.metrics_key is None else self.metrics_key.get_secret_value()

    @field_validator("api_keys", mode="before", json_schema_input_type=list[str | ApiKeyConfig])
    @classmethod
    def _keys_are_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError("is a list, also of one key: write [KEY]")
        if not isinstance(value, list | tuple):
            return value
        return [one if isinstance(one, dict | Section) else {"key": one} for one in value]

    @model_validator(mode="after")
    def _keys_differ(self) -> SecurityConfig:
        keys = [one.key.get_secret_value() for one in self.api_keys]
        if len(set(keys)) < len(keys):
            raise ValueError("api_keys has one key twice")
        if self.admin_key_text in keys:
            raise ValueError("admin_key is one of api_keys: who may ask may not administer")
        if self.metrics_key is not None and self.metrics_key_text in (*keys, self.admin_key_text):
            raise ValueError("metrics_key is another key too: it is for metrics alone")
        names = [one.name for one in self.api_keys if one.name]
        if len(set(names)) < len(names):
            raise ValueError("api_keys has one name twice")
        return self
