"""Fields of OpenAI's that say something to its own service: checked, and without effect here."""

from __future__ import annotations

from lmx.router.schema_types import FreeObject, Strict


class LabelFields(Strict):
    """Who asks, what for, and how it is billed. Prefixes are cached by what they are, so that
    the two fields about caching have nothing to say; ``cache_salt`` keeps caches apart."""

    user: str | None = None
    metadata: FreeObject | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
