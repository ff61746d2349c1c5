"""The example of a handler of one's own runs, as its page says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_example_counts_words_without_kafka() -> None:
    done = subprocess.run(
        [sys.executable, "examples/handlers/subjects.py", "Invoice 2024", "invoice for May"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=True,
    )
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    assert records[-1]["result"] == {"words": {"invoice": 2, "for": 1, "may": 1}}


def test_the_example_is_loadable_as_its_page_says() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from streams.commands.handlers import load_handlers\n"
            "print(sorted(spec.kind for spec in load_handlers(['subjects:handlers'])))",
        ],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'examples/handlers'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "['count_words', 'top_subjects']"
