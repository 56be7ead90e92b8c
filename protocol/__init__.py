"""What the three kinds of lmx process say to each other, and nothing else.

Depends on the standard library, msgpack and zmq (structlog in :mod:`lmx.protocol.host.logs`
alone). Never imports the router, a worker or the supervisor. The wire format is described
in ``PROTOCOL.md`` beside this file.
"""
