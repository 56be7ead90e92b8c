"""LangChain's standard tests of a chat model, on lmx: prints what became of each of them."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestLmx(ChatModelIntegrationTests):  # type: ignore[misc] # it has no types here
    """What lmx's models are: they take text, and no images, audio or PDF files."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        made: type[BaseChatModel] = ChatOpenAI
        return made

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["LMX_MODEL"],
            "base_url": os.environ["LMX_URL"],
            "api_key": os.environ["LMX_KEY"],
            "max_retries": 0,
            "timeout": 60,
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return os.environ["LMX_OTHER_MODEL"]

    @property
    def supported_usage_metadata_details(self) -> dict[str, Any]:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> Any:
        model = self.chat_model_class(**self.chat_model_params)
        if not stream:
            return model.invoke("Hello")
        whole = None
        for chunk in model.stream("Hello"):
            whole = chunk if whole is None else whole + chunk
        return whole


class Outcomes:
    """Collects how each test ended."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            name = report.nodeid.rpartition("::")[2]
            self.ended[name] = report.outcome
            if report.outcome != "passed":
                self.reasons[name] = str(report.longrepr)


if __name__ == "__main__":
    os.environ["LMX_URL"], os.environ["LMX_KEY"] = sys.argv[1:3]
    os.environ["LMX_MODEL"], os.environ["LMX_OTHER_MODEL"] = sys.argv[3:]
    outcomes = Outcomes()
    # Nothing of the settings of lmx's own tests, and no files written beside this one.
    settings = ["asyncio_mode=auto", "asyncio_default_test_loop_scope=session"]
    options = ["-q", "--noconftest", "-c", os.devnull, "--rootdir", str(Path(__file__).parent)]
    options += [f"--override-ini={one}" for one in settings]
    options += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    pytest.main([__file__, *options], plugins=[outcomes])
    print("\n" + json.dumps({"ended": outcomes.ended, "reasons": outcomes.reasons}))
