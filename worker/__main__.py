"""``python -m lmx.worker``: the supervisor starts it, with an encoded WorkerSpec on stdin."""

from lmx.protocol.host.imports import quick_imports

if __name__ == "__main__":
    with quick_imports():
        from lmx.worker.process import main
    main()
