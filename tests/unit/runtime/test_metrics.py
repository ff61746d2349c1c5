"""Every documented metric is in the exposition, and every metric in the exposition is documented (row W10)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streams.observer import NoopObserver, RuntimeObserver
from streams.runtime.metrics import LABEL_VALUES, OTHER, SPECS, PrometheusObserver
from streams.runtime.metrics_reference import page

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def exercise(observer: RuntimeObserver) -> None:
    """Call everything of the port once."""
    observer.task_started("verify")
    observer.task_stopped("verify")
    observer.task_finished("verify", "success", "ok", 1.5)
    observer.task_retried("verify", "temporary")
    observer.poison("sync.commands", "not_json")
    observer.published("message.added", 3)
    observer.publish_failed("message.added")
    observer.acknowledge_failed("commands")
    observer.progress_dropped("coalesced")
    observer.shutdown_requeued(2)
    observer.loop_lag(0.003)
    observer.loop_tasks(57)
    observer.accounts({("hot", "running"): 4, ("warm", "backing_off"): 2}, unserved=1)
    observer.tier_changed("hot", "session")
    observer.connection_opened()
    observer.connection_closed("logout")
    observer.reconnect("connection_lost")
    observer.poll_lateness(0.2)
    observer.arrival_to_log(0.4)
    observer.quarantined("mailbox", "unusable")
    observer.bytes_received(1000)
    observer.imap_command("UID FETCH", "OK", 0.1)
    observer.imap_response_ignored("XYZ", "unknown")
    observer.shards({"running": 5})
    observer.transaction("committed", 0.02, 100)
    observer.fenced("assigned")
    observer.rebalance(1.2)
    observer.table_recovery(0.7)
    observer.rekeyed("user.active")
    observer.projector_lag(3, 17)
    observer.projected(200, 0.05)


def sample(observer: PrometheusObserver, name: str, **labels: str) -> float | None:
    value: float | None = observer.registry.get_sample_value(name, labels)
    return value


@pytest.fixture
def observer() -> PrometheusObserver:
    return PrometheusObserver()


def test_w10_documented_is_exposed_and_exposed_is_documented(observer: PrometheusObserver) -> None:
    exercise(observer)
    body, content_type = observer.exposition()
    assert content_type.startswith("text/plain")
    exposed = {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in text_string_to_metric_families(body.decode())
        if family.name.startswith("mailstreams_")
    }
    documented = set(re.findall(r"^\| `(mailstreams_\w+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert set(exposed) == documented == set(SPECS)
    for name, family in exposed.items():
        assert family.samples, f"{name} has no sample although everything was observed"
        labels = {label for each in family.samples for label in each.labels} - {"le"}
        assert labels == set(SPECS[name].labels)
        assert family.type == SPECS[name].kind


def test_the_page_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == page(), "run `python -m streams.runtime.metrics_reference`"


def test_names_follow_the_conventions() -> None:
    for spec in SPECS.values():
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec.name
        assert (spec.kind == "histogram") <= spec.name.endswith("_seconds"), spec.name
        assert not {"account", "account_id", "user", "user_id"} & set(spec.labels)


def test_process_metrics_are_exposed(observer: PrometheusObserver) -> None:
    text = observer.exposition()[0].decode()
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total", "python_info"):
        assert f"\n{name}" in text


def test_a_state_that_is_gone_is_not_left_at_its_last_value(observer: PrometheusObserver) -> None:
    observer.accounts({("hot", "running"): 4}, unserved=0)
    observer.accounts({("warm", "running"): 4}, unserved=0)
    assert sample(observer, "mailstreams_accounts", tier="hot", phase="running") is None
    assert sample(observer, "mailstreams_accounts", tier="warm", phase="running") == 4


def test_tasks_in_flight_returns_to_zero(observer: PrometheusObserver) -> None:
    observer.task_started("verify")
    assert sample(observer, "mailstreams_tasks_in_flight", kind="verify") == 1
    observer.task_stopped("verify")
    assert sample(observer, "mailstreams_tasks_in_flight", kind="verify") == 0
    observer.task_finished("verify", "failure", "timed_out", 3.0)
    assert sample(observer, "mailstreams_tasks_in_flight", kind="verify") == 0  # it may never have run: `expired`
    assert sample(observer, "mailstreams_tasks_total", kind="verify", status="failure", code="timed_out") == 1


def test_labels_from_outside_are_bounded(observer: PrometheusObserver) -> None:
    for number in range(LABEL_VALUES + 50):
        observer.reconnect(f"reason-{number}")
    assert sample(observer, "mailstreams_imap_reconnects_total", reason=OTHER) == 50


def test_w11_a_noop_observer_takes_everything() -> None:
    exercise(NoopObserver())
