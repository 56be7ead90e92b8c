"""HTTP without any API: bodies, errors, access, limits, and server-sent events."""
