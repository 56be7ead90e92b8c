"""What lmx replaces in transformers, so that no checkpoint brings code along."""

import inspect
import re

import pytest
from transformers import dynamic_module_utils

from tests.support.references.private_parts import PARTS, find, said

pytestmark = pytest.mark.engine
LIBRARY = "transformers"


def test_every_dynamic_module_goes_through_the_function_that_is_replaced() -> None:
    (part,) = PARTS[LIBRARY]
    assert find(LIBRARY, part) is not None
    words = said(LIBRARY, part.where, part.files, part.use)
    source = inspect.getsource(dynamic_module_utils.get_class_from_dynamic_module)
    assert "return get_class_in_module(" in source, f"{words}classes are loaded in another way"
    # It may be replaced already in this process: the source says what it takes and executes.
    whole = inspect.getsource(dynamic_module_utils)
    takes = re.search(r"def get_class_in_module\(\s*class_name: str", whole)
    assert takes, f"{words}it no longer takes the name of the class first"
    assert whole.count("exec_module(") == 1, f"{words}code is executed in more places than one"
