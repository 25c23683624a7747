"""A timeline as a Perfetto trace: TrackEvent packets, written one by one with their builder.

Source: Perfetto's reference on writing track events by hand. The trace has one clock, its default
one; here it stands for the GPU globaltimer, and no packet says anything else.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from kvtrace_cli.analysis.export_slice_schema import DETAILS
from kvtrace_cli.analysis.export_tracks import Timeline
from kvtrace_cli.errors import ConfigError

try:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
        TracePacket,
        TrackDescriptor,
        TrackEvent,
    )
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
except ModuleNotFoundError as error:
    raise ConfigError(
        f"--perfetto needs the Python package {(error.name or 'perfetto').split('.')[0]}, which is "
        "not installed: pip install 'kvtrace[perfetto]'"
    ) from error

_DESCRIPTION: Final = (
    "Slices run from the first to the last block entry, on the GPU globaltimer (ns). They say when "
    "blocks began, nothing of how long a kernel ran."
)
# Any number but 0; packets with interned texts must be of one sequence.
_SEQUENCE_ID: Final = 1
_LANE_KEY: Final = ("process_id", "track_order", "track_name", "lane")


def write_trace(path: Path, timeline: Timeline, process_names: Mapping[int, str]) -> None:
    """Write a timeline as a trace file.

    A slice without length is an instant, unless another may lie in it.

    Args:
        path: the file; is replaced.
        timeline: its times become the trace's, unchanged.
        process_names: what to call each process of the timeline.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("wb") as file:
        writer = _Writer(file)
        for process_id in timeline.slices["process_id"].unique(maintain_order=True):
            writer.process(process_id, process_names[process_id])
        for lane in timeline.slices.partition_by(_LANE_KEY, maintain_order=True):
            writer.track(lane.row(0, named=True))
            writer.slices(lane.iter_rows(named=True))


class _Writer:
    """Writes packets of one sequence; each text goes in once and is a number from then on."""

    def __init__(self, file: IO[bytes]) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._names: dict[str, int] = {}
        self._details: dict[str, int] = {}
        self._track_uuid = 0
        self._is_first = True

    def process(self, process_id: int, name: str) -> None:
        """Describe a process."""
        packet = self._packet()
        descriptor = packet.track_descriptor
        descriptor.uuid = _uuid(process_id)
        descriptor.description = _DESCRIPTION
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        descriptor.process.pid = process_id
        descriptor.process.process_name = name
        self._builder.write_packet(packet)

    def track(self, lane: Mapping[str, Any]) -> None:
        """Describe a lane, whose slices follow. Lanes of one track have the same name."""
        packet = self._packet()
        descriptor = packet.track_descriptor
        self._track_uuid = _uuid(*(lane[name] for name in _LANE_KEY))
        descriptor.uuid = self._track_uuid
        descriptor.parent_uuid = _uuid(lane["process_id"])
        descriptor.name = lane["track_name"]
        descriptor.description = _DESCRIPTION
        descriptor.sibling_order_rank = lane["track_order"]
        self._builder.write_packet(packet)

    def slices(self, slices: Any) -> None:
        """Write the slices of a lane: parents before their children, in the order of time."""
        open_until: int | None = None
        following = iter(slices)
        found = next(following, None)
        while found is not None:
            after = next(following, None)
            if found["depth"] == 0 and open_until is not None:
                self._end(open_until)
                open_until = None
            begin, end = found["begin_ns"], found["end_ns"]
            has_children = found["depth"] == 0 and after is not None and after["depth"] > 0
            if begin == end and not has_children:
                self._begin(found, TrackEvent.TYPE_INSTANT)
            else:
                self._begin(found, TrackEvent.TYPE_SLICE_BEGIN)
                if has_children:
                    open_until = end
                else:
                    self._end(end)
            found = after
        if open_until is not None:
            self._end(open_until)

    def _begin(self, found: Mapping[str, Any], kind: int) -> None:
        packet = self._packet()
        packet.timestamp = found["begin_ns"]
        event = packet.track_event
        event.type = kind
        event.track_uuid = self._track_uuid
        event.name_iid = self._interned(
            found["name"], self._names, packet.interned_data.event_names
        )
        for name in DETAILS:
            value = found[name]
            if value is None:
                continue
            detail = event.debug_annotations.add()
            detail.name_iid = self._interned(
                name, self._details, packet.interned_data.debug_annotation_names
            )
            if isinstance(value, str):
                detail.string_value = value
            else:
                detail.uint_value = value
        self._builder.write_packet(packet)

    def _end(self, end_ns: int) -> None:
        packet = self._packet()
        packet.timestamp = end_ns
        packet.track_event.type = TrackEvent.TYPE_SLICE_END
        packet.track_event.track_uuid = self._track_uuid
        self._builder.write_packet(packet)

    def _packet(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE_ID
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        if self._is_first:
            packet.sequence_flags |= TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
            packet.first_packet_on_sequence = True
            self._is_first = False
        return packet

    @staticmethod
    def _interned(text: str, known: dict[str, int], announced: Any) -> int:
        """Return the number of a text, which is announced at its first use."""
        if text not in known:
            known[text] = len(known) + 1
            announced.add(iid=known[text], name=text)
        return known[text]


def _uuid(*parts: object) -> int:
    """Return a number that stands for a process or a lane, the same in every export."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
