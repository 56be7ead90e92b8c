"""The configuration: its keys, how it is read, and what a change of it needs."""
