"""The router process: reads a RouterSpec from stdin, serves HTTP on the socket it names.

Exits 0 after a graceful end (SIGTERM, or no supervisor for long), 2 when the spec is no RouterSpec,
else 1. SIGQUIT writes every thread's stack to the log; SIGUSR2 notifies the clients of a loop that
hangs before that.
"""

import asyncio
import sys
from pathlib import Path

from lmx.protocol.errors import ProtocolError
from lmx.protocol.host.logs import LogFile, configure_logs
from lmx.protocol.host.memory import map_large_blocks
from lmx.protocol.host.stacks import write_stacks_on_signal
from lmx.protocol.messages.specs import RouterSpec
from lmx.protocol.wire.codec import decode
from lmx.router.jobs.hang_notice import block_signal
from lmx.router.server.process import serve


def main() -> int:
    """Run the router; return the exit status."""
    map_large_blocks()
    block_signal()
    try:
        spec = decode(sys.stdin.buffer.read()).message
    except ProtocolError as error:
        sys.stderr.write(f"lmx.router: the spec on stdin can't be read: {error.message}\n")
        return 2
    if not isinstance(spec, RouterSpec):
        sys.stderr.write(f"lmx.router: expected a RouterSpec, got {type(spec).__name__}\n")
        return 2
    log_file = LogFile(Path(spec.log.path), spec.log.max_bytes, spec.log.keep)
    log_file.attach()
    log_file.keep()
    configure_logs("router", spec.log.level)
    write_stacks_on_signal()
    asyncio.run(serve(spec))
    return 0
