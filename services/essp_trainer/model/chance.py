"""Whether an epoch was any better than guessing.

A diverging training does not always reach a non-finite loss. It may continue to the last epoch with a loss above ln K
for K classes, the loss of a model that gives each class the same probability. Such an epoch is worth a warning.
"""

from __future__ import annotations

import math

from essp_common.job.network_limits import limits_of
from essp_common.pb.v1.messages_pb2 import TRAIN
from essp_trainer.assignment import Assignment
from essp_trainer.model.training import AUXILIARY_WEIGHT

_MARGIN = 1.1
"""A training that has learned nothing yet may have a loss a little above chance, because of random weights
and dropout."""
_FIRST_UPDATES = 16
"""Before this many updates, a loss above chance is due to the random initial weights."""


def chance(assignment: Assignment) -> float:
    """Return the loss of a model that gives each class the same probability. Label smoothing does not change it."""
    auxiliary = AUXILIARY_WEIGHT if limits_of(assignment.training.model).auxiliary_loss else 0.0
    return (1 + auxiliary) * math.log(len(assignment.classes))


def no_better_than_chance(assignment: Assignment, loss: float, epoch: int) -> str:
    """Return a warning about an epoch with this mean training loss, or ""."""
    if assignment.training.loss != "cross_entropy" or assignment.training.class_weights or assignment.learns_labels:
        return ""  # the loss of guessing is not known
    clips = next(plan.clips for plan in assignment.phases if plan.purpose == TRAIN)
    if (epoch + 1) * assignment.training.updates(clips) < _FIRST_UPDATES:
        return ""
    guessing = chance(assignment)
    if loss <= _MARGIN * guessing:
        return ""
    training = assignment.training
    remedies = [f"lower optimizer.lr ({training.optimizer.lr:g})"]
    if not training.optimizer.warmup:
        remedies.append("set optimizer.warmup")
    remedies.append(f"lower optimizer.clip_grad_norm ({training.optimizer.clip_grad_norm:g})")
    if training.partial_bn:
        remedies.append("set partial_bn: false")
    return (
        f"the mean loss of epoch {epoch + 1} was {loss:.3g}, well above {guessing:.3g}, the loss of guessing among "
        f"{len(assignment.classes)} classes: the training diverges. Stop it, {' or '.join(remedies)}, and start it "
        "again"
    )
