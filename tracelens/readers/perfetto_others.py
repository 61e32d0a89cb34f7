"""What Perfetto traces hold besides TrackEvents: stack samples, the scheduler, GPU stages, names of processes.

Scheduler switches become slices of kind "other" on one track a CPU; GPU stages become slices on a stream, of kind
"kernel" only where the queue or stage is said to be compute. Samples have a weight only if it is said to be in ns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from tracelens.readers.perfetto_args import encoded
from tracelens.readers.perfetto_clocks import BOOTTIME, MAX_TIME, MONOTONIC, Clock
from tracelens.readers.perfetto_events import TrackEvents
from tracelens.readers.perfetto_sequence import Sequence, text
from tracelens.readers.perfetto_slices import COMPLETE
from tracelens.readers.perfetto_tracks import Tracks
from tracelens.readers.stacks import Frame, small

COMPUTE = 2
NANOSECONDS = 1
_FTRACE_CLOCKS: dict[int, Clock] = {0: BOOTTIME}
Sample = tuple[int, int, int, tuple[Frame, ...], int, bool | None]
"""(clock index, reading, track_id, frames outermost first, weight_ns, on_cpu)"""


class Others:
    """Decodes packets other than TrackEvents."""

    def __init__(self, track_events: TrackEvents, tracks: Tracks, losses: Counter[str]) -> None:
        self.samples: list[Sample] = []
        self._events = track_events
        self._tracks = tracks
        self._losses = losses
        self._switches: dict[int, list[tuple[int, int, int, str]]] = defaultdict(list)
        self._switches_from = 0
        self._cpus: set[int] = set()
        self.handlers = {
            "track_descriptor": self._track_descriptor,
            "thread_descriptor": self._thread_descriptor,
            "process_descriptor": lambda packet, sequence: tracks.name_process(packet.process_descriptor),
            "process_tree": self._process_tree,
            "ftrace_events": self._ftrace,
            "perf_sample": self._perf_sample,
            "stack_sample": self._stack_sample,
            "streaming_profile_packet": self._streaming_profile,
            "gpu_render_stage_event": self._gpu_stage,
            "trace_stats": self._trace_stats,
        }

    def _track_descriptor(self, packet: Any, sequence: Sequence) -> None:
        described = packet.track_descriptor
        if not described.HasField("uuid"):
            self._tracks.incomplete += 1
            return
        self._tracks.describe(described)
        if described.HasField("thread") and described.thread.HasField("tid") and sequence.valid:
            sequence.adopt(described.thread)

    def _thread_descriptor(self, packet: Any, sequence: Sequence) -> None:
        thread = packet.thread_descriptor
        if thread.thread_name:
            self._tracks.threads[thread.pid, thread.tid] = text(thread.thread_name)
        if sequence.valid:
            sequence.adopt(thread)

    def _process_tree(self, packet: Any, sequence: Sequence) -> None:
        for process in packet.process_tree.processes:
            if process.cmdline:
                self._tracks.processes[process.pid] = text(process.cmdline[0])
        for thread in packet.process_tree.threads:
            if thread.name:
                self._tracks.threads[thread.tgid, thread.tid] = text(thread.name)

    def _ftrace(self, packet: Any, sequence: Sequence) -> None:
        bundle = packet.ftrace_events
        cpu = bundle.cpu
        self._losses["ftrace-lost"] += bundle.lost_events
        if cpu not in self._cpus:
            # Before the newest of the CPUs' first bundles, some CPUs are blind.
            self._cpus.add(cpu)
            self._switches_from = max(self._switches_from, getattr(bundle, "previous_bundle_end_timestamp", 0))
        clock = _FTRACE_CLOCKS.get(bundle.ftrace_clock)
        for event in bundle.event:
            if event.HasField("sched_switch"):
                switch = event.sched_switch
                self._switch(cpu, clock, event.timestamp, switch.next_pid, switch.next_comm)
            else:
                self._losses["ftrace-unread"] += 1
        compact = bundle.compact_sched
        self._losses["ftrace-empty"] += not bundle.event and not compact.switch_timestamp
        names = [text(name) for name in compact.intern_table]
        at = 0
        for step, pid, name in zip(
            compact.switch_timestamp, compact.switch_next_pid, compact.switch_next_comm_index, strict=False
        ):
            at += step
            self._switch(cpu, clock, at, pid, names[name] if name < len(names) else "")

    def _switch(self, cpu: int, clock: Clock, at: int, pid: int, name: Any) -> None:
        moment = self._events.on(clock, at)
        if moment is not None:
            self._switches[cpu].append((*moment, pid, text(name)))

    def close(self) -> None:
        """Turn the scheduler's switches into slices, when all are read."""
        events = self._events.events
        for cpu, switches in sorted(self._switches.items()):
            switches.sort(key=lambda switch: switch[1])
            track_id = self._tracks.track(("cpu", cpu))
            for (clock, at, pid, name), (_, until, _, _) in pairwise(switches):
                if pid and at >= self._switches_from and until > at:
                    row = events.add(clock, at, COMPLETE, track_id, name or str(pid), None, encoded({"tid": pid}))
                    events.duration[row] = until - at

    def _perf_sample(self, packet: Any, sequence: Sequence) -> None:
        sample = packet.perf_sample
        if sample.WhichOneof("optional_sample_skipped_reason") is not None:
            self._losses["skipped-samples"] += 1
            return
        frames = sequence.callstacks.get(sample.callstack_iid)
        moment = self._events.moment(packet, sequence)
        self._sample(moment, sample.pid, sample.tid, frames, 0, True)

    def _stack_sample(self, packet: Any, sequence: Sequence) -> None:
        sample = packet.stack_sample
        pid, tid = sequence.tasks.get(sample.task_context_iid, (None, None))
        if sample.HasField("task_context"):
            pid, tid = sample.task_context.pid, sample.task_context.tid
        if sample.HasField("callstack"):
            inline = sample.callstack.frames
            frames: Any = tuple(
                Frame(text(f.function_name), text(f.source_file) or None, f.line_number or None) for f in inline
            )
        else:
            frames = sequence.callstacks.get(sample.callstack_iid)
        unit = sequence.weight_units.get(sample.primary_descriptor_iid, sequence.sample_unit)
        if sample.HasField("primary_descriptor"):
            unit = sample.primary_descriptor.unit
        weight = sample.primary_weight if unit == NANOSECONDS and sample.primary_weight < MAX_TIME else 0
        self._sample(self._events.moment(packet, sequence), pid, tid, frames, weight, None)

    def _streaming_profile(self, packet: Any, sequence: Sequence) -> None:
        profile = packet.streaming_profile_packet
        if sequence.thread is None or sequence.reference_us is None:
            self._losses["bad-samples"] += len(profile.callstack_iid)
            return
        if sequence.sampled_us is None:
            sequence.sampled_us = sequence.reference_us
        for iid, step in zip(profile.callstack_iid, profile.timestamp_delta_us, strict=False):
            sequence.sampled_us += step
            moment = self._events.on(MONOTONIC, sequence.sampled_us * 1000)
            self._sample(moment, *sequence.thread, sequence.callstacks.get(iid), 0, None)

    def _sample(
        self,
        moment: tuple[int, int] | None,
        pid: int | None,
        tid: int | None,
        frames: tuple[Frame, ...] | None,
        weight: int,
        on_cpu: bool | None,
    ) -> None:
        if moment is None:
            return
        if not frames:
            self._losses["bad-samples"] += 1
            return
        self.samples.append((*moment, self._tracks.thread_track(pid, tid), frames, weight, on_cpu))

    def _gpu_stage(self, packet: Any, sequence: Sequence) -> None:
        stage = packet.gpu_render_stage_event
        moment = self._events.moment(packet, sequence)
        if moment is None:
            return
        if stage.duration >= MAX_TIME:
            self._losses["bad-time"] += 1
            return
        queue, queue_kind = sequence.gpu_stages.get(stage.hw_queue_iid, (None, 0))
        name, stage_kind = sequence.gpu_stages.get(stage.stage_iid, (None, 0))
        number = stage.hw_queue_iid or stage.hw_queue_id
        device = stage.gpu_id if abs(stage.gpu_id) < 2**15 else None
        process = sequence.gpu_processes.get(stage.context)
        track_id = self._tracks.track(("gpu", device, small(number), queue, process))
        called = text(stage.name) or name or f"stage {stage.stage_iid or stage.stage_id}"
        category = "kernel" if COMPUTE in (queue_kind, stage_kind) else None
        row = self._events.events.add(*moment, COMPLETE, track_id, called, category, None)
        self._events.events.duration[row] = stage.duration

    def _trace_stats(self, packet: Any, sequence: Sequence) -> None:
        lost = 0
        for buffer in packet.trace_stats.buffer_stats:
            lost = max(lost, buffer.chunks_overwritten + buffer.chunks_discarded + buffer.trace_writer_packet_loss)
        self._losses["buffer-loss"] = max(self._losses["buffer-loss"], lost)
