"""How many tokens a second workers make."""

from lmx.protocol.token_rates import TokenRates
from tests.support.fakes.admin_lines import cold_line, status_line


def test_a_rate_is_that_of_the_last_seconds_and_begins_again_with_each_worker() -> None:
    rates = TokenRates()

    def rate(tokens: int, now_s: float, instance: str = "1") -> float | None:
        rates.take(
            [status_line("a", instance=instance, tokens_total=tokens), cold_line("b")], now_s
        )
        return rates.of(instance)

    assert rate(1000, 0.0) is None
    assert [rate(1000 + 50 * now, float(now)) for now in range(1, 8)] == [50.0] * 7
    assert [rate(1350, float(now)) for now in range(8, 12)] == [37.5, 25.0, 12.5, 0.0]
    assert rate(0, 12.0, "2") is None, "a counter of another worker"
    assert rate(10, 13.0, "2") == 10.0
    assert rates.of("1") is None
    assert rates.of(None) is None
