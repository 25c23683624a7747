"""An engine without a GPU: vLLM's routes and launches on the emulated driver."""
