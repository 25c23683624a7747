"""Recording switched off and on while the engine runs, so that both are one server's."""

import time
from pathlib import Path
from typing import Final

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.json_lines import numbered_objects
from kvtrace_cli.errors import RunFailedError

NAME: Final = "kvtrace.switch"
_STRUCT: Final = "kvtrace_switch"


class RecordingSwitch:
    """The file that the injector of each process of a run follows.

    A turn is a number: recording is on in even ones. The file is made before the engine starts.
    """

    def __init__(self, raw_dir: Path) -> None:
        """Take over the switch of a raw directory; `create` makes its file."""
        self._raw_dir = raw_dir
        self._path = raw_dir / NAME
        self._turn = 0

    @property
    def is_on(self) -> bool:
        """Whether what is launched now is recorded."""
        return self._turn % 2 == 0

    def create(self) -> None:
        """Write the file: recording is on."""
        self._write()

    def set(self, *, on: bool, patience_s: float, poll_s: float) -> None:
        """Switch, and wait until every process that records says that it did.

        Args:
            on: whether to record from here on; nothing is done if that is so already.
            patience_s: how long to wait for them.
            poll_s: how often to look.

        Raises:
            RunFailedError: a process did not follow, or none records.
        """
        if on == self.is_on:
            return
        self._turn += 1
        self._write()
        deadline = time.monotonic() + patience_s
        while late := self._late():
            if time.monotonic() >= deadline:
                raise RunFailedError(
                    f"{self._path}: turn {self._turn} was not taken within {patience_s:g} s by "
                    f"{', '.join(late)}; see what its journal says of a failure"
                )
            time.sleep(poll_s)

    def _write(self) -> None:
        asked = abi.ffi().new(f"{_STRUCT} *")
        asked.turn = self._turn
        # In place: processes have the file mapped.
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(bytes(abi.ffi().buffer(asked)))

    def _late(self) -> list[str]:
        journals = sorted(self._raw_dir.glob("*.journal.jsonl"))
        late = [path.name for path in journals if self._turn not in _turns(path)]
        return late if journals else ["any process: none has a journal"]


def _turns(journal: Path) -> set[int]:
    lines = (line for _, line in numbered_objects(journal))
    return {line["turn"] for line in lines if line.get("event") == "recording_switched"}
