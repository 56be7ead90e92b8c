"""The keys that open lmx, as the configuration has them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from lmx.protocol.messages.specs import ApiKey
from lmx.supervisor.config.limits import LimitsConfig
from lmx.supervisor.config.values import Key, Section


class ApiKeyConfig(Section):
    """A key for inference. ``name``: what logs and refusals call it. ``limits``: instead of those
    of every key."""

    key: Key
    name: str = Field("", max_length=60, pattern=r"^[^\x00-\x1f\x7f]*$")
    limits: LimitsConfig | None = None


class SecurityConfig(Section):
    """The keys. ``api_keys``: a request needs one of them; none: no request needs any. One may
    stand alone, or with a name and limits. ``admin_key``: instead of the one in ``admin.key``.
    ``metrics_key``: opens the metrics and nothing else; None: no key but the admin key does."""

    api_keys: tuple[ApiKeyConfig, ...] = ()
    admin_key: Key | None = None
    metrics_key: Key | None = None

    @property
    def api_key_specs(self) -> tuple[ApiKey, ...]:
        """The keys for the router."""
        return tuple(
            ApiKey(
                one.key.get_secret_value(),
                one.name,
                None if one.limits is None else one.limits.spec,
            )
            for one in self.api_keys
        )

    @property
    def admin_key_text(self) -> str | None:
        """The admin key as it is sent; None: the file's."""
        return None if self.admin_key is None else self.admin_key.get_secret_value()

    @property
    def metrics_key_text(self) -> str:
        """The metrics key as it is sent; empty: there is none."""
        return "" if self.metrics_key is None else self.metrics_key.get_secret_value()

    @field_validator("api_keys", mode="before")
    @classmethod
    def _keys_are_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError("is a list, also of one key: write [KEY]")
        if not isinstance(value, list | tuple):
            return value
        return [one if isinstance(one, dict | Section) else {"key": one} for one in value]

    @model_validator(mode="after")
    def _keys_differ(self) -> SecurityConfig:
        keys = [one.key for one in self.api_key_specs]
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
