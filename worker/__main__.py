"""``python -m lmx.worker``: started by the supervisor, with an encoded WorkerSpec on stdin."""

from lmx.worker.process import main

if __name__ == "__main__":
    main()
