"""The ranks of one training: processes that train the same model, each on its share of every batch.

Rank r takes the clips whose partition is r modulo the number of ranks. All ranks hold the same parameters, add up
their gradients at each update, and decide together what to do next; rank 0 alone writes and reports.

When a rank dies, the others notice at once, because its connections close; when its machine stops answering, they
notice after the timeout of the rendezvous. They raise `RankLost` and leave: a training resumes from its last checkpoint
with all of its ranks or not at all. Their launcher (`essp trainer --ranks`, torchrun, a cluster) restarts all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from essp_common.errors import ConfigError, EsspError
from essp_common.topics import DATA_PARTITIONS
from essp_engine.loading.rendezvous import Rendezvous
from essp_trainer.distributed.gradients import Exchange


class RankLost(EsspError):
    """Another rank of this training died or never joined; start all ranks again."""


class Ranks(Protocol):
    """Collective operations. All ranks call the same methods in the same order, each from one thread."""

    rank: int
    world_size: int
    partitions: int
    """Of the topics that ranks share."""

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is rank 0, which writes and reports."""

    def sum(self, tensor: Tensor) -> None:
        """Replace each element by its sum over all ranks; every rank gets the same bits."""

    def begin_sum(self, tensor: Tensor) -> Exchange:
        """Like `sum`, but return at once."""

    def max(self, tensor: Tensor) -> None:
        """Replace each element by its maximum over all ranks."""

    def broadcast(self, document: bytes) -> bytes:
        """Return rank 0's document on every rank."""

    def all_gather(self, document: bytes) -> list[bytes]:
        """Return the documents of all ranks, in rank order."""

    def close(self) -> None:
        """Leave the group. Idempotent."""


class SingleRank:
    """A training with one rank."""

    rank = 0
    world_size = 1
    partitions = DATA_PARTITIONS
    is_rank_zero = True

    def sum(self, tensor: Tensor) -> None:
        """Do nothing: the sum over one rank is the tensor itself."""

    def begin_sum(self, tensor: Tensor) -> Exchange:
        """Do nothing, and return a finished exchange."""
        return _Done()

    def max(self, tensor: Tensor) -> None:
        """Do nothing: the maximum over one rank is the tensor itself."""

    def broadcast(self, document: bytes) -> bytes:
        """Return the document."""
        return document

    def all_gather(self, document: bytes) -> list[bytes]:
        """Return a list of this document."""
        return [document]

    def close(self) -> None:
        """Do nothing: there is no group to leave."""


class DistributedRanks:
    """Several ranks over a torch process group: gloo for host memory, NCCL for GPU memory."""

    def __init__(
        self,
        group: Any,
        rank: int,
        world_size: int,
        leave: Callable[[], None],
        partitions: int = DATA_PARTITIONS,
    ) -> None:
        """`group`: a `ProcessGroup` or a bare `Backend` of torch, which have no common type. `leave` ends the group."""
        self.rank = rank
        self.world_size = world_size
        self.partitions = partitions
        self._group = group
        self._leave = leave

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        self.begin_sum(tensor).wait()

    def begin_sum(self, tensor: Tensor) -> Exchange:
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> None:
        self._reduce(tensor, dist.ReduceOp.MAX).wait()

    def broadcast(self, document: bytes) -> bytes:
        return self._spread(document, 0)

    def all_gather(self, document: bytes) -> list[bytes]:
        return [self._spread(document, rank) for rank in range(self.world_size)]

    def close(self) -> None:
        self._group = None  # the last reference closes the connections
        self._leave()

    def _reduce(self, tensor: Tensor, operation: Any) -> Exchange:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        return self._begin(lambda: self._group.allreduce([tensor], options))

    def _spread(self, document: bytes, root: int) -> bytes:
        """Send one rank's document to all ranks: its length, then its bytes."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        length = torch.tensor([len(document)])
        self._begin(lambda: self._group.broadcast([length], options)).wait()
        if not length.item():
            return b""
        data = torch.zeros(int(length.item()), dtype=torch.uint8)
        if self.rank == root:
            data = torch.frombuffer(bytearray(document), dtype=torch.uint8)
        self._begin(lambda: self._group.broadcast([data], options)).wait()
        return data.numpy().tobytes()

    def _begin(self, start: Callable[[], Any]) -> Exchange:
        with self._lost_otherwise():
            return _Begun(start(), self._lost_otherwise)

    @contextmanager
    def _lost_otherwise(self) -> Iterator[None]:
        """Convert torch's errors within this block into `RankLost`."""
        try:
            yield
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.rank} of {self.world_size} lost another rank of its training ({_cause(error)}); "
                f"start all of them again, and training resumes from the last checkpoint"
            ) from error


class _Done:
    def wait(self) -> None:
        """Return at once."""


class _Begun:
    def __init__(self, work: Any, lost_otherwise: Callable[[], AbstractContextManager[None]]) -> None:
        """`work`: a `Work` of torch."""
        self._work = work
        self._lost_otherwise = lost_otherwise

    def wait(self) -> None:
        with self._lost_otherwise():
            self._work.wait()


def init_ranks(rendezvous: Rendezvous, timeout_s: float, partitions: int = DATA_PARTITIONS) -> Ranks:
    """Join the other ranks. `partitions`: of the topics that they share.

    Raises `RankLost` if they do not join in time, `ConfigError` for an impossible rendezvous.
    """
    if rendezvous.world_size == 1:
        return SingleRank()
    if not rendezvous.rank < rendezvous.world_size <= partitions:
        raise ConfigError(
            f"RANK {rendezvous.rank} of WORLD_SIZE {rendezvous.world_size}: ranks count from 0, and there are "
            f"{partitions} at most (ESSP_PARTITIONS)",
            code="range",
        )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(
            backend,
            rank=rendezvous.rank,
            world_size=rendezvous.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
    except ValueError as error:
        raise ConfigError(f"the ranks cannot meet: {error}", code="refused") from error
    except RuntimeError as error:
        raise RankLost(
            f"rank {rendezvous.rank} of {rendezvous.world_size} did not meet the others ({_cause(error)}); "
            f"start all of them again"
        ) from error
    return DistributedRanks(dist.group.WORLD, rendezvous.rank, rendezvous.world_size, _leave, partitions)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _cause(error: BaseException) -> str:
    """Return torch's message without the source location and the advice that it adds."""
    return re.sub(r"^\[\S+\] ", "", str(error).partition("\n")[0]).partition(". ")[0]
