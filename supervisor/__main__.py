"""``python -m lmx.supervisor`` is ``lmx-supervisor``."""

from lmx.supervisor.cli.main import main

main()
