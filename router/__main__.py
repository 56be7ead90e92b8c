"""``python -m lmx.router``: the supervisor starts it, with an encoded RouterSpec on stdin."""

import sys

from lmx.protocol.host.imports import quick_imports

if __name__ == "__main__":
    with quick_imports():
        from lmx.router.process import main
    sys.exit(main())
