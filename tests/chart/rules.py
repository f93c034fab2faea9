"""What must hold of the chart's objects, each rule a function that names whoever breaks it.

The tests apply them to every set of values, and then to objects that were damaged on purpose: a rule that lets the
damage pass is no rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction

from tests.chart.rendering import (
    Object,
    container_of,
    labels_of,
    of_kind,
    pod_of,
    workloads,
)

Rule = Callable[[list[Object]], list[str]]

UNITS: dict[str, int | Fraction] = {"": 1, "m": Fraction(1, 1000), "Mi": 2**20, "Gi": 2**30}


def restricted(objects: list[Object]) -> list[str]:
    """The restricted pod security standard, and a root that nobody can write to."""
    return [f"{name}: {fault}" for name, pod in _pods(objects) for fault in _insecure(pod)]


def _insecure(pod: Object) -> Iterator[str]:
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True:
        yield "may run as root"
    if security.get("runAsUser") == 0 or security.get("runAsGroup") == 0:
        yield "is root"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "no seccomp profile"
    if any(pod.get(field) for field in ("hostNetwork", "hostPID", "hostIPC")):
        yield "shares the host's namespaces"
    if any("hostPath" in volume for volume in pod["volumes"]):
        yield "mounts a folder of the host"
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False:
            yield "may gain privileges"
        if own.get("readOnlyRootFilesystem") is not True:
            yield "root can be written to"
        if own.get("capabilities") != {"drop": ["ALL"]}:
            yield "keeps capabilities"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "takes a port of the host"
        if own.get("privileged") or own.get("runAsUser") == 0:
            yield "is privileged"


def limited(objects: list[Object]) -> list[str]:
    """CPU is asked for, memory asked for and limited to the same, and what lies in memory fits below the limit."""
    found = []
    for name, pod in _pods(objects):
        for container in pod["containers"]:
            asked, limits = (container.get("resources", {}).get(part, {}) for part in ("requests", "limits"))
            if "cpu" not in asked:
                found.append(f"{name}: asks for no CPU")
            if "memory" not in limits or asked.get("memory") != limits["memory"]:
                found.append(f"{name}: memory is not limited to what is asked for")
                continue
            in_memory = [v["emptyDir"] for v in pod["volumes"] if v.get("emptyDir", {}).get("medium") == "Memory"]
            if sum(bytes_of(volume["sizeLimit"]) for volume in in_memory) >= bytes_of(limits["memory"]):
                found.append(f"{name}: /dev/shm does not fit into its memory")
        if any("emptyDir" in volume and "sizeLimit" not in volume["emptyDir"] for volume in pod["volumes"]):
            found.append(f"{name}: may fill the node's disk")
    return found


def bytes_of(quantity: str | float) -> Fraction:
    """A quantity of Kubernetes as a number."""
    text = str(quantity)
    unit = text.lstrip("0123456789.")
    return Fraction(text.removesuffix(unit)) * UNITS[unit]


def probed(objects: list[Object]) -> list[str]:
    """Workers can be asked whether they live and are ready, at a port that they have; liveness asks nothing else."""
    found = []
    for workload in workloads(objects):
        labels = labels_of(workload)
        if labels["app.kubernetes.io/component"] == "task":
            continue
        container = container_of(workload)
        ports = {port["name"] for port in container["ports"]}
        # A master that answers is of use, whatever keeps it from working: people ask it what that is.
        ready = "/livez" if labels["app.kubernetes.io/component"] == "master" else "/readyz"
        for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", ready)):
            asked = container.get(probe, {}).get("httpGet", {})
            if asked.get("path") != path or asked.get("port") not in ports:
                found.append(f"{labels['essp.dev/pool']}: {probe}")
    return found


def selected(objects: list[Object]) -> list[str]:
    """Every selector finds the pods it is meant for, and no workload selects another's."""
    found = []
    deployments = [w for w in workloads(objects) if w["kind"] == "Deployment"]
    one = ("PodDisruptionBudget", "ServiceMonitor")
    for own in deployments:
        selector = own["spec"]["selector"]["matchLabels"]
        chosen = [w for w in workloads(objects) if _matches(selector, labels_of(w))]
        if chosen != [own]:
            found.append(f"Deployment {own['metadata']['name']} selects {len(chosen)} workloads")
    for made in of_kind(objects, "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor", "PodMonitor"):
        spec = made["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        among = [labels_of(w) for w in workloads(objects)]
        if made["kind"] == "ServiceMonitor":
            among = [service["metadata"]["labels"] for service in of_kind(objects, "Service")]
        chosen_labels = [labels for labels in among if _matches(selector.get("matchLabels", selector), labels)]
        components = {labels["app.kubernetes.io/component"] for labels in chosen_labels}
        # A Service may lead to several workloads of a kind, such as training Jobs.
        several = components if made["kind"] == "Service" else chosen_labels if made["kind"] in one else ()
        if not chosen_labels or len(several) > 1:
            found.append(f"{made['kind']} {made['metadata']['name']} selects {len(chosen_labels)}")
    for workload in workloads(objects):
        for spread in pod_of(workload)["spec"].get("topologySpreadConstraints", ()):
            if not _matches(spread["labelSelector"]["matchLabels"], labels_of(workload)):
                found.append(f"{workload['metadata']['name']}: spread by other pods' labels")
    return found


def bound(objects: list[Object]) -> list[str]:
    """Whatever one object says of another by name is there: accounts, configuration, scale targets, services."""
    names = {(made["kind"], made["metadata"]["name"]) for made in objects}
    wanted: list[tuple[str, str, str]] = []
    for workload in workloads(objects):
        name, pod = workload["metadata"]["name"], pod_of(workload)["spec"]
        if "serviceAccountName" in pod:
            wanted.append((name, "ServiceAccount", pod["serviceAccountName"]))
        if "subdomain" in pod:
            wanted.append((name, "Service", pod["subdomain"]))
        references = [source["configMapRef"]["name"] for c in pod["containers"] for source in c.get("envFrom", ())]
        references += [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
        wanted += [(name, "ConfigMap", reference) for reference in references]
    for made in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        wanted.append((made["kind"], "Deployment", made["spec"]["scaleTargetRef"]["name"]))
    for made in of_kind(objects, "RoleBinding"):
        wanted += [(made["kind"], "ServiceAccount", subject["name"]) for subject in made["subjects"]]
        wanted.append((made["kind"], "Role", made["roleRef"]["name"]))
    for made in of_kind(objects, "Ingress"):
        paths = [path for rule in made["spec"]["rules"] for path in rule["http"]["paths"]]
        wanted += [(made["kind"], "Service", path["backend"]["service"]["name"]) for path in paths]
    for made in of_kind(objects, "HTTPRoute"):
        backends = [backend for rule in made["spec"]["rules"] for backend in rule["backendRefs"]]
        wanted += [(made["kind"], "Service", backend["name"]) for backend in backends]
    return [f"{who}: there is no {kind} {name}" for who, kind, name in wanted if (kind, name) not in names]


def tokenless(objects: list[Object]) -> list[str]:
    """Only the master has a token of the API server, and only where a Role gives it something to do with it."""
    allowed = {"master"} if of_kind(objects, "Role") else set()
    with_token = {
        labels_of(w)["app.kubernetes.io/component"]
        for w in workloads(objects)
        if pod_of(w)["spec"].get("automountServiceAccountToken") is not False
    }
    accounts = [a for a in of_kind(objects, "ServiceAccount") if a.get("automountServiceAccountToken") is not False]
    subjects = {s["name"] for b in of_kind(objects, "RoleBinding") for s in b["subjects"]}
    masters = {
        pod_of(w)["spec"].get("serviceAccountName")
        for w in workloads(objects)
        if labels_of(w)["app.kubernetes.io/component"] == "master"
    }
    found = [
        f"{component} {'has' if component in with_token else 'lacks'} a token" for component in with_token ^ allowed
    ]
    found += [f"ServiceAccount {account['metadata']['name']} mounts its token everywhere" for account in accounts]
    return found + [f"{name} has rights" for name in subjects - masters]


def available(objects: list[Object]) -> list[str]:
    """A budget for every pool, and none that would block the draining of a node: also of a pool of one, one may be
    away."""
    budgets = of_kind(objects, "PodDisruptionBudget")
    found = []
    for made in of_kind(objects, "Deployment"):
        name = made["metadata"]["name"]
        covering = [b for b in budgets if _matches(b["spec"]["selector"]["matchLabels"], labels_of(made))]
        if len(covering) != 1:
            found.append(f"{name}: {len(covering)} budgets")
        found += [f"{name}: nothing may be away" for b in covering if b["spec"].get("maxUnavailable", 0) in (0, "0%")]
    return found


def graceful(objects: list[Object]) -> list[str]:
    """Pods are given longer to leave than their processes take (ESSP_DRAIN_S, 30 seconds if not set)."""
    found = []
    for workload in workloads(objects):
        pod = pod_of(workload)["spec"]
        if labels_of(workload)["app.kubernetes.io/component"] != "task":
            drain_s = _drain_s(workload, objects)
            if pod["terminationGracePeriodSeconds"] <= drain_s:
                found.append(f"{workload['metadata']['name']}: killed before {drain_s} s are over")
    return found


def unsized(objects: list[Object]) -> list[str]:
    """Of a Deployment that something scales the release says no size: an upgrade would fail over another's. What the
    master makes it makes with one."""
    scalers = of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    scaled = {made["spec"]["scaleTargetRef"]["name"] for made in scalers}
    return [
        f"{made['metadata']['name']}: replicas {made['spec']['replicas']}"
        for made in of_kind(objects, "Deployment")
        if "replicas" in made["spec"]
        and made["metadata"]["labels"].get("app.kubernetes.io/managed-by") != "essp-master"
        and (made["metadata"]["name"] in scaled or "essp.dev/scaled-by" in made["metadata"]["labels"])
    ]


def retried(objects: list[Object]) -> list[str]:
    """A Job ends at once with what no other try mends (2), and tries it again for nothing that is no failure."""
    found = []
    for job in [job for job in workloads(objects) if job["kind"] == "Job"]:
        rules = job["spec"].get("podFailurePolicy", {}).get("rules", ())
        codes = {rule["action"]: rule["onExitCodes"] for rule in rules if "onExitCodes" in rule}
        container, name = container_of(job), job["metadata"]["name"]
        if any(code["containerName"] != container["name"] for code in codes.values()):
            found.append(f"{name}: a rule about no container of its")
        if codes.get("FailJob", {}).get("values") != [2]:
            found.append(f"{name}: goes on after a wrong setting")
        drained = [int(v["value"]) for v in container["env"] if v["name"] == "ESSP_DRAINED_EXIT"]
        if drained and codes.get("Ignore", {}).get("values") != drained:
            found.append(f"{name}: ranks that leave with one that is drained use up its retries")
    return found


def told_once(objects: list[Object]) -> list[str]:
    """No variable is twice in the environment of a container: server-side apply refuses that, and a patch removes
    both."""
    found = []
    for name, pod in _pods(objects):
        for container in pod["containers"] + pod.get("initContainers", []):
            names = Counter(variable["name"] for variable in container.get("env", ()))
            found += [f"{name}: {variable} is told {times} times" for variable, times in names.items() if times > 1]
    return found


def _drain_s(workload: Object, objects: list[Object]) -> float:
    shared = {
        made["metadata"]["name"]: made["data"]
        for made in of_kind(objects, "ConfigMap")
        if "ESSP_STORES" in made.get("data", {})
    }
    container = container_of(workload)
    own = [v["value"] for v in container["env"] if v["name"] == "ESSP_DRAIN_S"]
    common = [shared[s["configMapRef"]["name"]].get("ESSP_DRAIN_S") for s in container["envFrom"]]
    return float(next((value for value in own + common if value), 30))


def _pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    for workload in workloads(objects):
        yield f"{workload['kind']} {workload['metadata']['name']}", pod_of(workload)["spec"]


def _matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


ALL: tuple[Rule, ...] = (
    restricted,
    limited,
    probed,
    selected,
    bound,
    tokenless,
    available,
    graceful,
    unsized,
    retried,
    told_once,
)
