"""`python -m streams.local`: the stack in the foreground, with the settings that lead to it. Ctrl-C ends it."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
from pathlib import Path

from streams.local.dovecot import Dovecot
from streams.local.errors import LocalStackError
from streams.local.stack import LocalStack

USERS = ("ada", "grace")
PASSWORD = "demo"  # noqa: S105 - of throw-away users on loopback, printed for whoever tries the stack


def _progress(line: str) -> None:
    print(f"[stack] {line}", file=sys.stderr, flush=True)


async def _serve(directory: Path | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if directory is not None:
        await asyncio.to_thread(_make, directory)
    stack = LocalStack(directory, progress=_progress, usual_ports=True)
    starting = asyncio.create_task(stack.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 130
    try:
        await starting
        for user in USERS:
            stack.mail.add_user(user, PASSWORD)
        _explain(stack)
        failing = asyncio.create_task(stack.failure())
        await asyncio.wait({stopping, failing}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            raise failing.result()
        failing.cancel()
    finally:
        _progress("stopping")
        await stack.stop()
    return 0


def _make(directory: Path) -> None:
    """Make the directory, open enough for the users that PostgreSQL and Dovecot become when root starts them."""
    if not directory.exists():
        directory.mkdir(parents=True)
        directory.chmod(0o711)


def _explain(stack: LocalStack) -> None:
    mail = stack.mail
    print("# The stack is up. In another terminal:")
    for name, value in sorted(stack.environment().items()):
        print(f"export {name}={shlex.quote(value)}")
    tls = f", {mail.tls_port} (TLS)" if isinstance(mail, Dovecot) else ""
    print(f"# mail server: {mail.name} at {mail.host}, ports {mail.port} (STARTTLS){tls}")
    print(f"# users {', '.join(USERS)}, password {PASSWORD}")
    if stack.postgres is not None:
        print(f"# {stack.postgres.psql} {stack.postgres.dsn()}")
    print(f"# logs below {stack.directory}; Ctrl-C ends it", flush=True)


def main() -> int:
    """Run the stack; exit code 0 after Ctrl-C, 1 when a service failed."""
    parser = argparse.ArgumentParser(prog="python -m streams.local", description=__doc__)
    parser.add_argument("--keep", metavar="DIRECTORY", type=Path, help="keep the data there for the next start")
    arguments = parser.parse_args()
    try:
        return asyncio.run(_serve(arguments.keep and arguments.keep.absolute()))
    except LocalStackError as error:
        print(f"[stack] {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
