"""Keeps the one router process running, replaces it, and keeps what it has counted."""
