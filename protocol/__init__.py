"""What the three kinds of lmx process have in common: what they say to each other, and little else.

This package depends on the standard library, msgpack and zmq. Only :mod:`lmx.protocol.host.logs`
needs structlog. It never imports the router, a worker or the supervisor. ``PROTOCOL.md`` next to
this file describes the wire format.
"""
