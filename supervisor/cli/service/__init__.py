"""``lmx service``: lmx as a service of launchd or systemd. Its own main loop is in
:mod:`lmx.supervisor.service`."""
