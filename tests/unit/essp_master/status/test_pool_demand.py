"""What a running job tells the pools."""

from __future__ import annotations

from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, PhaseReport, Progress, StepReport
from essp_common.wiring import Adapters
from tests.harness.fleet import FleetOf, master_over


def test_a_job_tells_what_was_made_what_waits_and_how_its_trainers_do(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    fleet.decode(most=2)
    step = StepReport(trainer="rgb", purpose=TRAIN, clips_per_s=8.0, data_wait_ratio=0.25)
    fleet.report(Progress(step=step))
    told = ((TRAIN, 0, {"loss": 9.0}), (VALIDATION, 0, {"loss": 2.0}), (VALIDATION, 1, {"top1": 0.5}))
    for purpose, epoch, metrics in told:
        fleet.report(Progress(phase_report=PhaseReport(trainer="rgb", purpose=purpose, epoch=epoch, metrics=metrics)))
    master.step(0)
    [demand] = master.pool_demands()
    assert (demand.job, demand.running, demand.epoch_clips) == ("small", True, 10)
    assert demand.streams == {"rgb": "rgb", "diff": "frame_diff"}
    assert demand.done == {"decoder": sum(len(unit.seeds) for unit in fleet.units)}
    assert demand.backlog["diff"] == demand.done["decoder"], "what was decoded waits to be extracted"
    rgb, diff = demand.trainers
    assert (rgb.name, rgb.clips_per_s, rgb.data_wait_ratio, rgb.losses) == ("rgb", 8.0, 0.25, (2.0,))
    assert (diff.name, diff.stream, diff.clips_per_s, diff.final) == ("diff", "diff", None, False)
    shown = master.status("small").trainers[0]
    assert (shown.clips_per_s, shown.data_wait_ratio) == (8.0, 0.25)
    master.pause("small")
    assert not master.pool_demands()[0].running
    assert [t.clips_per_s for t in master.status("small").trainers] == [None, None], "nobody trains now"
    master.stop("small")
    assert master.pool_demands() == []
