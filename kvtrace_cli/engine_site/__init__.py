"""What the launcher puts on the engine's PYTHONPATH: the engine plug-in and its entry point.

The engine may live in another environment and another Python, so nothing below imports kvtrace.
"""
