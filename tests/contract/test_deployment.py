"""What people deploy with agrees with the product and with itself, as far as that shows without an engine."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from streams.cli import COMMANDS
from streams.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
KUBERNETES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
SETTINGS = set(Settings.model_fields)
LONGEST_DRAIN_S = (  # docs/operations.md: the grace, seven steps of 5 s, hooks, the very end
    Settings.model_fields["WORKER_SHUTDOWN_GRACE_S"].default
    + 7 * 5
    + Settings.model_fields["WORKER_SHUTDOWN_HOOKS_TIMEOUT_S"].default
    + 2
)
SUBCOMMANDS = set(COMMANDS) | {"worker"}


def _compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return parsed


def _objects() -> Iterator[dict[str, Any]]:
    for path in KUBERNETES:
        yield from yaml.safe_load_all(path.read_text())


def _pod(thing: dict[str, Any]) -> dict[str, Any] | None:
    spec = thing.get("spec", {})
    if thing["kind"] == "Deployment":
        pod: dict[str, Any] = spec["template"]["spec"]
        return pod
    if thing["kind"] == "ScaledJob":
        job: dict[str, Any] = spec["jobTargetRef"]["template"]["spec"]
        return job
    return None


def _pods() -> list[tuple[str, dict[str, Any]]]:
    return [(thing["metadata"]["name"], pod) for thing in _objects() if (pod := _pod(thing)) is not None]


def _containers() -> list[dict[str, Any]]:
    return [
        container for _, pod in _pods() for container in [*pod.get("initContainers", []), *pod.get("containers", [])]
    ]


def test_compose_is_what_the_client_accepts() -> None:
    """By `docker compose config` where that plugin is installed; by its own rules of reference in any case."""
    compose = _compose()
    services = compose["services"]
    assert {"kafka", "postgres", "dovecot", "kafka-ui", "setup", "worker"} <= set(services)
    for name, service in services.items():
        assert "image" in service or "build" in service, name
        for other in service.get("depends_on", {}):
            assert other in services, f"{name} depends on {other}"
            condition = service["depends_on"][other]["condition"]
            if condition == "service_healthy":
                assert "test" in services[other]["healthcheck"]
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                assert source in compose["volumes"], source
    if shutil.which("docker"):
        can = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
        if can.returncode == 0:
            command = ["docker", "compose", "-f", str(COMPOSE), "--profile", "cli", "config", "--quiet"]
            checked = subprocess.run(command, capture_output=True, timeout=60, check=False)
            assert checked.returncode == 0, checked.stderr.decode()


def test_compose_opens_nothing_beyond_this_machine() -> None:
    for name, service in _compose()["services"].items():
        for port in service.get("ports", []):
            assert str(port).startswith("127.0.0.1:"), f"{name} publishes {port}"


def test_every_setting_that_is_set_exists() -> None:
    named: set[str] = set()
    for name, service in _compose()["services"].items():
        if name in {"setup", "worker", "cli"}:
            named |= set(service["environment"])
    for thing in _objects():
        if thing["kind"] == "ConfigMap":
            named |= set(thing["data"])
            assert all(isinstance(value, str) for value in thing["data"].values())
    for container in _containers():
        named |= {entry["name"] for entry in container.get("env", [])}
    environment = re.search(r"^ENV PATH=.*?(?=^\S)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert environment is not None
    named |= set(re.findall(r"([A-Z_]+)=", environment.group())) - {"PATH", "PYTHONUNBUFFERED"}
    assert named <= SETTINGS, named - SETTINGS


def test_every_command_that_is_run_exists() -> None:
    commands = [shlex.split(" ".join(container["args"])) for container in _containers()]
    script = "".join(_compose()["services"]["setup"]["command"])
    commands += [shlex.split(line) for line in re.findall(r"faust -A streams [a-z -]+", script)]
    default = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert default is not None
    commands.append(yaml.safe_load(default.group(1)))
    assert commands
    for command in commands:
        assert command[:3] == ["faust", "-A", "streams"]
        assert command[3] in SUBCOMMANDS, command


@pytest.mark.parametrize(("name", "pod"), _pods())
def test_pods_are_confined_and_end_in_time(name: str, pod: dict[str, Any]) -> None:
    assert pod["terminationGracePeriodSeconds"] >= LONGEST_DRAIN_S
    assert pod["securityContext"]["runAsNonRoot"] is True
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        confined = container["securityContext"]
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    for container in pod["containers"]:
        assert container["livenessProbe"]["httpGet"]["path"] == "/health"
        assert "memory" in container["resources"]["limits"]


def test_compose_gives_workers_time_to_end() -> None:
    assert int(_compose()["services"]["worker"]["stop_grace_period"].rstrip("s")) >= LONGEST_DRAIN_S


def test_selectors_select_what_they_belong_to() -> None:
    deployment = next(thing for thing in _objects() if thing["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    budget = next(thing for thing in _objects() if thing["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_scaled_job_watches_the_group_and_topic_of_jobs_w8() -> None:
    job = next(thing for thing in _objects() if thing["kind"] == "ScaledJob")
    environment = {
        entry["name"]: entry.get("value")
        for entry in job["spec"]["jobTargetRef"]["template"]["spec"]["containers"][0]["env"]
    }
    assert environment["WORKER_MODE"] == "job"
    trigger = job["spec"]["triggers"][0]["metadata"]
    settings = Settings()
    assert trigger["topic"] == settings.topic("sync.jobs")
    assert trigger["consumerGroup"] == f"{settings.KAFKA_TOPIC_PREFIX}{settings.KAFKA_GROUP}.jobs"
    authentication = next(thing for thing in _objects() if thing["kind"] == "TriggerAuthentication")
    assert job["spec"]["triggers"][0]["authenticationRef"]["name"] == authentication["metadata"]["name"]


def test_no_secret_is_written_down() -> None:
    """Secrets are referred to: no Secret object, no literal value of a setting that holds one."""
    secret = {name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)}
    assert secret
    for thing in _objects():
        assert thing["kind"] != "Secret"
        if thing["kind"] == "ConfigMap":
            assert not secret & set(thing["data"])
    for container in _containers():
        for entry in container.get("env", []):
            if entry["name"] in secret:
                assert set(entry["valueFrom"]) == {"secretKeyRef"}


def test_image_runs_as_somebody_and_says_whether_it_is_well() -> None:
    stages = DOCKERFILE.split("\nFROM ")
    assert len(stages) == 3, "a stage that builds and one that runs"
    final = stages[-1]
    user = re.search(r"^USER (\S+)$", final, re.MULTILINE)
    assert user is not None
    assert not user.group(1).startswith(("0", "root"))
    assert "HEALTHCHECK" in final
    assert "/health" in final
    assert re.search(r"^ENTRYPOINT \[", final, re.MULTILINE), "exec form: signals reach the worker"
    assert re.search(r"^CMD \[", final, re.MULTILINE)
    copied = set(re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE))
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for sources in copied:
        assert set(sources.split()) <= let_in


def test_images_are_pinned_and_named_without_a_registry() -> None:
    images = [service["image"] for service in _compose()["services"].values() if "build" not in service]
    images += [container["image"] for container in _containers()]
    images += [line.split()[1] for line in DOCKERFILE.splitlines() if line.startswith("FROM ")]
    for image in images:
        name, _, tag = image.partition(":")
        assert tag, f"{image} is not pinned"
        assert tag != "latest"
        assert "." not in name, f"{image} names a registry"


def test_every_directory_of_the_package_is_a_package() -> None:
    """One that is not would work from the tree and be missing from the image."""
    directories = {path.parent for path in (ROOT / "streams").rglob("*.py")}
    assert [str(path) for path in directories if not (path / "__init__.py").exists()] == []
