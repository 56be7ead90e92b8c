"""The keys of a model that is divided among machines."""

from typing import Any

import pytest
from pydantic import ValidationError

from lmx.supervisor.config.schema import ModelConfig

RDMA = [[None, "rdma_en5"], ["rdma_en4", None]]


def model(**keys: Any) -> ModelConfig:
    return ModelConfig.model_validate({"id": "m", "source": "/m", **keys})


def test_each_of_the_hosts_has_a_rank_besides_this_machine() -> None:
    found = model(hosts=["studio", "attic"])
    assert (found.ranks, found.ranks_here) == (3, 1)
    assert model(hosts=["studio"], ranks=2).ranks == 2
    assert (model(ranks=2).ranks, model(ranks=2).ranks_here) == (2, 2)
    assert model().ranks_here == 1


def test_machines_are_joined_by_rdma_if_it_says_by_which_devices() -> None:
    found = model(hosts=["studio"], backend="jaccl", rdma_devices=RDMA)
    assert found.rdma_devices == ((None, "rdma_en5"), ("rdma_en4", None))
    assert (model(hosts=["studio"]).backend, model(hosts=["studio"]).rdma_devices) == ("ring", ())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"hosts": ["studio", "studio"]}, "each machine has one rank"),
        ({"hosts": ["studio"], "ranks": 3}, "Leave ranks out"),
        ({"hosts": [f"m{n}" for n in range(8)]}, "at most 7"),
        ({"backend": "jaccl"}, "name them in hosts"),
        ({"hosts": ["studio"], "backend": "jaccl"}, "2 lists of 2"),
        ({"hosts": ["studio"], "rdma_devices": RDMA}, "are for backend: jaccl"),
        *(
            ({"hosts": ["studio"], "backend": "jaccl", "rdma_devices": wrong}, said)
            for wrong, said in (
                (RDMA[:1], "2 lists of 2"),
                ([RDMA[0], RDMA[0]], "2 lists of 2"),
                ([[None, None], RDMA[1]], "2 lists of 2"),
                ([[None, "rdma_en5", "rdma_en6"], RDMA[1]], "2 lists of 2"),
                ([[None, "/etc/passwd"], RDMA[1]], "pattern"),
            )
        ),
        ({"hosts": ["studio"], "adapters": {"a": "/a"}}, "can't have adapters"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        model(**keys)
