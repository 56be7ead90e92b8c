"""Handlers of what the router and the command line ask."""
