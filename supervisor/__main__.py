"""``python -m lmx.supervisor`` is ``lmx-supervisor``."""

from lmx.supervisor.cli import main

main()
