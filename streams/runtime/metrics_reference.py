"""`python -m streams.runtime.metrics_reference` writes `docs/metrics.md` from the metrics themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from streams.runtime.metrics import SPECS

PAGE: Final = Path("docs/metrics.md")

_HEAD: Final = """\
# Metrics

`GET /metrics` on the probe port (`PROBE_HOST`, `PROBE_PORT`), in Prometheus' text format. No metric has a label per
account or per user. A label takes at most 100 values; what is over is counted under `other`. Durations are seconds.

Beside these stand the process's own: `process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds`,
`process_max_fds`, `process_start_time_seconds`, `python_gc_*`, `python_info`.

This page is written by `python -m streams.runtime.metrics_reference`; a test holds it against the exposition.

| metric | type | labels | meaning |
|---|---|---|---|
"""

_P99: Final = "`histogram_quantile(0.99, sum by (le) (rate({}_bucket[{}])))`"

_TAIL: Final = f"""
## What to watch

| question | expression |
|---|---|
| Must I add workers? | `max(mailstreams_accounts_unserved) > 0` |
| Is new mail late? | {_P99.format("mailstreams_arrival_to_log_seconds", "5m")} |
| Do polls keep up? | {_P99.format("mailstreams_poll_lateness_seconds", "15m")} |
| Is the database behind? | `sum(mailstreams_projector_lag_records)` |
| Does a worker's loop stall? | {_P99.format("mailstreams_event_loop_lag_seconds", "5m")} |
| Is somebody sending rubbish? | `sum by (topic, reason) (rate(mailstreams_poison_records_total[15m])) > 0` |
| Do workers fight over partitions? | `sum(rate(mailstreams_fences_total{{reason!="assigned"}}[15m]))` |
| How long do rebalances take? | {_P99.format("mailstreams_rebalance_seconds", "1h")} |
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| `{spec.name}` | {spec.kind} | {', '.join(f'`{label}`' for label in spec.labels) or '–'} | {spec.about} |\n"
        for spec in SPECS.values()
    ]
    return _HEAD + "".join(rows) + _TAIL


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
