"""The supervisor: starts, watches, ends and accounts for every other lmx process.

Never imports mlx, transformers or huggingface_hub; those belong to workers and to the
short-lived fetch process. ``LIFECYCLE.md`` next to this file says how a worker lives.
"""
