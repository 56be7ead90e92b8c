"""Requests under way and their records."""
