"""The rule of early stopping, against one that counts epochs as they come."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from essp_common.artifacts.early_stop import EarlyStop, early_stop, is_better
from essp_common.artifacts.manifest import PhaseRecord
from essp_common.job.trainer_spec import Choice, StopSpec, TrainerSpec
from tests.harness.refused import refused

Figures = tuple[float, float]
"""Top-1 and loss by video, of the validation of an epoch."""
FIGURES = st.tuples(st.sampled_from([0.25, 0.5, 0.75]), st.sampled_from([0.1, 0.2, 0.4]))


def waiting(patience: int, choose: Choice = "top1") -> TrainerSpec:
    return TrainerSpec(stream="rgb", choose=choose, stop=StopSpec(patience=patience))


def history(figures: Sequence[Figures]) -> list[PhaseRecord]:
    """Each epoch with its training, as a trainer keeps it."""
    found = []
    for epoch, (top1, loss) in enumerate(figures):
        found.append(PhaseRecord(purpose="train", epoch=epoch, metrics={"loss": 9.0}))
        metrics = {"video_top1": top1, "video_loss": loss}
        found.append(PhaseRecord(purpose="validation", epoch=epoch, metrics=metrics))
    return found


def counted(figures: Sequence[Figures], patience: int, epochs: int) -> EarlyStop | None:
    """A training epoch by epoch, with a counter of those that were no better."""
    best, best_epoch, waited = (-1.0, -1.0), 0, 0
    for epoch, (top1, loss) in enumerate(figures[:epochs]):
        if (top1, -loss) > best:
            best, best_epoch, waited = (top1, -loss), epoch, 0
        else:
            waited += 1
        if waited >= patience > 0 and epoch + 1 < epochs:
            return EarlyStop(epoch, best_epoch)
    return None


def walked(figures: Sequence[Figures], patience: int, epochs: int) -> EarlyStop | None:
    """What the rule says after the first epoch at which it says to stop."""
    for done in range(1, epochs + 1):
        if (stop := early_stop(history(figures[:done]), waiting(patience), epochs)) is not None:
            return stop
    return None


@given(st.lists(FIGURES, min_size=1, max_size=12), st.integers(0, 4))
def test_it_stops_where_a_counter_of_epochs_that_were_no_better_stops(figures: list[Figures], patience: int) -> None:
    assert walked(figures, patience, len(figures)) == counted(figures, patience, len(figures))


@given(st.lists(FIGURES, min_size=2, max_size=12), st.integers(1, 4))
def test_more_patience_never_stops_earlier_and_more_epochs_change_nothing(
    figures: list[Figures], patience: int
) -> None:
    short, long = (walked(figures, each, len(figures)) for each in (patience, patience + 1))
    assert long is None or (short is not None and short.epoch <= long.epoch)
    if short is not None:
        assert early_stop(history(figures[: short.epoch + 1]), waiting(patience), len(figures) + 5) == short


def test_what_follows_all_epochs_does_not_count() -> None:
    figures = [(0.5, 0.1), (0.25, 0.1)]
    ended = [*history(figures), PhaseRecord(purpose="test", epoch=0, metrics={"video_top1": 1.0, "video_loss": 0.0})]
    assert early_stop(ended, waiting(1), 5) == EarlyStop(epoch=1, best=0)
    assert early_stop(history(figures), waiting(1), 2) is None, "the last epoch is not an early one"
    assert early_stop([], waiting(1), 2) is None


def test_it_says_so_in_words() -> None:
    assert EarlyStop(4, 1).words == "stopped early, after epoch 5: its last 3 epochs were no better than epoch 2"
    assert EarlyStop(3, 2).words == "stopped early, after epoch 4: its last epoch was no better than epoch 3"
    assert EarlyStop(1, 0).words == "stopped early, after epoch 2: its last epoch was no better than epoch 1"


@given(st.lists(FIGURES, min_size=1, max_size=12), st.sampled_from(["top1", "mAP", "loss", "last"]))
def test_the_best_epoch_is_the_one_that_the_job_asks_for(figures: list[Figures], choose: Choice) -> None:
    best = 0
    validations = [{"video_top1": top1, "video_mAP": 1 - top1, "video_loss": loss} for top1, loss in figures]
    for epoch, metrics in enumerate(validations):
        if is_better(metrics, validations[best], choose):
            best = epoch
    wanted = {
        "top1": max(range(len(figures)), key=lambda epoch: (figures[epoch][0], -figures[epoch][1], -epoch)),
        "mAP": max(range(len(figures)), key=lambda epoch: (1 - figures[epoch][0], -figures[epoch][1], -epoch)),
        "loss": min(range(len(figures)), key=lambda epoch: (figures[epoch][1], epoch)),
        "last": len(figures) - 1,
    }
    assert best == wanted[choose]


def test_patience_counts_by_the_figure_that_chooses() -> None:
    """Top-1 falls while the loss falls, too."""
    falling = history([(0.5, 0.4), (0.25, 0.2), (0.25, 0.1)])
    assert early_stop(falling, waiting(2), 9) == EarlyStop(epoch=2, best=0)
    assert early_stop(falling, waiting(2, "loss"), 9) is None
    with refused("stop.patience", "conflict"):
        waiting(2, "last")
