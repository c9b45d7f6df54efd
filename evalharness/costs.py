"""What an encoder costs: measured while it embeds, kept beside the vectors, read again for tables; importing this imports no torch.

Costs are facts of a machine at a time: they are in no record, no key and no score digest.
What cannot be known is None, with a text in ``reasons`` under the name of its field.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.gauges import (
    PARAMETERS,
    Facts,
    PeakMemory,
    Reasons,
    Weights,
    count_items,
    error_text,
    find_weights,
    leaving_no_trace,
    measure_flops,
    measure_parameters,
    take_items,
    unknown_parameters,
)
from evalharness.keys import canonical
from evalharness.store.files import read_lines
from evalharness.types import Batch

FILE = "costs.jsonl"
WARM_UP_BATCHES = 1  # of each shape of input, by encoder: kernels are loaded and chosen, memory is reserved
PRECOMPUTED = "the vectors were made elsewhere"
KEY = ("encoder", "layer", "dataset", "dataset_params", "split", "part", "modality", "image_size", "device", "dtype")
LIKE = ("encoder", "modality", "device", "dtype")  # what one row of a table is about


# --- one pass -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Measured:
    """Hold what one process saw of a pass: items and seconds of each batch after warm-up, start and end, facts and reasons."""

    timings: list[tuple[int, float]]
    span: tuple[float, float]
    facts: Facts
    reasons: Reasons


class Meter:
    """Measure the passes of one built encoder; nothing that it does reaches a vector, and nothing that fails in it is fatal."""

    def __init__(self, encoder: Any, *, device: str, dtype: str, precomputed: bool = False, reset_peak: bool = True) -> None:
        import torch

        self.device = torch.device(device)
        self._dtype = dtype
        self._weights = Weights()
        self._fault = self._untimed = PRECOMPUTED if precomputed else None
        self._encoder = None if precomputed else encoder
        self._look()
        self._take_device()
        self._memory = PeakMemory(self.device, reset=reset_peak)
        self._warm: Counter[Any] = Counter()
        self._flops: dict[Any, tuple[float | None, str | None]] = {}
        self._timings: list[tuple[int, float]] = []
        self._started = 0.0

    def _look(self) -> None:
        """Look for weights; some encoders make theirs when the first batch comes."""
        if self._encoder is not None:
            try:
                self._weights, self._fault = find_weights(self._encoder), None
            except Exception as error:  # noqa: BLE001 (measuring is never fatal)
                self._fault = error_text(error)

    def _take_device(self) -> None:
        try:
            first = next((parameter for module in self._weights.modules for parameter in module.parameters()), None)
            if first is not None:
                self.device, self._dtype = first.device, str(first.dtype).removeprefix("torch.")
            self._synchronise()
        except Exception as error:  # noqa: BLE001 (measuring is never fatal)
            self._untimed = self._untimed or error_text(error)

    def start(self) -> None:
        """Begin a pass."""
        self._timings = []
        self._memory.start()
        self._started = time.monotonic()

    def restart(self) -> None:
        """Forget what was timed, as it was with larger batches than fit into memory."""
        self._timings = []

    @contextlib.contextmanager
    def encoding(self, count: int, shape: Any) -> Iterator[None]:
        """Time the encoding of a batch of ``count`` items; the first batches of each shape are warm-up."""
        if self._untimed is not None:
            yield
            return
        self._synchronise()
        started = time.perf_counter()
        yield
        self._synchronise()
        seconds = time.perf_counter() - started
        self._warm[shape] += 1
        if self._warm[shape] > WARM_UP_BATCHES:
            self._timings.append((count, seconds))

    def _synchronise(self) -> None:
        if self.device.type != "cpu":
            import torch

            torch.accelerator.synchronize(self.device)

    def finish(self, sample: Batch | None, encode: Callable[[Batch], Any], shape: Any, batch_size: int) -> Measured:
        """End a pass; the operations of encoding the few items of ``sample`` are counted once for each shape."""
        import torch

        span = self._started, time.monotonic()
        peak, why = self._memory.read()
        facts: Facts = {
            "device": self._device_name(),
            "threads": torch.get_num_threads(),
            "dtype": self._dtype,
            "batch_size": batch_size,
            "peak_memory_bytes": peak,
            "memory_kind": self._memory.kind if peak is not None else None,
        }
        reasons = {"items_per_second": self._untimed or "all batches were warm-up; smaller ones leave more to time"}
        reasons |= {} if why is None else {"peak_memory_bytes": why, "memory_kind": why}
        self._look()
        for more, because in (self._parameters(), self._operations(sample, encode, shape)):
            facts |= more
            reasons |= because
        return Measured(timings=self._timings, span=span, facts=facts, reasons=reasons)

    def _device_name(self) -> str:
        if self.device.type == "cuda":
            import torch

            with contextlib.suppress(Exception):
                return str(torch.cuda.get_device_name(self.device))
        return self.device.type

    def _parameters(self) -> tuple[Facts, Reasons]:
        if self._fault is not None:
            return unknown_parameters(self._fault)
        try:
            return measure_parameters(self._weights)
        except Exception as error:  # noqa: BLE001 (measuring is never fatal)
            return unknown_parameters(error_text(error))

    def _operations(self, sample: Batch | None, encode: Callable[[Batch], Any], shape: Any) -> tuple[Facts, Reasons]:
        if shape not in self._flops:
            self._flops[shape] = self._count(sample, encode)
        flops, why = self._flops[shape]
        return {"flops_per_item": flops}, {} if why is None else {"flops_per_item": why}

    def _count(self, sample: Batch | None, encode: Callable[[Batch], Any]) -> tuple[float | None, str | None]:
        if self._fault is not None or not self._weights.computes_in_torch:
            return None, self._fault or "no torch module or tensor was found behind the encoder"
        if sample is None:
            return None, "no items were at hand to count with"
        try:
            with leaving_no_trace(self._weights):
                total = measure_flops(encode, sample)
            share = total / count_items(sample)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (measuring is never fatal)
            return None, error_text(error)
        if not total:
            return None, "no matrix product, convolution or attention was seen"
        return int(share) if share.is_integer() else share, None


def pass_cost(parts: Sequence[Measured], *, rows: int, workers: int = 1) -> Facts:
    """Join what was seen of a pass over ``rows`` rows, a part for each shard or one, into the facts that are stored with its views."""
    timings = [timing for part in parts for timing in part.timings]
    seconds = max(part.span[1] for part in parts) - min(part.span[0] for part in parts)
    peaks = [part.facts["peak_memory_bytes"] for part in parts]
    rate = median_rate(timings)
    overall = round(rows / seconds, 4) if seconds > 0 else None
    reasons = {**parts[0].reasons, "pass_items_per_second": "the pass was shorter than the clock can tell"}
    known = {name for name, value in (("items_per_second", rate), ("pass_items_per_second", overall)) if value is not None}
    return {
        "measured": dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
        "items": sum(items for items, _ in timings),
        "batches": len(timings),
        "items_per_second": rate,
        "pass_items": rows,
        "pass_items_per_second": overall,
        **parts[0].facts,
        "peak_memory_bytes": None if None in peaks else max(peaks),
        "workers": workers,
        "reasons": {name: why for name, why in reasons.items() if name not in known},
    }


def median_rate(timings: Sequence[tuple[int, float]]) -> float | None:
    """Return items a second: one over the median time of an item, where each batch of (items, seconds) counts by its items.

    >>> median_rate([(10, 1.0), (10, 2.0), (2, 50.0)])
    5.0
    """
    paces = sorted((seconds / items, items) for items, seconds in timings if items and seconds > 0)
    half = sum(items for _, items in paces) / 2
    for pace, items in paces:
        half -= items
        if half <= 0:
            return round(1 / pace, 4)
    return None


# --- reading --------------------------------------------------------------------------------------------------------


def read_costs(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the newest line of each encoder, layer, data set, split, part, modality, image size, device and dtype.

    Each folder is a run or holds runs; torn lines are skipped, and a folder without costs gives none.
    """
    newest: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for path in [folder / FILE, *sorted(folder.glob(f"*/{FILE}"))]:
            for line in read_lines(path):
                if isinstance(line, dict) and line.get("encoder") and line.get("dataset"):
                    key = canonical([line.get(name) for name in KEY])
                    if _time(line) >= _time(newest.get(key, {})):
                        newest[key] = line
    return list(newest.values())


def _time(line: Mapping[str, Any]) -> str:
    return str(line.get("measured") or "")


def summarise_costs(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each encoder, modality, device and dtype, sorted; only lines of an encoder's newest identity count.

    Rates and operations are medians over views, memory and parameters the largest of them; what should be equal and is not, is None.
    """
    lines = list(lines)
    latest: dict[Any, Mapping[str, Any]] = {}
    for line in sorted(lines, key=_time):
        latest[line.get("encoder")] = line
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("encoder_identity") == latest[line.get("encoder")].get("encoder_identity"):
            groups.setdefault(tuple(line.get(name) for name in LIKE), []).append(line)
    return [_summary(dict(zip(LIKE, key, strict=True)), groups[key]) for key in sorted(groups, key=lambda key: [str(each) for each in key])]


def _summary(about: dict[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    reasons: Reasons = {}
    row = about | {"encoder_identity": lines[0].get("encoder_identity"), "layer": lines[0].get("layer"), "num_views": len(lines)}
    joins: list[tuple[Callable[[list[Any]], Any], tuple[str, ...]]] = [
        (statistics.median, ("items_per_second", "pass_items_per_second", "flops_per_item")),
        (max, (*PARAMETERS, "peak_memory_bytes")),
        (_common, ("dim", "bytes_per_vector", "memory_kind", "threads", "workers", "batch_size")),
    ]
    for join, names in joins:
        for name in names:
            known = [line[name] for line in lines if line.get(name) is not None]
            row[name] = join(known) if known else None
            if row[name] is None:
                reasons[name] = f"differs between views: {_range(known)}" if known else _usual_reason(lines, name)
    return row | {"items": sum(line.get("items") or 0 for line in lines), "reasons": reasons}


def _common(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _range(values: list[Any]) -> str:
    ordered = sorted(set(values))
    return f"{ordered[0]} to {ordered[-1]}"


def _usual_reason(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    given = Counter(line["reasons"][name] for line in lines if name in (line.get("reasons") or {}))
    return given.most_common(1)[0][0] if given else "not measured"


# --- text -----------------------------------------------------------------------------------------------------------


def format_count(value: float | None) -> str:
    """Return a count in thousands, millions, … for a table; a dash where it is unknown.

    >>> format_count(1.2e7), format_count(950), format_count(None)
    ('12.0M', '950', '–')
    """
    return _scaled(value, ("", "k", "M", "G", "T", "P"), "")


def format_bytes(value: float | None) -> str:
    """Return a size in decimal units for a table; a dash where it is unknown.

    >>> format_bytes(1536), format_bytes(2.5e9)
    ('1.5 kB', '2.5 GB')
    """
    return _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB"), " ")


def _scaled(value: float | None, units: Sequence[str], space: str) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    text = f"{value:.1f}" if power else f"{value:.3g}"
    return f"{text}{space if units[power] else ''}{units[power]}"


__all__ = [
    "FILE",
    "Facts",
    "Measured",
    "Meter",
    "Weights",
    "find_weights",
    "format_bytes",
    "format_count",
    "measure_flops",
    "measure_parameters",
    "median_rate",
    "pass_cost",
    "read_costs",
    "summarise_costs",
    "take_items",
]
