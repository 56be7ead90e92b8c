"""``python -m lmx.router``: the supervisor starts it, with an encoded RouterSpec on stdin."""

import sys

from lmx.protocol.host.authorities import without_authorities
from lmx.protocol.host.imports import quick_imports

if __name__ == "__main__":
    # aiohttp reads all certificates when it is imported, and few requests need them.
    with quick_imports(), without_authorities():
        from lmx.router.process import main
    sys.exit(main())
