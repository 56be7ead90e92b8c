"""For how long a worker has been idle, and how long it was asked to stay."""

from lmx.worker.service.admission import IdleClock


def test_idle_counts_from_the_load_and_then_from_the_last_end() -> None:
    use = IdleClock()
    assert use.idle_for_s(0, 5.0) == 0, "not loaded"
    use.loaded(10.0)
    assert use.idle_for_s(0, 15.0) == 5
    assert use.idle_for_s(1, 15.0) == 0, "one is in flight"
    use.ended(None, 20.0)
    assert use.idle_for_s(0, 21.0) == 1


def test_the_last_request_that_can_say_decides() -> None:
    use = IdleClock()
    use.ended(0.0, 1.0)
    use.served(2.0)
    assert (use.keep_alive_s, use.idle_for_s(0, 3.0)) == (0.0, 1.0)
    use.ended(None, 3.0)
    assert use.keep_alive_s is None
    use.ended(-1.0, 3.0)
    assert use.keep_alive_s == -1
