"""Runs the fuzz targets one after the other, each in its own process."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.seeds import SEEDS

TARGETS = ("tests.fuzz.imap_responses",)
MAX_INPUT_BYTES = 4096


def main() -> int:
    """0 when nothing broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="where inputs go that broke a target")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 2
    arguments.keep.mkdir(parents=True, exist_ok=True)
    broken = 0
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as corpus:
            for number, seed in enumerate(SEEDS):
                (Path(corpus) / f"seed{number}").write_bytes(seed)
            done = subprocess.run(
                [
                    *(sys.executable, "-m", target, corpus, f"-max_total_time={arguments.seconds}"),
                    *(f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={arguments.keep}/", "-print_final_stats=1"),
                ],
                check=False,
                timeout=arguments.seconds + 120,
            )
        broken += done.returncode != 0
    if not any(arguments.keep.iterdir()):
        arguments.keep.rmdir()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
