"""Servers as a user would run them, which end when the last test here has."""
