"""`python -m tests.bench [NAME ...]`: run benchmarks one after the other, each in a process of its own.

What they print goes through as it comes; all figures stand once more at the end, one JSON line each. Ends with 1 when
one failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 900
"""Longest a benchmark may take; one that hangs fails and the next one begins."""


def names() -> list[str]:
    """Benchmarks, in alphabetical order."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def run(name: str) -> tuple[list[str], bool]:
    """The JSON lines of one benchmark, and whether it ended well."""
    print(f"[bench] {name}", file=sys.stderr, flush=True)
    started = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", f"tests.bench.bench_{name}"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if _is_figure(line):
                lines.append(line.rstrip())
            if time.monotonic() - started > LIMIT_S:
                process.kill()
        code = process.wait()
    print(f"[bench] {name}: {time.monotonic() - started:.0f} s, exit {code}", file=sys.stderr, flush=True)
    return lines, code == 0


def _is_figure(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def main(wanted: list[str]) -> int:
    """Run the named ones, or all."""
    known = names()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    figures: list[str] = []
    failed: list[str] = []
    for name in wanted or known:
        lines, well = run(name)
        figures += lines
        if not well:
            failed.append(name)
    print("[bench] all figures", file=sys.stderr, flush=True)
    for line in figures:
        print(line)
    if failed:
        print(f"[bench] failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
