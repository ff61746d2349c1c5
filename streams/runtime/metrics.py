"""Metrics: the `RuntimeObserver` that counts with Prometheus, and the only module that knows the metrics library (row
W11).

Names and units follow Prometheus' conventions (base units, `_total` for counters). No label per account; label values
that come from outside are bounded in number, what is over is counted as `other`. `docs/metrics.md` is written from
what stands here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

LABEL_VALUES: Final = 100
"""Values of one label at most; a broken peer must not fill the metrics store."""
OTHER: Final = "other"

_FAST_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_WORK_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_LATE_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric as it is documented."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = ()


SPECS: Final = {
    spec.name: spec
    for spec in (
        # Tasks: commands and jobs.
        MetricSpec("mailstreams_tasks_in_flight", "gauge", "Commands and jobs being executed.", ("kind",)),
        MetricSpec("mailstreams_tasks_total", "counter", "Concluded commands and jobs.", ("kind", "status", "code")),
        MetricSpec("mailstreams_task_seconds", "histogram", "Duration of an execution.", ("kind", "status"), _WORK_S),
        MetricSpec("mailstreams_task_retries_total", "counter", "Attempts that are repeated.", ("kind", "code")),
        MetricSpec(
            "mailstreams_poison_records_total", "counter", "Records sent to the dead letters.", ("topic", "reason")
        ),
        MetricSpec("mailstreams_published_total", "counter", "Records published and acknowledged.", ("type",)),
        MetricSpec("mailstreams_publish_failures_total", "counter", "Records that could not be published.", ("type",)),
        MetricSpec("mailstreams_acknowledge_failures_total", "counter", "Offset commits that failed.", ("lane",)),
        MetricSpec("mailstreams_progress_dropped_total", "counter", "Progress that was not published.", ("reason",)),
        MetricSpec("mailstreams_shutdown_requeued_total", "counter", "Tasks left to a peer by a shutdown."),
        MetricSpec("mailstreams_event_loop_lag_seconds", "histogram", "Lateness of the event loop.", (), _FAST_S),
        MetricSpec("mailstreams_event_loop_tasks", "gauge", "asyncio tasks of the process, every 10 s."),
        # Accounts and their connections.
        MetricSpec("mailstreams_accounts", "gauge", "Accounts of this worker.", ("tier", "phase")),
        MetricSpec("mailstreams_accounts_unserved", "gauge", "Accounts over MAX_ACCOUNTS_PER_WORKER: scale out."),
        MetricSpec("mailstreams_tier_changes_total", "counter", "Changes of tier, by the new one.", ("tier", "reason")),
        MetricSpec("mailstreams_imap_connections", "gauge", "Open IMAP connections."),
        MetricSpec("mailstreams_imap_connections_opened_total", "counter", "IMAP connections opened."),
        MetricSpec("mailstreams_imap_connections_closed_total", "counter", "IMAP connections closed.", ("reason",)),
        MetricSpec("mailstreams_imap_reconnects_total", "counter", "Connections made anew after a loss.", ("reason",)),
        MetricSpec("mailstreams_imap_received_bytes_total", "counter", "Bytes received from mail servers."),
        MetricSpec("mailstreams_imap_commands_total", "counter", "Commands to mail servers.", ("command", "outcome")),
        MetricSpec(
            "mailstreams_imap_command_seconds", "histogram", "From a command to its end.", ("command",), _WORK_S
        ),
        MetricSpec(
            "mailstreams_imap_ignored_responses_total",
            "counter",
            "Lines of mail servers that are unknown or do not parse.",
            ("kind", "reason"),
        ),
        MetricSpec(
            "mailstreams_poll_lateness_seconds", "histogram", "How late polls begin after their time.", (), _LATE_S
        ),
        MetricSpec(
            "mailstreams_arrival_to_log_seconds", "histogram", "From a message's arrival to its event.", (), _LATE_S
        ),
        MetricSpec("mailstreams_quarantined_total", "counter", "Mailboxes and messages set aside.", ("what", "reason")),
        # Shards and the log.
        MetricSpec("mailstreams_shards", "gauge", "Shards of this worker.", ("phase",)),
        MetricSpec("mailstreams_transactions_total", "counter", "Transactions of shards.", ("outcome",)),
        MetricSpec("mailstreams_transaction_seconds", "histogram", "Duration of a transaction.", ("outcome",), _FAST_S),
        MetricSpec("mailstreams_transaction_records_total", "counter", "Records in transactions.", ("outcome",)),
        MetricSpec("mailstreams_fences_total", "counter", "Producers opened, which fences older ones.", ("reason",)),
        MetricSpec("mailstreams_rebalance_seconds", "histogram", "Duration of a rebalance.", (), _WORK_S),
        MetricSpec("mailstreams_table_recovery_seconds", "histogram", "Duration of a table recovery.", (), _WORK_S),
        MetricSpec("mailstreams_rekeyed_total", "counter", "Records found in the wrong partition.", ("topic",)),
        # The projection.
        MetricSpec("mailstreams_projector_lag_records", "gauge", "Events not yet in PostgreSQL.", ("partition",)),
        MetricSpec("mailstreams_projected_events_total", "counter", "Events applied to PostgreSQL."),
        MetricSpec("mailstreams_projection_seconds", "histogram", "Duration of a projection batch.", (), _WORK_S),
    )
}
"""Every metric of ours. Beside them stand those of the Python process (`process_*`, `python_*`)."""


class PrometheusObserver:
    """Counts what is observed. Each has a registry of its own."""

    def __init__(self) -> None:
        # Else every counter and histogram comes with a second series that says when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for spec in SPECS.values():
            match spec.kind:
                case "counter":
                    self._counters[spec.name] = Counter(spec.name, spec.about, spec.labels, registry=self.registry)
                case "gauge":
                    self._gauges[spec.name] = Gauge(spec.name, spec.about, spec.labels, registry=self.registry)
                case "histogram":
                    self._histograms[spec.name] = Histogram(
                        spec.name, spec.about, spec.labels, registry=self.registry, buckets=spec.buckets
                    )
        self._known: dict[str, set[str]] = {}
        self._replacing = threading.Lock()

    def exposition(self) -> tuple[bytes, str]:
        """Body and content type of `/metrics`."""
        with self._replacing:
            return generate_latest(self.registry), CONTENT_TYPE_LATEST

    # --- tasks -----------------------------------------------------------------------------------------------------
    def task_started(self, kind: str) -> None:
        self._gauges["mailstreams_tasks_in_flight"].labels(self._bounded("kind", kind)).inc()

    def task_stopped(self, kind: str) -> None:
        self._gauges["mailstreams_tasks_in_flight"].labels(self._bounded("kind", kind)).dec()

    def task_finished(self, kind: str, status: str, code: str, seconds: float) -> None:
        kind = self._bounded("kind", kind)
        self._count("mailstreams_tasks_total", kind, status, code)
        self._histograms["mailstreams_task_seconds"].labels(kind, self._bounded("status", status)).observe(seconds)

    def task_retried(self, kind: str, code: str) -> None:
        self._count("mailstreams_task_retries_total", kind, code)

    def poison(self, topic: str, reason: str) -> None:
        self._count("mailstreams_poison_records_total", topic, reason)

    def published(self, record_type: str, count: int = 1) -> None:
        self._count("mailstreams_published_total", record_type, by=count)

    def publish_failed(self, record_type: str) -> None:
        self._count("mailstreams_publish_failures_total", record_type)

    def acknowledge_failed(self, lane: str) -> None:
        self._count("mailstreams_acknowledge_failures_total", lane)

    def progress_dropped(self, reason: str) -> None:
        self._count("mailstreams_progress_dropped_total", reason)

    def shutdown_requeued(self, count: int) -> None:
        self._count("mailstreams_shutdown_requeued_total", by=count)

    def loop_lag(self, seconds: float) -> None:
        self._histograms["mailstreams_event_loop_lag_seconds"].observe(seconds)

    def loop_tasks(self, count: int) -> None:
        self._gauges["mailstreams_event_loop_tasks"].set(count)

    # --- accounts and connections ----------------------------------------------------------------------------------
    def accounts(self, by_tier_and_phase: Mapping[tuple[str, str], int], unserved: int) -> None:
        self._replace("mailstreams_accounts", by_tier_and_phase)
        self._gauges["mailstreams_accounts_unserved"].set(unserved)

    def tier_changed(self, tier: str, reason: str) -> None:
        self._count("mailstreams_tier_changes_total", tier, reason)

    def connection_opened(self) -> None:
        self._gauges["mailstreams_imap_connections"].inc()
        self._count("mailstreams_imap_connections_opened_total")

    def connection_closed(self, reason: str) -> None:
        self._gauges["mailstreams_imap_connections"].dec()
        self._count("mailstreams_imap_connections_closed_total", reason)

    def reconnect(self, reason: str) -> None:
        self._count("mailstreams_imap_reconnects_total", reason)

    def poll_lateness(self, seconds: float) -> None:
        self._histograms["mailstreams_poll_lateness_seconds"].observe(max(0.0, seconds))

    def arrival_to_log(self, seconds: float) -> None:
        self._histograms["mailstreams_arrival_to_log_seconds"].observe(max(0.0, seconds))

    def quarantined(self, what: str, reason: str) -> None:
        self._count("mailstreams_quarantined_total", what, reason)

    def bytes_received(self, count: int) -> None:
        self._count("mailstreams_imap_received_bytes_total", by=count)

    def imap_command(self, name: str, outcome: str, seconds: float) -> None:
        self._count("mailstreams_imap_commands_total", name, outcome)
        self._histograms["mailstreams_imap_command_seconds"].labels(self._bounded("command", name)).observe(seconds)

    def imap_response_ignored(self, kind: str, reason: str) -> None:
        self._count("mailstreams_imap_ignored_responses_total", kind, reason)

    # --- shards and the log ----------------------------------------------------------------------------------------
    def shards(self, by_phase: Mapping[str, int]) -> None:
        self._replace("mailstreams_shards", {(phase,): count for phase, count in by_phase.items()})

    def transaction(self, outcome: str, seconds: float, records: int) -> None:
        outcome = self._bounded("outcome", outcome)
        self._count("mailstreams_transactions_total", outcome)
        self._count("mailstreams_transaction_records_total", outcome, by=records)
        self._histograms["mailstreams_transaction_seconds"].labels(outcome).observe(seconds)

    def fenced(self, reason: str) -> None:
        self._count("mailstreams_fences_total", reason)

    def rebalance(self, seconds: float) -> None:
        self._histograms["mailstreams_rebalance_seconds"].observe(seconds)

    def table_recovery(self, seconds: float) -> None:
        self._histograms["mailstreams_table_recovery_seconds"].observe(seconds)

    def rekeyed(self, topic: str) -> None:
        self._count("mailstreams_rekeyed_total", topic)

    def projector_lag(self, partition: int, records: int) -> None:
        self._gauges["mailstreams_projector_lag_records"].labels(str(partition)).set(records)

    def projected(self, events: int, seconds: float) -> None:
        self._count("mailstreams_projected_events_total", by=events)
        self._histograms["mailstreams_projection_seconds"].observe(seconds)

    # --- labels ----------------------------------------------------------------------------------------------------
    def _count(self, name: str, *values: str, by: float = 1) -> None:
        counter = self._counters[name]
        labels = SPECS[name].labels
        if labels:
            bounded = (self._bounded(f"{name}.{label}", value) for label, value in zip(labels, values, strict=True))
            counter.labels(*bounded).inc(by)
        else:
            counter.inc(by)

    def _bounded(self, label: str, value: str) -> str:
        known = self._known.setdefault(label, set())
        if value not in known:
            if len(known) >= LABEL_VALUES:
                return OTHER
            known.add(value)
        return value

    def _replace(self, name: str, values: Mapping[tuple[str, str], int] | Mapping[tuple[str], int]) -> None:
        """Set a gauge to exactly these: combinations that are gone are not left at their last value."""
        gauge = self._gauges[name]
        with self._replacing:
            gauge.clear()
            for labels, value in values.items():
                gauge.labels(*labels).set(value)
