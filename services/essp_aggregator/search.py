"""Tries candidates: in this process, or in child processes if that would take long.

    this process    scores ─▶ memory that all children map; the next candidate ─▶ a child that is free
    a child         learns six times (five folds, all videos) ─▶ losses, state and figures

The amount of data to read decides between the two, not the number of cores, and each child computes with one thread. So
the same job gives the same numbers, to the last bit, with any number of processes.

If a child dies, usually for lack of memory, its candidate is tried once more after the others are done, with the
machine to itself. If that fails too, the search fails: leaving the candidate out could change the choice. Children end
with this process, however it ends.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from essp_aggregator.fusion import Aligned, Trial, in_turn
from essp_aggregator.search_child import unpacked
from essp_aggregator.shared_scores import SharedScores
from essp_common.errors import PermanentError
from essp_common.runtime.child_process import ChildProcess, one_thread, ready
from essp_engine.aggregation.candidates import Candidate

log = logging.getLogger(__name__)

_MODULE = "essp_aggregator.search_child"
_WORTH = 10**8
"""In numbers read. Less work than this is finished here before children have started and paid off."""
_OF_A_FEATURE = 20
"""Scores that can be read in the time needed to learn from one feature value."""
_SAID_S = 10.0
"""Seconds between two progress lines."""
_GONE_S = 5.0
"""Seconds allowed for a child to exit after it has closed its connection."""


def work(candidate: Candidate, scores: Aligned) -> int:
    """The estimated work for a candidate, in numbers of scores read."""
    parts = scores.parts.values()
    features = sum(part.features.size for part in parts if part.features is not None)
    own = _OF_A_FEATURE * features if candidate.aggregator.needs == "features" else 0
    return sum(part.clips.size for part in parts) + own


class Search:
    """Tries the candidates of one job."""

    def __init__(self, processes: int, job: str, now: Callable[[], float] = time.monotonic) -> None:
        """`processes`: the maximum number of concurrent children."""
        self._processes = processes
        self._job = job
        self._now = now

    def __call__(self, candidates: Sequence[Candidate], scores: Aligned) -> list[Trial]:
        """Try the candidates; return their results in the same order.

        Raises whatever a candidate raised in this process. For a child, raises `ValueError` for scores that do not fit
        together, and `PermanentError` for any other exception or for a child that died twice. Raises `Unavailable` if
        no child can be started.
        """
        amounts = [work(candidate, scores) for candidate in candidates]
        if len(candidates) < 2 or sum(amounts) < _WORTH:
            return in_turn(candidates, scores)
        processes = min(self._processes, len(candidates))
        about = {"job_id": self._job}
        log.info("job %s: tries %d candidates, %d at a time", self._job, len(candidates), processes, extra=about)
        with SharedScores(scores) as shared:
            pool = TrialPool(candidates, shared, Progress(self._job, amounts, self._now))
            pool.try_all(processes, self._job)
        return [pool.trials[number] for number in range(len(candidates))]


class Progress:
    """Logs how many candidates are done and how long the rest may take, at most every ten seconds."""

    def __init__(self, job: str, amounts: Sequence[int], now: Callable[[], float]) -> None:
        """`amounts`: the work for each candidate."""
        self._job = job
        self._left = dict(enumerate(amounts))
        self._all = sum(amounts)
        self._count = len(amounts)
        self._now = now
        self._begun_s = self._said_s = now()

    def done(self, number: int) -> None:
        """Record that one candidate is done."""
        del self._left[number]
        now_s = self._now()
        if not self._left or now_s - self._said_s < _SAID_S:
            return
        self._said_s = now_s
        left, taken_s = sum(self._left.values()), now_s - self._begun_s
        log.info(
            "job %s: tried %d of %d candidates in %.0f s; about %.0f s to go",
            self._job,
            self._count - len(self._left),
            self._count,
            taken_s,
            taken_s * left / (self._all - left),
            extra={"job_id": self._job},
        )


class TrialPool:
    """A pool of child processes and their results."""

    def __init__(self, candidates: Sequence[Candidate], shared: SharedScores, progress: Progress) -> None:
        self._candidates = candidates
        self._shared = shared
        self._progress = progress
        self.trials: dict[int, Trial] = {}
        self.fates: dict[int, str] = {}
        """Candidate -> how its child ended, for children that died."""

    def try_all(self, processes: int, job: str) -> None:
        """Try all candidates; one whose child dies, once more and alone. Raises what `Search` raises."""
        self.hand_out(range(len(self._candidates)), processes)
        for number, fate in tuple(self.fates.items()):
            label = self._candidates[number].label
            log.warning("job %s: the process that tried %s %s; trying again", job, label, fate, extra={"job_id": job})
            self.hand_out([number], 1)
            if number not in self.trials:
                raise PermanentError(
                    f"strategy {label}: the process that tried it {self.fates[number]}, also when it was alone. If "
                    "memory has run out, give the aggregator more, or take that strategy out of "
                    "aggregation.strategies"
                )

    def hand_out(self, numbers: Sequence[int], processes: int) -> None:
        """Try the candidates with these numbers, at most `processes` at a time. No child is left running on return."""
        waiting = deque(numbers)
        children: list[_Child] = []
        try:
            while waiting or children:
                while waiting and len(children) < processes:
                    children.append(_Child(self._shared))
                    self._ask(children[-1], waiting.popleft())
                answering = ready([child.channel for child in children])
                for child in [child for child in children if child.channel in answering]:
                    if self._take_answer(child) and waiting:
                        self._ask(child, waiting.popleft())
                    else:
                        children.remove(child)
                        child.end()
        finally:
            for child in children:
                child.end()

    def _ask(self, child: _Child, number: int) -> None:
        child.ask(number, self._candidates[number])

    def _take_answer(self, child: _Child) -> bool:
        """Take the answer of a child. Returns False if the child is dead."""
        number = child.number
        try:
            self.trials[number] = child.answer()
        except (EOFError, OSError):
            self.fates[number] = child.end(_GONE_S)
            return False
        except _Failed as failed:
            raise failed.named(self._candidates[number].label) from None
        self._progress.done(number)
        return True


class _Child(ChildProcess):
    """A child process, and the candidate that it tries."""

    def __init__(self, shared: SharedScores) -> None:
        super().__init__(_MODULE, "tries candidates", shared.size, files=[shared.fd], environment=one_thread())
        self.number = -1

    def ask(self, number: int, candidate: Candidate) -> None:
        """Ask it to try a candidate. A dead child is noticed only when its answer is read."""
        self.number = number
        self.tell(json.dumps({"name": candidate.name, "params": candidate.params}).encode())

    def answer(self) -> Trial:
        """Read the result. Raises `EOFError` or `OSError` if the child died, and `_Failed` if the candidate raised."""
        said = json.loads(self.channel.receive())
        if "error" in said:
            raise _Failed(said["error"], said["type"], said["trace"])
        return unpacked(said, self.channel.receive())


class _Failed(Exception):
    """A candidate raised an exception in its child."""

    def __init__(self, message: str, kind: str, trace: str) -> None:
        super().__init__(message)
        self._kind = kind
        self._trace = trace

    def named(self, label: str) -> Exception:
        """The exception that this process raises in response."""
        if self._kind == ValueError.__name__:
            return ValueError(str(self))
        log.error("strategy %s failed:\n%s", label, self._trace)
        return PermanentError(
            f"strategy {label} failed: {self._kind}: {self}; remove it from aggregation.strategies, or have it fixed"
        )
