"""Start the engine, send the requests, stop it, and keep what was recorded."""
