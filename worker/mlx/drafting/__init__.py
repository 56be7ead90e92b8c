"""Drafts of what a row says next, each from another source."""
