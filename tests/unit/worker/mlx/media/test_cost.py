"""How long computing is foreseen to take: what was measured decides, and soon."""

import pytest

from lmx.worker.mlx.media.cost import ComputingCost


def test_what_was_not_measured_takes_what_slow_machines_take() -> None:
    assert ComputingCost(1e-9).seconds("attention", 1e9) == pytest.approx(1.0)


def test_each_kind_is_learned_alone() -> None:
    cost = ComputingCost(1e-9)
    cost.measured("attention", 1e6, 1e-6)
    assert cost.seconds("attention", 1e9) == pytest.approx(1e-3)
    assert cost.seconds("Linear", 1e9) == pytest.approx(1.0)


def test_a_machine_that_becomes_busy_is_noticed_in_a_few_parts() -> None:
    cost = ComputingCost(1e-9)
    cost.measured("Linear", 1e6, 1e-6)
    for _ in range(5):
        cost.measured("Linear", 1e6, 1e-5)
    assert cost.seconds("Linear", 1e6) == pytest.approx(1e-5, rel=0.05)


def test_what_took_too_long_together_is_foreseen_to_take_longer() -> None:
    cost = ComputingCost(1e-9)
    cost.measured("attention", 1e6, 1e-6)
    cost.exceeded({"attention", "Linear"}, 100.0)
    assert cost.seconds("attention", 1e6) == pytest.approx(2e-6)
    assert cost.seconds("Linear", 1e6) == pytest.approx(2e-3)
