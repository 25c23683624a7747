"""Trace every GPU thread block that writes vLLM's KV cache, and prove that none was missed."""

__version__ = "0.1.0"
