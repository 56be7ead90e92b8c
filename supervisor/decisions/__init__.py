"""Decisions without a clock, a socket or a file. Pure."""
