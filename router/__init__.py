"""The HTTP front of lmx: checks requests, hands them to workers, turns tokens into SSE.

One process, one asyncio loop. It holds no model and no state that outlives it: what it knows
of models it learns from the supervisor's snapshots, and a stream lives in the worker.
Imports :mod:`lmx.protocol`, never a worker, the supervisor or the engine.
"""
