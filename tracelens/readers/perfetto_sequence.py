"""State of one packet sequence: interned data and defaults, valid from one clear to the next.

Packets that need this state and come before the first clear, or after a lost packet, cannot be understood. Whatever is
sent again under a known id within one generation is ignored: the first wins.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tracelens.readers.stacks import Frame

_K = TypeVar("_K")


def text(value: Any) -> str:
    """A string field's text: protobuf hands over bytes where it is not UTF-8."""
    return value if value.__class__ is str else bytes(value).decode(errors="replace")


class Sequence:
    """Interned data and defaults of one sequence. `valid` is False until its state was cleared once."""

    def __init__(self, sequence_id: int) -> None:
        self.sequence_id = sequence_id
        self.valid = False
        self.clear(valid=False)

    def clear(self, *, valid: bool = True) -> None:
        """Begin a new generation."""
        self.valid = valid
        self.names: dict[int, str] = {}
        self.categories: dict[int, str] = {}
        self.argument_names: dict[int, str] = {}
        self.argument_texts: dict[int, str] = {}
        self.places: dict[int, tuple[str, int]] = {}
        self.callstacks: dict[int, tuple[Frame, ...]] = {}
        self.tasks: dict[int, tuple[int, int]] = {}
        self.weight_units: dict[int, int] = {}
        self.gpu_stages: dict[int, tuple[str, int]] = {}
        self.gpu_processes: dict[int, int] = {}
        self._frames: dict[int, Frame] = {}
        self._functions: dict[int, str] = {}
        self._paths: dict[int, str] = {}
        self._sources: dict[int, str] = {}
        self._mappings: dict[int, str] = {}
        self.counter_sums: dict[int, float] = {}
        self.thread: tuple[int, int] | None = None
        self.reference_us: int | None = None
        self.sampled_us: int | None = None
        self.take_defaults(None)

    def tables(self) -> tuple[dict[int, Any], ...]:
        """All interned data; within a generation each only grows."""
        return (
            self.names, self.categories, self.argument_names, self.argument_texts, self.places, self.callstacks,
            self.tasks, self.weight_units, self.gpu_stages, self.gpu_processes, self._frames, self._functions,
            self._paths, self._sources, self._mappings,
        )  # fmt: skip

    def take_defaults(self, defaults: Any) -> None:
        """Replace the packet defaults; None for none."""
        self.clock = defaults.timestamp_clock_id if defaults is not None else 0
        self.track: int | None = None
        self.extra_counters: tuple[int, ...] = ()
        self.extra_double_counters: tuple[int, ...] = ()
        self.sample_unit = 0
        if defaults is None:
            return
        if defaults.HasField("track_event_defaults"):
            events = defaults.track_event_defaults
            self.track = events.track_uuid if events.HasField("track_uuid") else None
            self.extra_counters = tuple(events.extra_counter_track_uuids)
            self.extra_double_counters = tuple(events.extra_double_counter_track_uuids)
        samples = getattr(defaults, "stack_sample_defaults", None)
        if samples is not None:
            self.sample_unit = samples.primary_descriptor.unit

    def adopt(self, thread: Any) -> None:
        """Take a legacy thread descriptor: events without a track belong to this thread from here on."""
        self.thread = (thread.pid, thread.tid)
        self.reference_us = thread.reference_timestamp_us
        self.sampled_us = None

    def intern(self, data: Any) -> None:
        """Take one packet's interned data."""
        _first(self.names, data.event_names, lambda e: text(e.name))
        _first(self.categories, data.event_categories, lambda e: text(e.name))
        _first(self.argument_names, data.debug_annotation_names, lambda e: text(e.name))
        _first(self.argument_texts, data.debug_annotation_string_values, lambda e: text(e.str))
        _first(self.places, data.source_locations, lambda e: (text(e.file_name), e.line_number))
        _first(self.gpu_stages, data.gpu_specifications, lambda e: (text(e.name), e.category))
        _first(self.gpu_processes, data.graphics_contexts, lambda e: e.pid)
        _first(self.tasks, getattr(data, "stack_sample_task_contexts", ()), lambda e: (e.pid, e.tid))
        _first(self.weight_units, getattr(data, "stack_sample_counter_descriptors", ()), lambda e: e.unit)
        if data.callstacks or data.frames or data.function_names or data.mappings:
            self._intern_stacks(data)

    def _intern_stacks(self, data: Any) -> None:
        _first(self._functions, data.function_names, lambda e: text(e.str))
        _first(self._paths, data.mapping_paths, lambda e: text(e.str))
        _first(self._sources, data.source_paths, lambda e: text(e.str))
        _first(self._mappings, data.mappings, lambda e: "/".join(self._paths.get(i, "?") for i in e.path_string_ids))
        _first(self._frames, data.frames, self._frame)
        _first(self.callstacks, data.callstacks, lambda e: tuple(self._frames.get(i, UNKNOWN) for i in e.frame_ids))

    def _frame(self, frame: Any) -> Frame:
        function = self._functions.get(frame.function_name_id)
        file = self._sources.get(getattr(frame, "source_path_iid", 0)) or self._mappings.get(frame.mapping_id)
        return Frame(function or f"{frame.rel_pc:#x}", file or None, getattr(frame, "line_number", 0) or None)


UNKNOWN = Frame("unknown")
"""Stands for a frame whose interned data was lost."""


def _first(known: dict[int, _K], entries: Any, make: Any) -> None:
    for entry in entries:
        if entry.iid not in known:
            known[entry.iid] = make(entry)
