"""Read a Perfetto trace with its own protos, and hold it against what such a file must keep."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from kvtrace_cli.analysis.export_frames import ExportSource
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir


@dataclass
class Slice:
    """A slice or instant; `parent` is the slice that was open when it began."""

    name: str
    begin_ns: int
    end_ns: int | None
    args: dict[str, Any]
    is_instant: bool
    parent: "Slice | None" = None

    @property
    def span(self) -> tuple[int, int]:
        return self.begin_ns, self.end_ns


@dataclass
class Track:
    """One track (a lane): its name, its process, and its slices in the order of the file."""

    name: str
    process: str
    slices: list[Slice] = field(default_factory=list)


def read_trace(path: Path) -> list[Track]:
    """Decode a trace; fail where slices of a track overlap, are out of order or stay open."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    processes, tracks = {}, {}
    open_slices = defaultdict(list)
    ended = defaultdict(int)
    names, details = {}, {}
    assert trace.packet[0].sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == trace.packet[0].trusted_packet_sequence_id
        assert packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert not packet.HasField("timestamp_clock_id")
        assert not packet.HasField("clock_snapshot")
        names |= {one.iid: one.name for one in packet.interned_data.event_names}
        details |= {one.iid: one.name for one in packet.interned_data.debug_annotation_names}
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            assert described.uuid not in {*processes, *tracks}
            if described.HasField("process"):
                processes[described.uuid] = described.process.process_name
            else:
                tracks[described.uuid] = Track(described.name, processes[described.parent_uuid])
            continue
        event, now = packet.track_event, packet.timestamp
        track, stack = tracks[event.track_uuid], open_slices[event.track_uuid]
        assert now >= ended[event.track_uuid], f"{track.name}: out of order, or overlapping"
        ended[event.track_uuid] = now
        if event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().end_ns = now
            continue
        is_instant = event.type == TrackEvent.TYPE_INSTANT
        assert is_instant or event.type == TrackEvent.TYPE_SLICE_BEGIN
        args = {
            details[one.name_iid]: getattr(one, one.WhichOneof("value"))
            for one in event.debug_annotations
        }
        found = Slice(
            names[event.name_iid],
            now,
            now if is_instant else None,
            args,
            is_instant,
            stack[-1] if stack else None,
        )
        track.slices.append(found)
        if not is_instant:
            stack.append(found)
    assert not any(open_slices.values()), "a slice that never ends"
    for track in tracks.values():
        for found in track.slices:
            parent = found.parent
            assert parent is None or (
                parent.begin_ns <= found.begin_ns <= found.end_ns <= parent.end_ns
            )
    return list(tracks.values())


def export_source(run_dir: Path) -> ExportSource:
    """Read and reconcile a run as the command does."""
    recording = read_recording(open_run_dir(run_dir, allow_incomplete=True))
    return ExportSource(recording, reconcile(recording), step_tables(recording))


def entry_spans(source: ExportSource) -> dict[int, tuple[int, int]]:
    """Return first and last entry of each launch, taken from the single block events."""
    spans: dict[int, tuple[int, int]] = {}
    events = source.result.block_events.filter("matched")
    for launch, now in events.select("launch_index", "gpu_globaltimer_ns").iter_rows():
        first, last = spans.get(launch, (now, now))
        spans[launch] = min(first, now), max(last, now)
    return spans


def assert_true_to(source: ExportSource, tracks: list[Track]) -> None:
    """Check that each launch with an entry is one slice with its times, and so is each replay."""
    spans = entry_spans(source)
    drawn = [one for track in tracks for one in track.slices if "launch_index" in one.args]
    assert {one.args["launch_index"]: one.span for one in drawn} == spans
    assert len(drawn) == len(spans)
    launches = source.result.launches
    streams = dict(launches.select("launch_index", "stream").iter_rows())
    expected: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for launch, replay in launches.select("launch_index", "first_of_replay").iter_rows():
        if replay is not None and launch in spans:
            expected[replay, streams[launch]].append(spans[launch])
    replays = [one for track in tracks for one in track.slices if one.name.startswith("replay ")]
    assert sorted(one.span for one in replays) == sorted(
        (min(begin for begin, _ in parts), max(end for _, end in parts))
        for parts in expected.values()
    )
