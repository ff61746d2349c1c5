"""A private Cyrus IMAP (Debian's 3.6), unpacked by `bin/ensure-cyrus`. Any password is right."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import shutil
import signal
from pathlib import Path

from streams.local.ports import HOST, free_port
from streams.local.process import ChildProcess

MASTER = Path("/usr/lib/cyrus/bin/master")
UNPACKED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mailstreams/cyrus/usr/lib/cyrus/bin"
READY_DEADLINE_S = 30.0


def available() -> bool:
    """Whether it can be started here."""
    return MASTER.exists() and (UNPACKED / "imapd").exists()


class Cyrus:
    """One server in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.host = HOST
        self.port = free_port(0)
        self._child: ChildProcess | None = None

    async def start(self) -> None:
        """Start and wait until it greets."""
        home = self._directory
        me = pwd.getpwuid(os.geteuid())
        owner = pwd.getpwnam("cyrus") if os.geteuid() == 0 else me
        for name in ("config", "spool", "sock", "bin"):
            (home / name).mkdir(parents=True, exist_ok=True)
        for program in UNPACKED.iterdir():  # the cache may lie where the server's user cannot look
            shutil.copy2(program, home / "bin" / program.name)
        (home / "imapd.conf").write_text(
            f"""\
configdirectory: {home}/config
defaultpartition: default
partition-default: {home}/spool
admins: {owner.pw_name}
allowplaintext: yes
sasl_mech_list: PLAIN
sasl_pwcheck_method: alwaystrue
unixhierarchysep: yes
virtdomains: off
autocreate_quota: 0
autocreate_inbox_folders: Sent|Archive
xlist-sent: Sent
xlist-archive: Archive
imapidlepoll: 1
idlesocket: {home}/sock/idle
lmtpsocket: {home}/sock/lmtp
notifysocket: {home}/sock/notify
cyrus_user: {owner.pw_name}
cyrus_group: {grp.getgrgid(owner.pw_gid).gr_name}
"""
        )
        (home / "cyrus.conf").write_text(
            f"""\
START {{
  recover cmd="ctl_cyrusdb -C {home}/imapd.conf -r"
}}
SERVICES {{
  imap cmd="{home}/bin/imapd -C {home}/imapd.conf" listen="{HOST}:{self.port}" prefork=0 maxchild=50
}}
EVENTS {{
}}
DAEMON {{
  idled cmd="{home}/bin/idled -C {home}/imapd.conf"
}}
"""
        )
        if os.geteuid() == 0:
            for path in (home, *home.rglob("*")):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._child = ChildProcess(
            "Cyrus",
            [
                *(str(MASTER), "-C", f"{home}/imapd.conf", "-M", f"{home}/cyrus.conf"),
                *("-p", f"{home}/master.pid", "-D"),
            ],
            log=home / "log",
            environment={**os.environ, "CYRUS_USER": owner.pw_name},
            death_signal=signal.SIGTERM,
        )
        self._child.start()
        await self._child.wait_ready(self._greets, deadline_s=READY_DEADLINE_S)

    async def stop(self) -> None:
        """End it."""
        if self._child is not None:
            await self._child.stop(signal.SIGQUIT, grace_s=5.0)

    async def _greets(self) -> bool:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                return (await reader.readline()).startswith(b"* OK")
            finally:
                writer.close()
        return False
