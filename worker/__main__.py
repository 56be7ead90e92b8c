"""``python -m lmx.worker``: the supervisor starts it, with an encoded WorkerSpec on stdin."""

from lmx.worker.process import main

if __name__ == "__main__":
    main()
