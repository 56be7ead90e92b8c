"""One model in one process: it takes streams from routers, returns text, and answers for its
health.

It imports ``lmx.protocol`` and never the router or the supervisor. MLX is imported only below
``worker/mlx``, and only through the factory that the worker's spec names.
"""
