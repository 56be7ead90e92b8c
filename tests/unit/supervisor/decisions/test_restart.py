"""Backoff and quarantine."""

from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.states import ExitCause
from lmx.supervisor.decisions.restart import (
    Decision,
    FailureRecord,
    Quarantine,
    RestartPolicy,
    StartAgain,
    StayDown,
    after_exit,
)

POLICY = RestartPolicy(base_s=0.5, max_s=30, stable_after_s=10, max_failures=3, window_s=60)
FAILURES = [
    ExitCause.CRASH,
    ExitCause.SIGNAL,
    ExitCause.HANG,
    ExitCause.LOAD_FAILED,
    ExitCause.OUT_OF_MEMORY,
]


def decide(
    record: FailureRecord,
    cause: ExitCause = ExitCause.CRASH,
    *,
    wanted: bool = True,
    ready_s: float = 0.0,
    now_s: float = 0.0,
    jitter: float = 0.999,
) -> tuple[FailureRecord, Decision]:
    return after_exit(
        record, cause, wanted=wanted, was_ready_for_s=ready_s, now_s=now_s, jitter=jitter,
        policy=POLICY,
    )  # fmt: skip


def test_the_fourth_failure_within_a_minute_quarantines() -> None:
    record = FailureRecord()
    for now_s in (0.0, 10.0, 20.0):
        record, decision = decide(record, now_s=now_s)
        assert isinstance(decision, StartAgain)
    _, decision = decide(record, now_s=59.9)
    assert decision == Quarantine(4)
    _, decision = decide(record, now_s=60.1)
    assert isinstance(decision, StartAgain)


def test_waits_double_up_to_the_limit_and_a_stable_time_resets_them() -> None:
    record = FailureRecord()
    waits = []
    for number in range(9):
        record, decision = decide(record, now_s=number * 100.0, jitter=1.0)
        assert isinstance(decision, StartAgain)
        waits.append(decision.wait_s)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    _, decision = decide(record, now_s=10_000.0, ready_s=10.0, jitter=1.0)
    assert decision == StartAgain(0.5)


def test_a_failure_that_comes_again_each_time_quarantines_at_once() -> None:
    _, decision = after_exit(
        FailureRecord(), ExitCause.LOAD_FAILED, wanted=True, was_ready_for_s=0.0, now_s=0.0,
        jitter=0.5, policy=POLICY, permanent=True,
    )  # fmt: skip
    assert decision == Quarantine(1)


def test_what_the_machine_lacks_is_tried_again_as_long_as_it_takes() -> None:
    record, waits = FailureRecord(), []
    for _ in range(50):
        record, decision = decide(record, ExitCause.HOST, jitter=1.0)
        assert isinstance(decision, StartAgain)
        waits.append(decision.wait_s)
    assert waits[:3] == [0.5, 1, 2]
    assert waits[-1] == 30
    assert record.failed_at_s == ()
    assert decide(record, ExitCause.HOST, wanted=False)[1] == StayDown()


def test_what_was_asked_for_is_no_failure() -> None:
    for cause in set(ExitCause) - {*FAILURES, ExitCause.HOST}:
        record, decision = decide(FailureRecord(), cause)
        assert (record, decision) == (FailureRecord(), StartAgain(0.0))
        assert decide(FailureRecord(), cause, wanted=False)[1] == StayDown()


@given(
    st.lists(
        st.tuples(st.sampled_from(FAILURES), st.floats(0, 200), st.floats(0, 50), st.floats(0, 1)),
        max_size=60,
    )
)
def test_no_wait_is_negative_or_over_the_limit(
    exits: list[tuple[ExitCause, float, float, float]],
) -> None:
    record, now_s = FailureRecord(), 0.0
    for cause, gap_s, ready_s, jitter in exits:
        now_s += gap_s
        record, decision = decide(record, cause, ready_s=ready_s, now_s=now_s, jitter=jitter)
        recent = [at for at in record.failed_at_s if now_s - at < POLICY.window_s]
        assert isinstance(decision, Quarantine) == (len(recent) > POLICY.max_failures)
        if isinstance(decision, StartAgain):
            assert 0 <= decision.wait_s <= POLICY.max_s
