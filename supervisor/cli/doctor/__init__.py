"""``doctor``: what lmx assumes of a machine and its setup, what was found, and how to fix it."""
