"""The slope of samples of memory, and their plot."""

import random
import xml.etree.ElementTree as ET

import pytest

from tests.support.faults.memory_over_time import Slope, plot, slope


def samples(mib_per_h: float, noise_mib: float, count: int = 720) -> list[tuple[float, float]]:
    draw = random.Random(1)
    return [
        (5.0 * at, 100 + mib_per_h * 5.0 * at / 3600 + draw.gauss(0, noise_mib))
        for at in range(count)
    ]


@pytest.mark.parametrize("mib_per_h", [-20.0, 0.0, 7.0, 300.0])
def test_a_line_has_its_slope(mib_per_h: float) -> None:
    found = slope(samples(mib_per_h, 0.0))
    assert found.mib_per_h == pytest.approx(mib_per_h, abs=1e-6)
    assert found.error_mib_per_h == pytest.approx(0.0, abs=1e-6)
    assert found.rises is (mib_per_h > 2)


def test_the_error_is_that_of_the_noise() -> None:
    found = slope(samples(0.0, 3.0))
    assert abs(found.mib_per_h) < 4 * found.error_mib_per_h
    assert 0.05 < found.error_mib_per_h < 5.0
    assert not found.rises
    assert slope(samples(30.0, 3.0)).rises


def test_a_cache_that_fills_in_the_beginning_is_no_slope() -> None:
    filled = [(at, mib if at > 600 else mib - 50) for at, mib in samples(0.0, 0.1)]
    assert not slope(filled).rises


def test_too_few_samples_have_none() -> None:
    with pytest.raises(ValueError, match="too few"):
        slope(samples(0.0, 1.0, 2))
    assert str(Slope(1.25, 0.31)) == "+1.2 ± 0.3 MiB/h"


def test_the_plot_is_an_image_of_both() -> None:
    root = ET.fromstring(plot({"router": samples(0, 1), "supervisor": samples(5, 1)}, "a < b"))
    lines = [part for part in root if part.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [720, 720]
