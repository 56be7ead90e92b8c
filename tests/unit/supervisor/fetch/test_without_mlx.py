"""The fetch program converts with numpy alone, whatever else is installed."""

import subprocess
import sys
from pathlib import Path

_IMPORT = """
import sys
from pathlib import Path
from lmx.protocol.errors import OperationError
from lmx.supervisor.config.sources import GgufSource
from lmx.supervisor.fetch.main import Outlet, fetch
try:
    fetch(GgufSource("/nowhere/m.gguf"), None, Path("/nowhere"), 1, "darwin", Outlet(), 1.0)
except OperationError as error:
    print(error.code, sys.modules["mlx_lm"], file=sys.stderr)
"""


def test_the_converter_does_not_import_mlx_lm_which_macs_have(tmp_path: Path) -> None:
    """On a Mac without a GPU that Metal knows its import raises no ImportError."""
    (tmp_path / "mlx_lm.py").write_text('raise RuntimeError("No Metal device available")\n')
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_IMPORT}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.split()[-2:] == ["model_source_invalid", "None"]
