"""The process that renders Markdown: ``python -m lmx.router.console.markdown_main SECONDS``.

A request that takes more than so many seconds of the processor ends it; one that waits for a
processor, or stands still, is not to blame. Some of pygments' patterns take for ever on some texts,
within one call that nothing in Python can interrupt: only a signal that kills does.

Each line of its input is a JSON object with ``blocks``, a list of texts. Each line of its output is
one with their trees, in the same order. It ends when its input does.
"""

import signal
import sys

import orjson

from lmx.router.console.markdown_tree import markdown_tree


def main(deadline_s: int) -> None:
    """Serve until the input ends."""
    # A terminal's Ctrl-C reaches this process too, and is not meant for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, deadline_s)
        blocks = [markdown_tree(text) for text in orjson.loads(line)["blocks"]]
        sys.stdout.buffer.write(orjson.dumps({"blocks": blocks}) + b"\n")
        sys.stdout.buffer.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
