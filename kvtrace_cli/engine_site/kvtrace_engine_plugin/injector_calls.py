"""The injector's functions, called from Python."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from multiprocessing import util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# The first that is set has the library's path.
_PATH_VARIABLES = ("KVTRACE_INJECTOR", "CUDA_INJECTION64_PATH")
_SET_STEP = "kvtrace_set_step"
_END_RECORDING = "kvtrace_end_recording"
# After every finalizer of the engine's: those may still launch.
_LAST = -sys.maxsize


def injector_path() -> str | None:
    """Return the path of the injector's library, or None if there is none."""
    return next(filter(None, map(os.environ.get, _PATH_VARIABLES)), None)


def find_set_step(injector_path: str | None) -> Callable[[int], object] | None:
    """Return the injector's function for stamps if this process has the library loaded."""
    # PyDLL keeps the interpreter lock: the call is one store, shorter than giving the lock up.
    function = _find(ctypes.PyDLL, injector_path, _SET_STEP) if injector_path else None
    if function is not None:
        function.argtypes = [ctypes.c_uint32]
    return function


def end_recording_with_child(injector_path: str | None) -> None:
    """See to it that the recording of this process ends in order, if multiprocessing started it.

    A forked child of multiprocessing ends by `os._exit`, which runs no exit handler of the
    injector's, but runs the finalizers before it. They run in no other process than this one: not
    in a fork of it, and not if it is killed. Any other process has the exit handler, which comes
    later than anything that can be done here, so that is better.
    """
    if injector_path is not None and multiprocessing.parent_process() is not None:
        util.Finalize(None, end_recording, (os.getpid(), injector_path), exitpriority=_LAST)


def end_recording(process_id: int, injector_path: str) -> None:
    """End the recording of this process, if it is that one; what is launched then is not recorded.

    Does nothing where the library is not loaded.
    """
    # CDLL gives the interpreter lock up: the call may wait for what still runs on the GPU.
    function = _find(ctypes.CDLL, injector_path, _END_RECORDING)
    if function is not None and os.getpid() == process_id:
        function()


def _find(library_type: type[ctypes.CDLL], injector_path: str, name: str) -> Any:
    """Return a function that returns nothing, or None if this process has not loaded the library.

    It is never loaded here: whether the injector is in a process is the launcher's choice.
    """
    try:
        library = library_type(injector_path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        function = getattr(library, name)
    except (OSError, AttributeError):
        return None
    function.restype = None
    return function
