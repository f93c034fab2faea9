"""The limiting factor of an input pipeline, from its rates, those of raw reads, and the cores that both keep busy.

    cores      the cores that this process may use are busy
    device     the pipeline is nearly as fast as raw reads of the same bytes (network: from another machine)
    decoder    neither, and each thread computes most of its time: there are fewer threads than cores
    lock       neither, and more threads gain nothing while about one core is busy: Python runs one thread at a time
    turns      neither: threads read and compute by turns, so more of them help

Raw reads that keep all cores busy are reads of memory: then the cores are the limiting factor, although the pipeline is
as fast. Cores that other processes keep busy are not there for this one, so the sentence names them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from essp_common.quantities import percent

NEAR = 0.85
"""Shares from here on count as all."""
_OWN = 0.4
"""Share of the cores from which on raw reads compute rather than wait for a device."""
_NOTABLE = 0.05
"""Cores from here on are worth a word."""
_SAME = 0.97
"""Rates that differ by less are the same: of those, fewer threads are better."""
_BEYOND = 1.05
"""A pipeline cannot be faster than reads of its bytes by more than that, if both read from the same place."""
_GAIN = 0.1
"""A gain of at least this share is worth more threads."""
_SCALES = 1.5
"""Twice the threads gain at least this while a latency is the limiting factor, and less where a bandwidth is."""


class Binds(StrEnum):
    """What has to become faster for the pipeline to do so."""

    CORES = "cores"
    DEVICE = "device"
    NETWORK = "network"
    DECODER = "decoder"
    LOCK = "lock"
    TURNS = "turns"


@dataclass(frozen=True, slots=True)
class Measured:
    """A number of threads, and what was measured with it."""

    threads: int
    rate: float
    """Samples a second."""
    cpu_cores: float
    """Cores that were busy with it."""
    other_cores: float = 0.0
    """Cores that other processes kept busy meanwhile."""


@dataclass(frozen=True, slots=True)
class Case:
    """One pipeline on one storage."""

    name: str
    unit: str
    """`image`, `clip` or `record`."""
    pipeline: Sequence[Measured]
    raw: Sequence[Measured]
    """Reads of the same bytes and nothing else."""
    cores: int
    """That this process may use."""
    network: bool = False
    decodes: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """The limiting factor, and why."""

    binds: Binds
    sentence: str


def judge(case: Case) -> Verdict:
    """The limiting factor of the pipeline where it is fastest."""
    best, raw = fastest(case.pipeline), fastest(case.raw)
    share = best.rate / raw.rate
    binds = _binds(case, best, raw)
    reads = f"raw reads are {_times(1 / share)} as fast"
    match binds:
        case Binds.CORES:
            why = f"the cores are the limiting factor: {best.cpu_cores:.1f} of {_cores(case.cores)} are busy with it"
            why += f", {best.other_cores:.1f} with other processes" if best.other_cores >= _NOTABLE else ""
            why += f", and {reads}"
        case Binds.LOCK:
            why = "the interpreter's lock is the limiting factor: about one core is busy, more threads gain nothing, "
            why += f"and {reads}"
        case Binds.DECODER:
            why = f"the decoder is the limiting factor: {_threads(best.threads)} computed all the time, {reads}, and "
            why += f"{_cores(case.cores)} are there: more threads help"
        case Binds.TURNS:
            why = "neither cores nor reads are the limiting factor: "
            why += f"{best.cpu_cores:.1f} of {_cores(case.cores)} are busy, and {reads}: "
            why += "threads read and compute by turns"
            why += "" if _stuck(case, best) else ", so more of them help"
        case _:
            why = f"the {binds} is the limiting factor: this is {percent(share, 0)} of raw reads, "
            if share > _BEYOND:
                why += "which do not limit it here: one was cached, or the rates vary; try more --runs"
            else:
                why += _growth(case.raw)
    return Verdict(binds, f"{case.name}: {why}. {_scaling(case, best)}")


def _binds(case: Case, best: Measured, raw: Measured) -> Binds:
    near_raw = best.rate >= NEAR * raw.rate
    if _busy(best, case.cores) and (not near_raw or raw.cpu_cores >= _OWN * case.cores):
        return Binds.CORES
    if near_raw:
        return Binds.NETWORK if case.network else Binds.DEVICE
    if _stuck(case, best) and abs(best.cpu_cores - 1) <= 1 - NEAR:
        return Binds.LOCK
    if case.decodes and best.cpu_cores >= NEAR * best.threads:
        return Binds.DECODER
    return Binds.TURNS


def _busy(one: Measured, cores: int) -> bool:
    """Whether no core is left, with those that other processes use."""
    return one.cpu_cores + one.other_cores >= NEAR * cores


def _stuck(case: Case, best: Measured) -> bool:
    """Whether twice the threads were tried, and gained nothing."""
    return any(one.threads >= 2 * best.threads for one in case.pipeline)


def fastest(measured: Sequence[Measured]) -> Measured:
    """The fastest measurement; of those as fast, the one with the fewest threads."""
    most = max(one.rate for one in measured)
    return min((one for one in measured if one.rate >= _SAME * most), key=lambda one: one.threads)


def _scaling(case: Case, best: Measured) -> str:
    least = min(case.pipeline, key=lambda one: one.threads)
    rate = f"{best.rate:,.0f}" if best.rate >= 10 else f"{best.rate:.2g}"
    said = f"{rate} {case.unit}s/s with {_threads(best.threads)}"
    if least.threads != best.threads:
        return f"{said}, {_times(best.rate / least.rate)} as many as with {least.threads}."
    return f"{said}{', and more threads gain nothing' if len(case.pipeline) > 1 else ''}."


def _growth(raw: Sequence[Measured]) -> str:
    """Whether latency or bandwidth limits raw reads, if there are enough numbers of threads to tell."""
    ordered = sorted(raw, key=lambda one: one.threads)
    if len(ordered) < 2:
        return "so try other numbers of threads to see whether they can be faster"
    before, last = ordered[-2:]
    gain = last.rate / before.rate
    said = f"{percent(gain - 1, 0)} from {before.threads} to {last.threads} threads"
    if gain >= _SCALES ** math.log2(last.threads / before.threads):
        return f"which still gain {said}: its latency is the limit, and more threads help"
    if gain >= 1 + _GAIN:
        return f"which gain {said}: more threads help a little"
    if gain > _SAME:
        return f"which gain only {said}: its bandwidth is the limit, and more threads do not help"
    return f"which lose {percent(1 - gain, 0)} from {before.threads} to {last.threads} threads: it can serve no more"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
