"""What people should know about the keys: odd, but no reason not to start. Pure."""

from collections.abc import Sequence

from lmx.protocol.messages.keys import ApiKey, KeyScope
from lmx.protocol.web_origins import is_loopback
from lmx.supervisor.config.schema import Config


def key_notices(config: Config, stored: Sequence[ApiKey]) -> list[str]:
    """Return a sentence for each such thing. ``stored`` are the keys of lmx's home."""
    configured = config.security.api_key_specs
    names = {key.name for key in configured if key.name}
    notices = [
        f"two keys have the name {key.name!r}, one of security.api_keys and one of `lmx key add`: "
        "logs and lists don't tell them apart. Rename the one in the configuration, or run "
        f"`lmx key revoke {key.name}`"
        for key in stored
        if key.name in names
    ]
    if any(KeyScope.INFERENCE in key.scopes for key in (*configured, *stored)):
        return notices
    server = config.server
    if config.closed_without_key:
        notices.append(
            f"{server.host} can be reached by others and there is no key for requests to "
            "models: none is answered until `lmx key add NAME` makes one"
        )
    elif is_loopback(server.host) and (server.allowed_hosts or "*" in server.cors_origins):
        notices.append(
            "others may ask through what server.allowed_hosts and server.cors_origins name, and no "
            "key protects the models: `lmx key add NAME` makes one"
        )
    return notices
