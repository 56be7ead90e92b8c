"""``python -m lmx.supervisor`` is ``lmx``, which is called ``lmx-supervisor`` too."""

from lmx.protocol.host.dataclass_methods import methods_at_first_use

with methods_at_first_use():
    from lmx.supervisor.cli.main import main

main()
