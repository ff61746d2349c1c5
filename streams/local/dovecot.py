"""A private instance of an installed Dovecot 2.3, as root or as any other user.

Invariants: it keeps its ports, mail and users through `stop()`/`kill()` and `start()`; it touches nothing of the
machine's own Dovecot; a user exists only after `add_user`, and a wrong password is refused at once (no penalty for
failed logins, which Dovecot otherwise adds per client address).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import grp
import os
import pwd
import re
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from streams.local.errors import ServiceFailed, Unavailable
from streams.local.jars import Progress
from streams.local.ports import HOST, free_port
from streams.local.process import ChildProcess
from streams.local.server import LocalMailServer

DOVEADM_DEADLINE_S = 60.0
MAIL_OWNER = "nobody"  # whom mail belongs to when we are root
SOCKET_PATH_MAX = 60  # of the directory; sun_path ends at 107 bytes and Dovecot appends up to 40
PASSWORD_CACHE_S = 1.1  # Dovecot looks at a password file once per second at most

CLIENTS_MAX = 20_000
FILES_KEPT = 200  # of the limit on open files, for what is no client

CAPABILITIES = (
    "IMAP4rev1 SASL-IR LOGIN-REFERRALS ID ENABLE IDLE SORT SORT=DISPLAY THREAD=REFERENCES THREAD=REFS "
    "THREAD=ORDEREDSUBJECT MULTIAPPEND URL-PARTIAL CATENATE UNSELECT CHILDREN NAMESPACE UIDPLUS LIST-EXTENDED "
    "I18NLEVEL=1 CONDSTORE QRESYNC ESEARCH ESORT SEARCHRES WITHIN CONTEXT=SEARCH LIST-STATUS BINARY MOVE "
    "SNIPPET=FUZZY PREVIEW=FUZZY PREVIEW STATUS=SIZE SAVEDATE LITERAL+ NOTIFY SPECIAL-USE"
)
"""What Dovecot 2.3 advertises by itself, needed in full as soon as one is to be hidden."""


@dataclass(frozen=True, slots=True)
class DovecotOptions:
    """How the instance differs from the usual one.

    `hidden` capabilities are not advertised; Dovecot still performs them when asked. `extra` is appended to the
    configuration as it is. `sessions_per_process` above 1 serves thousands of connections in little memory.
    """

    hidden: frozenset[str] = frozenset()
    compress: bool = True
    any_user: bool = False
    mail_format: str = "maildir"
    sessions_per_process: int = 1
    idle_notify_s: int = 120
    extra: str = ""
    special_use: tuple[tuple[str, str], ...] = field(
        default=(("Drafts", "\\Drafts"), ("Sent", "\\Sent"), ("Trash", "\\Trash"), ("Archive", "\\Archive"))
    )


class Dovecot(LocalMailServer):
    """One instance in `directory`. Not started by its constructor."""

    name = "Dovecot"

    def __init__(
        self,
        directory: Path,
        *,
        options: DovecotOptions | None = None,
        progress: Progress = lambda _: None,
        port: int = 0,
        tls_port: int = 0,
    ) -> None:
        """`port` (plain and STARTTLS) and `tls_port` are preferred when free."""
        super().__init__(directory, progress)
        self._options = options or DovecotOptions()
        self.host = HOST
        self.port = free_port(port)
        self.tls_port = free_port(tls_port)
        self._run_directory: Path | None = None

    @staticmethod
    def version() -> str | None:
        """Version of the installed Dovecot that can be used here, or None."""
        if _program("dovecot") is None or not Path("/usr/lib/dovecot/imap").exists():
            return None
        import subprocess

        answer = subprocess.run([str(_program("dovecot")), "--version"], capture_output=True, timeout=10, check=False)
        version = answer.stdout.decode().split(" ")[0].strip()
        return version if version.startswith("2.3.") else None

    async def start(self) -> None:
        """Start, or start again on the same ports and mail. Raises `LocalStackError`."""
        program = _program("dovecot")
        if program is None or self.version() is None:
            raise Unavailable("Dovecot 2.3 is not installed (apt-get install dovecot-core dovecot-imapd)")
        self._progress("Dovecot: starting")
        configuration = self._write_configuration()
        child = ChildProcess(
            self.name,
            [str(program), "-F", "-c", str(configuration)],
            log=self.log,
            death_signal=signal.SIGTERM,  # the master takes its children with it
        )
        await self._run(child, self._greets)

    async def stop(self) -> None:
        """End every session and the server."""
        await super().stop()
        self._forget_run_directory()

    async def kill(self) -> None:
        """kill -9 of the server and all its processes."""
        await super().kill()
        self._forget_run_directory()

    def add_user(self, name: str, password: str) -> None:
        """Let `name` log in with `password` (as a SASL token too). Takes effect at once for a name never seen."""
        users = self._directory / "users"
        users.mkdir(parents=True, exist_ok=True)
        secret = base64.b64encode(password.encode()).decode()
        draft = users / f".{name}.new"
        draft.write_text(f"{name}:{{PLAIN.b64}}{secret}::::::\n")
        draft.chmod(0o644)
        draft.replace(users / name)

    def add_users(self, names: Iterable[str], password: str) -> None:
        """`add_user` for many."""
        for name in names:
            self.add_user(name, password)

    async def change_password(self, name: str, password: str) -> None:
        """Another password for a user who may have logged in already; returns when it is in force."""
        self.add_user(name, password)
        await asyncio.sleep(PASSWORD_CACHE_S)

    async def remove_user(self, name: str) -> None:
        """Refuse `name` from now on. Mail stays; sessions that are open go on."""
        (self._directory / "users" / name).unlink(missing_ok=True)
        await asyncio.sleep(PASSWORD_CACHE_S)

    async def doveadm(self, *arguments: str) -> str:
        """Run `doveadm` against this instance and return what it printed. Raises `ServiceFailed`."""
        program = _program("doveadm")
        if program is None:
            raise Unavailable("doveadm is not installed")
        process = await asyncio.create_subprocess_exec(
            str(program),
            *("-c", str(self._directory / "dovecot.conf"), *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DOVEADM_DEADLINE_S):
                output, errors = await process.communicate()
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise ServiceFailed("doveadm", f"took over {DOVEADM_DEADLINE_S:.0f} s") from error
        if process.returncode:
            raise ServiceFailed("doveadm", f"{arguments[0]} failed", errors.decode("utf-8", "replace"))
        return output.decode("utf-8", "replace")

    async def reset_uidvalidity(self, user: str, mailbox: str, uidvalidity: int | None = None) -> int:
        """Give `mailbox` another UIDVALIDITY, as a restored backup would. Returns the new one."""
        value = uidvalidity or int(time.time()) + 1_000_000
        await self.doveadm("mailbox", "update", "-u", user, "--uid-validity", str(value), mailbox)
        return value

    def logins(self, user: str | None = None) -> int:
        """How often `user` (or anybody) has logged in, as the log has it."""
        who = "[^>]*" if user is None else re.escape(user)
        return len(re.findall(rf"imap-login: Info: Login: user=<{who}>", self._log_text()))

    def failed_logins(self, user: str | None = None) -> int:
        """How many login attempts of `user` (or anybody) were refused, as the log has it."""
        name = "[^,)/\n]*" if user is None else re.escape(user)
        refused = rf"auth: Info: (?:passwd-file\({name},.*Password mismatch|missing passwd file: .*/{name}$)"
        return len(re.findall(refused, self._log_text(), re.MULTILINE))

    def home(self, user: str) -> Path:
        """Where the mail of `user` lies."""
        return self._directory / "mail" / user

    def _log_text(self) -> str:
        try:
            return self.log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    async def _greets(self) -> bool:
        for port in (self.port, self.tls_port):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(HOST, port)
                try:
                    # The TLS port waits for us to speak first; that it accepts is all there is to see.
                    if port == self.port and not (await reader.readline()).startswith(b"* OK"):
                        return False
                finally:
                    writer.close()
                continue
            return False
        return True

    def _write_configuration(self) -> Path:
        as_root = os.geteuid() == 0
        us = pwd.getpwuid(os.geteuid())
        owner = pwd.getpwnam(MAIL_OWNER) if as_root else us
        for name in ("mail", "users", "state"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        mail = self._directory / "mail"
        if as_root:
            os.chown(mail, owner.pw_uid, owner.pw_gid)
        certificate = self._issue()
        options = self._options
        shown = [name for name in CAPABILITIES.split() if name not in options.hidden]
        values = {
            "run": self._socket_directory(),
            "directory": self._directory,
            "log": self.log,
            "port": self.port,
            "tls_port": self.tls_port,
            "login_user": "dovenull" if as_root else us.pw_name,
            "internal_user": "dovecot" if as_root else us.pw_name,
            "internal_group": "dovecot" if as_root else grp.getgrgid(us.pw_gid).gr_name,
            "mail_uid": owner.pw_uid,
            "mail_gid": owner.pw_gid,
            "mail": mail,
            "mail_location": f"{options.mail_format}:~/mail:LAYOUT=fs"
            if options.mail_format == "maildir"
            else f"{options.mail_format}:~/mail",
            "capability": f"imap_capability = {' '.join(shown)}" if options.hidden else "",
            "passdb": "driver = static\n  args = nopassword=y"
            if options.any_user
            else f"driver = passwd-file\n  args = {self._directory}/users/%u",
            "zlib": "mail_plugins = $mail_plugins imap_zlib" if options.compress else "",
            "idle_notify_s": options.idle_notify_s,
            "mailboxes": "".join(
                f"  mailbox {name} {{\n    special_use = {use}\n    auto = create\n  }}\n"
                for name, use in options.special_use
            ),
            "certificate": certificate.certificate,
            "key": certificate.key,
            "sessions_per_process": options.sessions_per_process,
            "clients": min(CLIENTS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT),
            "extra": options.extra,
        }
        path = self._directory / "dovecot.conf"
        path.write_text(_CONFIGURATION.substitute(values))
        return path

    def _socket_directory(self) -> Path:
        """Where sockets lie: in our directory, or elsewhere when its path is too long for a socket's address."""
        if len(str(self._directory)) <= SOCKET_PATH_MAX:
            return self._directory / "run"
        if self._run_directory is None:
            self._run_directory = Path(tempfile.mkdtemp(prefix="mailstreams-dovecot-"))
            self._run_directory.chmod(0o755)
        return self._run_directory

    def _forget_run_directory(self) -> None:
        if self._run_directory is not None:
            shutil.rmtree(self._run_directory, ignore_errors=True)
            self._run_directory = None


def _program(name: str) -> Path | None:
    """Debian keeps them in /usr/sbin and /usr/bin; a user's PATH may lack the former."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin:/usr/local/sbin:/sbin")
    return Path(found) if found else None


_CONFIGURATION = Template("""\
base_dir = $run
state_dir = $directory/state
log_path = $log
protocols = imap
listen = 127.0.0.1
default_login_user = $login_user
default_internal_user = $internal_user
default_internal_group = $internal_group
first_valid_uid = 1
mail_uid = $mail_uid
mail_gid = $mail_gid
mail_home = $mail/%u
mail_location = $mail_location
mail_max_userip_connections = 100000
mail_fsync = never
mailbox_list_index = yes
$capability

disable_plaintext_auth = no
auth_mechanisms = plain login xoauth2 oauthbearer
auth_failure_delay = 0
auth_verbose = yes
passdb {
  $passdb
}
userdb {
  driver = static
  args = uid=$mail_uid gid=$mail_gid home=$mail/%u allow_all_users=yes
}

ssl = yes
ssl_cert = <$certificate
ssl_key = <$key

protocol imap {
  $zlib
  imap_idle_notify_interval = $idle_notify_s secs
}
namespace inbox {
  inbox = yes
  separator = /
$mailboxes}

default_client_limit = $clients
default_process_limit = 5000
service imap-login {
  chroot =
  inet_listener imap {
    port = $port
  }
  inet_listener imaps {
    port = $tls_port
    ssl = yes
  }
  service_count = 0
  process_min_avail = 1
  process_limit = 2
  client_limit = $clients
  vsz_limit = 1G
}
service imap {
  client_limit = $sessions_per_process
  service_count = 0
  process_limit = 5000
  vsz_limit = 2G
}
service anvil {
  chroot =
  client_limit = $clients
  unix_listener anvil-auth-penalty {
    mode = 0
  }
}
service auth {
  client_limit = $clients
}
service stats {
  client_limit = $clients
}
$extra
""")
