"""One model in one process: takes streams from routers, gives back text, answers for its health.

Imports ``lmx.protocol`` and never the router or the supervisor. MLX is imported below
``worker/mlx`` alone, and that only through the factory that the worker's spec names.
"""
