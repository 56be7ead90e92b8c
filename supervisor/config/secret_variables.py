"""The variables of an environment that hold secrets, which most processes do not get."""

import re
from collections.abc import Mapping
from typing import Final

_OWN_KEYS: Final = "LMX_SECURITY_"

_SECRET: Final = re.compile(
    rf"^{_OWN_KEYS}|^OTEL_\w+_HEADERS$"
    # The router's client of a collector has a certificate, and this is the path of its key.
    r"|^(?!OTEL_\w+_CLIENT_KEY$)(.*_)?(TOKEN|SECRET|CREDENTIAL|(API)?KEY)S?$"
    r"|PASS(WORD|WD|PHRASE)?S?$|_(PWD|PAT|DSN)$|(^|_)(DATABASE|REDIS|MONGO(DB)?)_UR[IL]$",
    re.IGNORECASE,
)
"""The names of variables that hold a secret, as HF_TOKEN and PGPASSWORD do."""

COLLECTOR_HEADERS: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
"""The variables with the headers for a collector of traces, a key among them. The router has them
from its spec."""


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without secrets, as children get it: those run strangers' code and read
    strangers' bytes. The router has lmx's own keys from its spec, and only the fetch program needs
    the hub's token."""
    hidden = keys(environment)
    return {name: value for name, value in environment.items() if name not in hidden}


def without_own_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as the fetch program gets it: with the hub's token, and without lmx's
    own keys."""
    return {name: value for name, value in environment.items() if not name.startswith(_OWN_KEYS)}


def keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that children do not get: lmx's own keys, and whatever is
    named like a secret."""
    return {name: value for name, value in environment.items() if _SECRET.search(name)}
