"""infra/kubernetes without a cluster: shapes, references between the objects, who may talk to whom, who may do what."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deployment_files import (
    INFRA,
    assert_command,
    assert_secured,
    assert_settings,
    documents,
    is_pinned,
)

from workers.commands.worker import worker

Object = dict[str, Any]

FOLDER = INFRA / "kubernetes"
IMAGE = "chime-runtime"

#: kind -> API version, keys of its spec
_KINDS: Mapping[str, tuple[str, set[str]]] = {
    "Namespace": ("v1", set()),
    "ConfigMap": ("v1", set()),
    "Service": ("v1", {"clusterIP", "selector", "ports"}),
    "StatefulSet": ("apps/v1", {"serviceName", "replicas", "selector", "template", "volumeClaimTemplates"}),
    "Deployment": ("apps/v1", {"replicas", "selector", "template"}),
    "PodDisruptionBudget": ("policy/v1", {"minAvailable", "maxUnavailable", "selector"}),
    "NetworkPolicy": ("networking.k8s.io/v1", {"podSelector", "policyTypes", "ingress", "egress"}),
}
_POD = {
    "automountServiceAccountToken", "enableServiceLinks", "terminationGracePeriodSeconds", "shareProcessNamespace",
    "securityContext", "topologySpreadConstraints", "initContainers", "containers", "volumes",
}  # fmt: skip
_CONTAINER = {
    "name", "image", "command", "args", "env", "envFrom", "ports", "startupProbe", "readinessProbe", "livenessProbe",
    "resources", "securityContext", "volumeMounts",
}  # fmt: skip
_PROBE = {"exec", "httpGet", "tcpSocket", "periodSeconds", "timeoutSeconds", "failureThreshold"}
#: where Weaviate's cluster talks to itself: gossip, data, RAFT
_CLUSTER_PORTS = {7946, 7947, 8300, 8301}
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
SECRETS_NAME = "chime-secrets"


@pytest.fixture(scope="module")
def kustomization() -> Object:
    """What `kubectl apply -k` reads first."""
    (found,) = documents(FOLDER / "kustomization.yaml")
    return found


@pytest.fixture(scope="module")
def objects(kustomization: Object) -> list[Object]:
    """Every object that it applies, in order."""
    return [one for file in kustomization["resources"] for one in documents(FOLDER / file)]


def of(objects: list[Object], *kinds: str) -> list[Object]:
    """The objects of these kinds."""
    return [one for one in objects if one["kind"] in kinds]


def pods(objects: list[Object]) -> dict[str, Object]:
    """Name of a workload -> its pods' template."""
    return {one["metadata"]["name"]: one["spec"]["template"] for one in of(objects, "Deployment", "StatefulSet")}


def containers(objects: list[Object]) -> Iterator[tuple[str, Object, bool]]:
    """(workload, container, whether it stays)."""
    for name, pod in pods(objects).items():
        for one in pod["spec"].get("initContainers", ()):
            yield name, one, False
        for one in pod["spec"]["containers"]:
            yield name, one, True


def variables(objects: list[Object], container: Object) -> dict[str, str]:
    """The variables of a container; a secret stands as hexadecimal digits."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        name = source["configMapRef"]["name"]
        (settings,) = [one for one in of(objects, "ConfigMap") if one["metadata"]["name"] == name]
        found |= settings["data"]
    for one in container.get("env", ()):
        given = one.get("value", "5ec2e7" * 6)
        # Kubernetes knows a variable only behind the place where it is given.
        found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda reference: found[reference[1]], given)
    return found


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels."""
    by_value = selector.get("matchLabels", {})
    by_list = {one["key"]: one["values"] for one in selector.get("matchExpressions", ())}
    return all(labels.get(key) == value for key, value in by_value.items()) and all(
        labels.get(key) in values for key, values in by_list.items()
    )


def test_every_file_is_applied(kustomization: Object) -> None:
    """The kustomization lists each file of the folder once; our image is named with the place it is pulled from."""
    listed = kustomization["resources"]
    assert sorted(listed) == sorted(path.name for path in FOLDER.iterdir() if path.name != "kustomization.yaml")
    (image,) = kustomization["images"]
    assert image["name"] == IMAGE
    assert is_pinned(f"{image['newName']}:{image['newTag']}")


def test_every_object_has_its_shape(objects: list[Object]) -> None:
    """Kinds with their API version, names that Kubernetes takes, no key that it does not know, no object twice."""
    seen = []
    for one in objects:
        version, keys = _KINDS[one["kind"]]
        assert one["apiVersion"] == version
        assert _NAME.fullmatch(one["metadata"]["name"])
        assert set(one.get("spec", {})) <= keys, one["metadata"]["name"]
        seen.append((one["kind"], one["metadata"]["name"]))
    assert len(seen) == len(set(seen))
    for name, pod in pods(objects).items():
        assert set(pod["spec"]) <= _POD, name
    for name, container, _ in containers(objects):
        assert set(container) <= _CONTAINER, name
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert set(container.get(probe, {})) <= _PROBE, name


def test_what_an_object_names_is_there(objects: list[Object]) -> None:
    """Selectors find the pods they are for, services their pods and ports, mounts their volumes."""
    templates = pods(objects)
    for one in of(objects, "Deployment", "StatefulSet"):
        assert matches(one["spec"]["selector"], one["spec"]["template"]["metadata"]["labels"])
        others = [pod for name, pod in templates.items() if name != one["metadata"]["name"]]
        assert not any(matches(one["spec"]["selector"], pod["metadata"]["labels"]) for pod in others)
        claimed = {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())}
        spec = one["spec"]["template"]["spec"]
        there = claimed | {volume["name"] for volume in spec.get("volumes", ())}
        mounted = {mount["name"] for each in (*spec["containers"], *spec.get("initContainers", ())) for mount in each["volumeMounts"]}  # fmt: skip  # noqa: E501 - one set
        assert mounted == there
    services = {one["metadata"]["name"]: one["spec"] for one in of(objects, "Service")}
    for name, service in services.items():
        labels = templates[name]["metadata"]["labels"]
        assert matches({"matchLabels": service["selector"]}, labels)
        ports = {one["name"] for one in templates[name]["spec"]["containers"][0]["ports"]}
        assert {one["targetPort"] for one in service["ports"]} <= ports
    assert {one["spec"]["serviceName"] for one in of(objects, "StatefulSet")} <= set(services)


def test_every_part_that_is_many_has_a_disruption_budget(objects: list[Object]) -> None:
    """A drained node takes no coordinator's last pod, and of each pool one pod at a time."""
    budgets = of(objects, "PodDisruptionBudget")
    for one in of(objects, "Deployment"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        (budget,) = [each for each in budgets if matches(each["spec"]["selector"], labels)]
        assert one["spec"]["replicas"] > budget["spec"].get("minAvailable", 0)
        assert len({"minAvailable", "maxUnavailable"} & set(budget["spec"])) == 1
    assert len(budgets) == len(of(objects, "Deployment"))


def test_images_are_pinned(objects: list[Object]) -> None:
    """Whole versions, or ours, which the kustomization names."""
    for _, container, _ in containers(objects):
        assert container["image"] == IMAGE or is_pinned(container["image"])


def test_secrets_are_referred_to_and_never_here(objects: list[Object]) -> None:
    """No Secret in the folder, every secret variable by reference, and the comment makes every key that is used."""
    assert of(objects, "Secret") == []
    used = set()
    for name, container, _ in containers(objects):
        for one in container.get("env", ()):
            if "valueFrom" in one:
                reference = one["valueFrom"]["secretKeyRef"]
                assert reference["name"] == SECRETS_NAME
                used.add(reference["key"])
            elif re.search(r"PASSWORD|KEY$|KEYS$|SECRET|TOKEN", one["name"]):
                raise AssertionError(f"{name}: {one['name']} is given in the open")
    text = (FOLDER / "kustomization.yaml").read_text()
    assert set(re.findall(r"--from-literal=([\w-]+)=", text)) == used


def test_every_variable_is_read_by_somebody(objects: list[Object], tmp_path: Path) -> None:
    """Chime's are settings with values that fit and name the services; Weaviate's are its own, and secure it."""
    for name, container, _ in containers(objects):
        given = variables(objects, container)
        if container["image"] == IMAGE and "envFrom" in container:
            configuration = assert_settings(given, tmp_path)
            assert configuration.redis.url.endswith("@valkey:6379/0")
            assert configuration.weaviate.url == "http://weaviate:8080"
            assert configuration.weaviate.grpc_url == "weaviate:50051"
            assert configuration.weaviate.api_key_env in given
            known = {configuration.models.api_key_env, "VALKEY_PASSWORD"}
            assert {one for one in given if not one.startswith("CHIME_")} <= known
        elif name == "weaviate":
            assert_secured(given)
        elif name == "valkey":
            assert set(given) == {"VALKEY_PASSWORD"}


def test_kubernetes_adds_no_variables_of_its_own(objects: list[Object]) -> None:
    """A Service named like ours would give each pod CHIME_..._PORT variables, which are no settings."""
    assert [name for name, pod in pods(objects).items() if pod["spec"]["enableServiceLinks"] is not False] == []


def test_every_command_exists_with_its_options(objects: list[Object]) -> None:
    """What our containers run, and ask in their probes, the command line takes as it stands."""
    for name, container, stays in containers(objects):
        if container["image"] != IMAGE:
            continue
        assert_command(container["args"])
        for probe in ("startupProbe", "readinessProbe"):
            if not stays:
                continue
            words = container[probe]["exec"]["command"]
            if words[0] == "chime":
                assert_command(words[1:])
            else:
                subprocess.run(["sh", "-n", "-c", words[2]], check=True)
                assert_command(words[2].split("|")[0].split()[1:])
                assert "$(hostname)" in words[2], name


def test_both_ways_to_deploy_run_the_same(objects: list[Object]) -> None:
    """The server's command and the workers' health checks are those of the Compose file, which are tried for real."""
    (compose,) = documents(INFRA / "compose.yaml")
    services = compose["services"]
    for name, container, stays in containers(objects):
        if not stays:
            continue
        service = services[name]
        own = container.get("args") or container["command"]
        assert own == [word.replace("$$", "$") for word in service["command"]], name
        if name in ("act", "diagnose"):
            check = service["healthcheck"]["test"][1].replace("$$", "$")
            assert container["readinessProbe"]["exec"]["command"] == ["sh", "-c", check]
        if name in ("valkey", "weaviate"):
            assert container["image"] == service["image"]


def test_every_part_says_whether_it_is_ready(objects: list[Object]) -> None:
    """Start-up and readiness for each; what ends Chime's processes is never a server that does not answer."""
    for name, container, stays in containers(objects):
        if not stays:
            continue
        assert {"startupProbe", "readinessProbe"} <= set(container), name
        assert ("livenessProbe" in container) == (container["image"] != IMAGE), name


def test_nobody_may_more_than_he_needs(objects: list[Object]) -> None:
    """The strictest pod standard, fixed memory, a file system that cannot be written, no token of the cluster."""
    (namespace,) = of(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, pod in pods(objects).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for name, container, _ in containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_our_user_is_the_images(objects: list[Object]) -> None:
    """The pods run as the user that the image's home belongs to."""
    user = re.search(r"^USER (\d+):(\d+)$", (INFRA / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    for name, pod in pods(objects).items():
        if name not in ("valkey", "weaviate"):
            context = pod["spec"]["securityContext"]
            assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
                int(user[1]), int(user[2]), int(user[2]),
            )  # fmt: skip


def test_a_worker_has_longer_than_its_own_grace(objects: list[Object]) -> None:
    """Who ends a worker earlier than it ends by itself loses what it was about to hand back."""
    grace = next(one for one in worker.params if one.name == "grace").default
    for name in ("act", "diagnose"):
        assert pods(objects)[name]["spec"]["terminationGracePeriodSeconds"] > grace


def test_nobody_talks_to_anybody_unless_it_is_said(objects: list[Object]) -> None:
    """All is denied first; then names for all, the servers' clients' ports for our processes, https for workers."""
    policies = {one["metadata"]["name"]: one["spec"] for one in of(objects, "NetworkPolicy")}
    first = policies["nothing-unless-said"]
    assert first == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects).items()}
    ports = {
        name: {port["containerPort"] for one in pod["spec"]["containers"] for port in one.get("ports", ())}
        for name, pod in pods(objects).items()
    }
    let_in: dict[str, set[int]] = {name: set() for name in labels}
    for spec in policies.values():
        for rule in spec.get("ingress", ()):
            for name in labels:
                if matches(spec["podSelector"], labels[name]):
                    assert rule["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "chime"}}}]
                    let_in[name] |= {port["port"] for port in rule["ports"]}
    assert let_in == {name: ports[name] for name in labels}
    assert _CLUSTER_PORTS.isdisjoint(let_in["weaviate"])


def test_our_processes_reach_what_they_need(objects: list[Object]) -> None:
    """Each process may go to both servers; only workers may leave the cluster, and not to private addresses."""
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects).items()}
    reached: dict[str, set[tuple[str, int]]] = {name: set() for name in labels}
    for spec in (one["spec"] for one in of(objects, "NetworkPolicy")):
        for rule in spec.get("egress", ()):
            for name in labels:
                if not matches(spec["podSelector"], labels[name]):
                    continue
                for to in rule["to"]:
                    target = str(to["podSelector"]["matchLabels"]["app.kubernetes.io/name"]) if "podSelector" in to else next(iter(to))  # fmt: skip  # noqa: E501 - one name
                    reached[name] |= {(target, port["port"]) for port in rule["ports"]}
                    if "ipBlock" in to:
                        assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(to["ipBlock"]["except"])
    stores = {("valkey", 6379), ("weaviate", 8080), ("weaviate", 50051), ("namespaceSelector", 53)}
    assert reached["coordinator"] == stores
    for name in ("act", "diagnose"):
        assert reached[name] == stores | {("ipBlock", 443)}
    for name in ("valkey", "weaviate"):
        assert reached[name] == {("namespaceSelector", 53)}
