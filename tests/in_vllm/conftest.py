"""These tests run where vLLM is installed; elsewhere `tests/test_vllm_environment.py` runs them with its Python."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]
