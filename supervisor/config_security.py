"""The keys that open lmx, as the configuration has them."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator, model_validator

from lmx.supervisor.config_values import Key, Section


class SecurityConfig(Section):
    """The keys. ``api_keys``: a request needs one of them; none: no request needs any.
    ``admin_key``: instead of the one in ``admin.key``."""

    api_keys: tuple[Key, ...] = ()
    admin_key: Key | None = None

    @property
    def api_key_texts(self) -> tuple[str, ...]:
        """The keys as they are sent."""
        return tuple(key.get_secret_value() for key in self.api_keys)

    @property
    def admin_key_text(self) -> str | None:
        """The admin key as it is sent; None: the file's."""
        return None if self.admin_key is None else self.admin_key.get_secret_value()

    @field_validator("api_keys", mode="before")
    @classmethod
    def _keys_are_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError("is a list, also of one key: write [KEY]")
        return value

    @model_validator(mode="after")
    def _keys_differ(self) -> SecurityConfig:
        if len(set(self.api_key_texts)) < len(self.api_keys):
            raise ValueError("api_keys has one key twice")
        if self.admin_key_text in self.api_key_texts:
            raise ValueError("admin_key is one of api_keys: who may ask may not administer")
        return self
