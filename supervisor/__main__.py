"""``python -m lmx.supervisor`` is ``lmx``, which is called ``lmx-supervisor`` too."""

from lmx.supervisor.cli.main import main

main()
