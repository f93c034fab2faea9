"""A training over several nodes: its ranks meet as torchrun's do, and it ends, restarts and rests as it should."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.launcher.api import LaunchConfig

from essp_trainer.config import TrainerSettings
from tests.chart.rendering import (
    CASES,
    Helm,
    Object,
    Refused,
    container_of,
    environment_of,
    labels_of,
    named,
    of_kind,
    pod_of,
    templates,
)

INDEX = "<metadata.annotations['batch.kubernetes.io/job-completion-index']>"


@pytest.fixture
def objects(helm: Helm) -> list[Object]:
    return helm.render(next(case for case in CASES if "training" in case.stem))


def job_of(objects: list[Object], pool: str) -> Object:
    found = [job for job in of_kind(objects, "Job") if job["metadata"]["labels"].get("essp.dev/pool") == pool]
    assert len(found) == 1
    return found[0]


def test_one_rank_a_pod(objects: list[Object]) -> None:
    job = job_of(objects, "ucf-rgb")
    spec, environment = job["spec"], environment_of(job, objects)
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert (environment["RANK"], environment["WORLD_SIZE"]) == (INDEX, "2")
    assert environment["ESSP_DRAINED_EXIT"] == "76"
    assert (environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert environment["MASTER_PORT"] == "29500"
    container = container_of(job)
    assert "command" not in container
    assert container["args"] == ["trainer", "--job", "ucf101", "--trainer", "rgb"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_first_rank_is_found_by_its_name(objects: list[Object]) -> None:
    """Pod 0 of an indexed Job is host <job>-0; below a headless Service it has an address of that name."""
    for pool, port in (("ucf-rgb", 29500), ("ucf-flow", 29600), ("tiny", 29500)):
        job = job_of(objects, pool)
        pod = job["spec"]["template"]["spec"]
        service = named(objects, "Service", pod["subdomain"])["spec"]
        environment = environment_of(job, objects)
        assert environment["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert service["selector"].items() <= labels_of(job).items()
        assert environment["MASTER_PORT"] == str(port)


def test_several_ranks_a_pod_are_started_by_torchrun(objects: list[Object]) -> None:
    job = job_of(objects, "ucf-flow")
    environment = environment_of(job, objects)
    assert environment["NODE_RANK"] == INDEX
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & environment.keys()  # torchrun sets them
    assert container_of(job)["command"] == [
        "tini", "--", "torchrun",  # the first process has to pass signals on, and reap
        "--nnodes=$(NNODES)", "--nproc-per-node=$(RANKS_PER_NODE)", "--node-rank=$(NODE_RANK)",
        "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)", "--no-python", "essp",
    ]  # fmt: skip
    assert (environment["NNODES"], environment["RANKS_PER_NODE"]) == ("2", "8")
    assert container_of(job)["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize(
    ("values", "seconds"),
    [({}, 35), ({"settings": {"drain_s": 299.5}}, 305), ({"settings": {"drain_s": 60}, "graceS": 900}, 890)],
)
def test_torchrun_leaves_ranks_the_time_that_their_pod_has(helm: Helm, values: Object, seconds: int) -> None:
    """By itself it kills them 30 s after SIGTERM. Ten seconds are left for its own end."""
    pool = {"service": "trainer", "training": {"job": "a", "trainer": "b", "ranksPerNode": 2}, **values}
    installed = helm.render(extraPools={"t": pool})
    master = helm.render(controlPlane={"ranks": 8, "ranksPerNode": 2, "trainer": values})
    (started,) = (made for made in templates(master) if made["kind"] == "Job")
    for job, objects in ((job_of(installed, "t"), installed), (started, master)):
        assert environment_of(job, objects)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == str(seconds)
        assert pod_of(job)["spec"]["terminationGracePeriodSeconds"] == seconds + 10


def test_torchrun_asks_for_that_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "305")
    assert LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2).shutdown_timeout == 305


def test_variables_are_known_before_they_are_used(objects: list[Object]) -> None:
    """Kubernetes replaces $(NAME) in a command by variables of the container only."""
    container = container_of(job_of(objects, "ucf-flow"))
    names = [variable["name"] for variable in container["env"]]
    used = {part.partition("$(")[2].rstrip(")") for part in container["command"] if "$(" in part}
    assert used <= set(names)


def test_it_ends_when_the_training_ends_and_only_then(objects: list[Object]) -> None:
    spec = job_of(objects, "ucf-flow")["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["podReplacementPolicy"] == "Failed"  # never two pods of one rank
    assert spec["backoffLimit"] == 3 * 2
    actions = [
        (rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in spec["podFailurePolicy"]["rules"]
    ]
    assert actions == [("FailJob", [2]), ("Ignore", None), ("Ignore", [76])]


def test_ranks_may_wait_for_each_other(objects: list[Object]) -> None:
    """A rank answers nothing before it has met the others: it must not be ended for that."""
    for pool in ("ucf-rgb", "ucf-flow"):
        probe = container_of(job_of(objects, pool))["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] > TrainerSettings().rank_timeout_s


def test_it_can_rest(helm: Helm) -> None:
    """Suspending is one of the few things that may change of a Job, so it keeps its name."""

    def made(suspend: bool) -> Object:
        pool = {"service": "trainer", "training": {"job": "a", "trainer": "b", "suspend": suspend}}
        return job_of(helm.render(extraPools={"t": pool}), "t")

    resting, working = made(True), made(False)
    assert (resting["spec"].pop("suspend"), working["spec"].pop("suspend")) == (True, False)
    assert resting == working


@pytest.mark.parametrize(
    "change",
    [
        {"image": {"tag": "2"}},
        {"settings": {"log_level": "DEBUG"}},
        {"extraPools": {"t": {"training": {"nodes": 2}}}},
        {"extraPools": {"t": {"gpu": {"count": 1}}}},
    ],
)
def test_a_changed_training_is_another_job(helm: Helm, change: dict[str, Any]) -> None:
    """Kubernetes refuses to change a Job: `helm upgrade` would fail."""

    def name(**values: Any) -> str:
        pool = {"service": "trainer", "training": {"job": "a", "trainer": "b"}}
        extra = values.pop("extraPools", {}).get("t", {})
        merged = {**pool, **extra, "training": {**pool["training"], **extra.get("training", {})}}  # type: ignore[dict-item]
        made: str = job_of(helm.render(extraPools={"t": merged}, **values), "t")["metadata"]["name"]
        return made

    assert name() == name(pools={"decoder": {"replicas": 7}})
    assert name() != name(**change)


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ({"service": "trainer"}, "training"),
        ({"service": "trainer", "training": {"job": "a"}}, "trainer"),
        ({"service": "extractor", "training": {"job": "a", "trainer": "b"}}, "training"),
        (
            {"service": "trainer", "training": {"job": "a", "trainer": "b", "ranksPerNode": 8}, "gpu": {"count": 4}},
            r"8 ranks on a node share 4 GPUs",
        ),
    ],
)
def test_what_makes_no_training_is_refused(helm: Helm, pool: Object, said: str) -> None:
    with pytest.raises(Refused, match=said):
        helm.render(extraPools={"t": pool})


def test_a_trainer_has_one_pool(helm: Helm) -> None:
    def pool(job: str, trainer: str) -> Object:
        return {"service": "trainer", "training": {"job": job, "trainer": trainer}}

    one = pool("a", "rgb")
    helm.render(extraPools={"s": one, "t": pool("a", "flow"), "u": pool("b", "rgb")})
    helm.render(extraPools={"s": one, "t": {**one, "enabled": False}})
    with pytest.raises(Refused, match=r"pools s and t are both trainer rgb of job a, .* keep one"):
        helm.render(extraPools={"s": one, "t": {**one, "resources": {"limits": {"memory": "1Gi"}}}})
    with pytest.raises(Refused, match=r"pool s: the master starts the trainers of all jobs .* controlPlane.ranks to 0"):
        helm.render(extraPools={"s": one}, controlPlane={"ranks": 2})
