"""``python -m lmx.router``: the supervisor starts it, with an encoded RouterSpec on stdin."""

import sys

from lmx.protocol.host.imports import quick_imports
from lmx.router.authorities import without_authorities

if __name__ == "__main__":
    # aiohttp reads all certificates when it is imported, and few requests need them.
    with quick_imports(), without_authorities():
        from lmx.router.process import main
    sys.exit(main())
