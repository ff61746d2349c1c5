"""Serves a model over real sockets, with good manners by default and any bad ones on demand.

It is a test's instrument and no example of a server: it trusts its client, keeps everything in memory, and implements
what reading mail needs (plus APPEND, STORE, COPY and EXPUNGE, so that other clients can be played against it).
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from scramp import ScramMechanism  # type: ignore[import-untyped]

from tests.scripted_imap.bending import Action, Bend, Bender, Ended, send
from tests.scripted_imap.model import Account, Change, Mailbox, Message, date_time
from tests.scripted_imap.wording import TOKEN, Refused, criteria, quoted, ranges, section, uid_test, unquoted

BASE = frozenset(
    {
        *("IMAP4rev1", "SASL-IR", "LITERAL+", "ID", "ENABLE", "IDLE", "NAMESPACE", "UNSELECT", "SPECIAL-USE"),
        *("LIST-EXTENDED", "CHILDREN", "AUTH=PLAIN", "AUTH=XOAUTH2", "AUTH=OAUTHBEARER"),
    }
)
CONDSTORE = BASE | {"CONDSTORE", "ESEARCH", "LIST-STATUS"}
QRESYNC = CONDSTORE | {"QRESYNC"}
FULL = QRESYNC | {"OBJECTID", "NOTIFY"}
GMAIL = BASE | {"CONDSTORE", "ESEARCH", "LIST-STATUS", "X-GM-EXT-1"}
BARE = frozenset({"IMAP4rev1"})

_ITEM = re.compile(r"[A-Za-z][A-Za-z0-9.-]*(?:\[[^\]]*\])?(?:<\d+(?:\.\d+)?>)?")


@dataclass(frozen=True, slots=True)
class Profile:
    """What the server offers and how it behaves."""

    capabilities: frozenset[str] = FULL
    greeting: bytes = b"* OK ready\r\n"
    capabilities_after_login: str = "code"  # "code", "untagged" or "none"
    tell_uidnext: bool = True
    tell_highestmodseq: bool = True
    tell_uidvalidity: bool = True
    restless: frozenset[str] = frozenset()  # mailboxes whose UIDVALIDITY changes at each SELECT (case 17)
    refused: dict[str, str] = field(default_factory=dict)  # mailbox -> text of the NO to SELECT and STATUS
    refuses: dict[str, str] = field(
        default_factory=dict
    )  # pattern of commands -> "BAD ..." or "NO ...", without effect
    login_no: str | None = None  # text of the NO to every login
    max_connections: int | None = None  # over it the greeting is BYE


class _Session:
    """One connection."""

    def __init__(self, server: ImapServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.profile = server.profile
        self.reader = reader
        self.writer = writer
        self.account: Account | None = None
        self.mailbox: Mailbox | None = None
        self.view: list[Message] = []
        self.pending: list[Change] = []
        self.pending_global: list[bytes] = []
        self.stirred = asyncio.Event()
        self.qresync = False
        self.condstore = False
        self.notify = False

    # --- dialogue ---

    async def serve(self) -> None:
        limit = self.profile.max_connections
        if limit is not None and self.server.open > limit:
            await send(self.writer, [b"* BYE Too many connections\r\n"])
            return
        await self.say("GREETING", [self.profile.greeting])
        while True:
            line = await self.read_command()
            if line is None:
                return
            tag, _, rest = line.partition(" ")
            await self.run(tag, rest)

    async def read_command(self) -> str | None:
        """A line with its literals put in as quoted strings."""
        whole = ""
        while True:
            line = await self.reader.readline()
            if not line.endswith(b"\n"):
                return None
            text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
            literal = re.search(r"\{(\d+)(\+?)\}$", text)
            if literal is None:
                return whole + text
            if not literal[2]:
                await send(self.writer, [b"+ go\r\n"])
            data = (await self.reader.readexactly(int(literal[1]))).decode("utf-8", "surrogateescape")
            whole += text[: literal.start()] + '"' + data.replace("\\", "\\\\").replace('"', '\\"') + '"'

    async def run(self, tag: str, rest: str) -> None:
        words = rest.split(" ")
        name = words[0].upper()
        if name == "UID" and len(words) > 1:
            name = f"UID {words[1].upper()}"
            arguments = " ".join(words[2:])
        else:
            arguments = " ".join(words[1:])
        self.server.counts[name] += 1
        self.server.commands.append(rest)
        for pattern, refusal in self.profile.refuses.items():
            if re.search(pattern, rest):
                self.server.refused.append(rest)
                await self.say(rest, [f"{tag} {refusal}\r\n".encode()])
                return
        if name == "IDLE":
            await self.idle(tag, rest)
            return
        if name == "AUTHENTICATE":
            await self.say(rest, await self.authenticate(tag, arguments))
            return
        if name == "STARTTLS" and self.server.tls is not None:
            await self.say(rest, [f"{tag} OK go\r\n".encode()])
            await self.writer.start_tls(self.server.tls)
            return
        handler: Callable[[str], tuple[list[bytes], str]] | None = getattr(
            self, "do_" + name.lower().replace(" ", "_"), None
        )
        if handler is None:
            await self.say(rest, [f"{tag} BAD unknown command\r\n".encode()])
            return
        try:
            lines, end = handler(arguments)
        except Refused as refused:
            lines, end = [], str(refused)
        if name not in ("FETCH", "SEARCH", "SELECT", "EXAMINE"):
            lines = [*lines, *self.flush()]
        lines = [line.replace(b"%TAG%", tag.encode()) for line in lines] if name == "UID SEARCH" else lines
        await self.say(rest, [*lines, f"{tag} {end}\r\n".encode()])
        if name == "LOGOUT":
            raise Ended

    async def say(self, command: str, lines: list[bytes]) -> None:
        """Send an answer as the bends have it."""
        actions: Iterable[Action] = lines
        for bend in self.server.bends:
            if bend.applies(command):
                actions = list(bend.bender([line for line in actions if isinstance(line, bytes)]))
        await send(self.writer, actions)

    # --- what happens by itself ---

    def on_change(self, change: Change) -> None:
        self.pending.append(change)
        self.stirred.set()

    def on_account(self, kind: str, mailbox: Mailbox, old: str | None) -> None:
        if not self.notify or mailbox is self.mailbox:
            return
        if kind == "status":
            self.pending_global.append(
                self.status_line(mailbox, ["MESSAGES", "UIDNEXT", "UIDVALIDITY", "HIGHESTMODSEQ"])
            )
        elif kind == "deleted":
            self.pending_global.append(self.list_line(mailbox, ("\\NonExistent",), None))
        else:
            self.pending_global.append(self.list_line(mailbox, mailbox.attributes, old))
        self.stirred.set()

    def flush(self) -> list[bytes]:
        """Lines for everything that happened since the last look."""
        lines, self.pending_global = list(self.pending_global), []
        pending, self.pending = self.pending, []
        grown = False
        for change in pending:
            if change.kind == "new":
                if self.mailbox is not None and change.uid in self.mailbox.uids:  # else it is gone again, untold
                    self.view.append(self.mailbox.by_uid(change.uid))
                    grown = True
                continue
            if grown:
                lines.append(f"* {len(self.view)} EXISTS\r\n".encode())
                grown = False
            number = next((at for at, message in enumerate(self.view, 1) if message.uid == change.uid), None)
            if number is None:
                continue
            if change.kind == "gone":
                self.view.pop(number - 1)
                line = f"* VANISHED {change.uid}\r\n" if self.qresync else f"* {number} EXPUNGE\r\n"
                lines.append(line.encode())
            else:
                lines.append(self.fetch_line(self.view[number - 1], number, self.change_items()))
        if grown:
            lines.append(f"* {len(self.view)} EXISTS\r\n".encode())
        return lines

    def change_items(self) -> list[str]:
        items = ["FLAGS"]
        if self.qresync:
            items.insert(0, "UID")
        if self.condstore:
            items.append("MODSEQ")
        return items

    async def idle(self, tag: str, rest: str) -> None:
        if "IDLE" not in self.profile.capabilities:
            await self.say(rest, [f"{tag} BAD unknown command\r\n".encode()])
            return
        await self.say(rest, [b"+ idling\r\n"])
        ending = asyncio.ensure_future(self.reader.readline())
        try:
            while not ending.done():
                lines = self.flush()
                if lines:
                    await self.say("IDLE-PUSH", lines)
                self.stirred.clear()
                stirring = asyncio.ensure_future(self.stirred.wait())
                try:
                    await asyncio.wait({ending, stirring}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stirring.cancel()
            if not ending.result():
                raise Ended
        finally:
            ending.cancel()
        await self.say("DONE", [*self.flush(), f"{tag} OK idle ended\r\n".encode()])

    def close(self) -> None:
        """Let go of the model."""
        self.leave()
        if self.account is not None:
            with suppress(ValueError):
                self.account.watchers.remove(self.on_account)

    def leave(self) -> None:
        if self.mailbox is not None:
            with suppress(ValueError):
                self.mailbox.listeners.remove(self.on_change)
        self.mailbox = None
        self.view = []
        self.pending = []

    # --- not authenticated ---

    def shown(self) -> str:
        return " ".join(["IMAP4rev1", *sorted(self.profile.capabilities - {"IMAP4rev1"})])

    def do_capability(self, _: str) -> tuple[list[bytes], str]:
        return [f"* CAPABILITY {self.shown()}\r\n".encode()], "OK done"

    def do_noop(self, _: str) -> tuple[list[bytes], str]:
        return [], "OK done"

    def do_logout(self, _: str) -> tuple[list[bytes], str]:
        return [b"* BYE bye\r\n"], "OK done"

    def do_id(self, _: str) -> tuple[list[bytes], str]:
        return [b'* ID ("name" "scripted")\r\n'], "OK done"

    def do_login(self, arguments: str) -> tuple[list[bytes], str]:
        username, password = (unquoted(token) for token in TOKEN.findall(arguments))
        return self.admit(username, lambda account: account.password == password)

    def admit(self, username: str, check: Callable[[Account], bool]) -> tuple[list[bytes], str]:
        if self.profile.login_no is not None:
            raise Refused(f"NO {self.profile.login_no}")
        account = self.server.accounts.get(username)
        if account is None or not check(account):
            raise Refused("NO [AUTHENTICATIONFAILED] Authentication failed.")
        self.account = account
        account.watchers.append(self.on_account)
        self.server.logins[username] += 1
        self.server.login_times.append(time.monotonic())
        match self.profile.capabilities_after_login:
            case "code":
                return [], f"OK [CAPABILITY {self.shown()}] in"
            case "untagged":
                return [f"* CAPABILITY {self.shown()}\r\n".encode()], "OK in"
            case _:
                return [], "OK in"

    async def authenticate(self, tag: str, arguments: str) -> list[bytes]:
        name, _, initial = arguments.partition(" ")
        name = name.upper()
        if f"AUTH={name}" not in self.profile.capabilities:
            return [f"{tag} NO unknown mechanism\r\n".encode()]
        try:
            if name == "SCRAM-SHA-256":
                lines, end = await self.scram(initial)
            elif name == "LOGIN":
                username = (await self.challenge("VXNlcm5hbWU6")).decode()
                password = (await self.challenge("UGFzc3dvcmQ6")).decode()
                lines, end = self.admit(username, lambda account: account.password == password)
            else:
                message = base64.b64decode(initial) if initial else await self.challenge("")
                lines, end = await self.simple(name, message)
        except Refused as refused:
            lines, end = [], str(refused)
        return [*lines, f"{tag} {end}\r\n".encode()]

    async def simple(self, name: str, message: bytes) -> tuple[list[bytes], str]:
        if name == "PLAIN":
            _, username, password = message.decode().split("\0")
            return self.admit(username, lambda account: account.password == password)
        pattern = (
            r"user=([^\x01]*)\x01auth=Bearer ([^\x01]*)"
            if name == "XOAUTH2"
            else r"a=([^,]*),\x01.*auth=Bearer ([^\x01]*)"
        )
        found = re.search(pattern, message.decode(), re.DOTALL)
        username, token = (found[1], found[2]) if found else ("", "")
        self.server.tokens.append(token)
        account = self.server.accounts.get(username)
        if account is not None and account.token != token:
            await self.challenge(base64.b64encode(b'{"status":"400","schemes":"bearer","scope":"mail"}').decode())
        return self.admit(username, lambda account: account.token == token)

    async def scram(self, initial: str) -> tuple[list[bytes], str]:
        mechanism = ScramMechanism("SCRAM-SHA-256")

        asked: list[str] = []

        def lookup(username: str) -> Any:
            asked.append(username)
            account = self.server.accounts.get(username)
            return mechanism.make_auth_info(account.password if account else "no such user")

        dialogue = mechanism.make_server(lookup)
        first = base64.b64decode(initial) if initial else await self.challenge("")
        dialogue.set_client_first(first.decode())
        final = await self.challenge(base64.b64encode(dialogue.get_server_first().encode()).decode())
        try:
            dialogue.set_client_final(final.decode())
        except Exception:
            raise Refused("NO [AUTHENTICATIONFAILED] Authentication failed.") from None
        await self.challenge(base64.b64encode(dialogue.get_server_final().encode()).decode())
        return self.admit(asked[0], lambda _: True)

    async def challenge(self, encoded: str) -> bytes:
        await send(self.writer, [f"+ {encoded}\r\n".encode()])
        answer = (await self.reader.readline()).strip()
        if answer == b"*":
            raise Refused("BAD cancelled")
        return base64.b64decode(answer)

    # --- authenticated ---

    def user(self) -> Account:
        if self.account is None:
            raise Refused("BAD log in first")
        return self.account

    def find(self, name: str) -> Mailbox:
        if name in self.profile.refused:
            raise Refused(f"NO {self.profile.refused[name]}")
        key = "INBOX" if name.upper() == "INBOX" else name
        mailbox = self.user().mailboxes.get(key)
        if mailbox is None:
            raise Refused("NO [NONEXISTENT] Mailbox doesn't exist")
        if not mailbox.selectable:
            raise Refused("NO Mailbox is not selectable")
        return mailbox

    def do_enable(self, arguments: str) -> tuple[list[bytes], str]:
        wanted = {word.upper() for word in arguments.split()} & self.profile.capabilities
        self.qresync |= "QRESYNC" in wanted
        self.condstore |= bool(wanted & {"QRESYNC", "CONDSTORE"})
        return [f"* ENABLED {' '.join(sorted(wanted))}\r\n".encode()], "OK enabled"

    def do_namespace(self, _: str) -> tuple[list[bytes], str]:
        return [f'* NAMESPACE (("" "{self.user().delimiter}")) NIL NIL\r\n'.encode()], "OK done"

    def do_list(self, arguments: str) -> tuple[list[bytes], str]:
        account = self.user()
        lines = []
        status = re.search(r"STATUS \(([^)]*)\)", arguments)
        if "RETURN" in arguments and "LIST-EXTENDED" not in self.profile.capabilities:
            raise Refused("BAD no such option")
        for mailbox in list(account.mailboxes.values()):
            lines.append(self.list_line(mailbox, mailbox.attributes, None))
            if status is not None and mailbox.selectable and "LIST-STATUS" in self.profile.capabilities:
                if mailbox.name in self.profile.refused:
                    continue
                lines.append(self.status_line(mailbox, status[1].split()))
        return lines, "OK listed"

    def list_line(self, mailbox: Mailbox, attributes: Sequence[str], old: str | None) -> bytes:
        shown = [*attributes] if mailbox.selectable else [*attributes, "\\Noselect"]
        extended = f' ("OLDNAME" ({quoted(old)}))' if old is not None else ""
        delimiter = mailbox.account.delimiter
        line = f'* LIST ({" ".join(shown)}) "{delimiter}" {quoted(mailbox.name)}{extended}\r\n'
        return line.encode("utf-8", "surrogateescape")

    def status_line(self, mailbox: Mailbox, items: Sequence[str]) -> bytes:
        values: dict[str, Any] = {
            "MESSAGES": len(mailbox.messages),
            "UNSEEN": sum("\\Seen" not in message.flags for message in mailbox.messages),
        }
        if self.profile.tell_uidnext:
            values["UIDNEXT"] = mailbox.uidnext
        if self.profile.tell_uidvalidity:
            values["UIDVALIDITY"] = mailbox.uidvalidity
        if "CONDSTORE" in self.profile.capabilities and self.profile.tell_highestmodseq:
            values["HIGHESTMODSEQ"] = mailbox.highestmodseq
        if "OBJECTID" in self.profile.capabilities:
            values["MAILBOXID"] = f"({mailbox.mailbox_id})"
        told = " ".join(f"{item} {values[item]}" for item in items if item in values)
        return f"* STATUS {quoted(mailbox.name)} ({told})\r\n".encode("utf-8", "surrogateescape")

    def do_status(self, arguments: str) -> tuple[list[bytes], str]:
        tokens = TOKEN.findall(arguments)
        mailbox = self.find(unquoted(tokens[0]))
        items = [token for token in tokens[1:] if token not in "()"]
        if "HIGHESTMODSEQ" in items and "CONDSTORE" not in self.profile.capabilities:
            raise Refused("BAD unknown item")
        return [self.status_line(mailbox, items)], "OK done"

    def do_notify(self, arguments: str) -> tuple[list[bytes], str]:
        if "NOTIFY" not in self.profile.capabilities:
            raise Refused("BAD unknown command")
        self.notify = not arguments.upper().startswith("NONE")
        items = ["MESSAGES", "UIDNEXT", "UIDVALIDITY", "HIGHESTMODSEQ"]
        told = "SET STATUS" in arguments.upper()  # RFC 5465 section 3.1: STATUS of all of them first
        boxes = [box for box in self.user().mailboxes.values() if told and box.selectable and box is not self.mailbox]
        return [self.status_line(box, items) for box in boxes], "OK watching"

    def do_create(self, arguments: str) -> tuple[list[bytes], str]:
        self.user().create(unquoted(arguments))
        return [], "OK created"

    def do_delete(self, arguments: str) -> tuple[list[bytes], str]:
        self.user().delete(self.find(unquoted(arguments)).name)
        return [], "OK deleted"

    def do_rename(self, arguments: str) -> tuple[list[bytes], str]:
        old, new = (unquoted(token) for token in TOKEN.findall(arguments))
        self.user().rename(self.find(old).name, new)
        return [], "OK renamed"

    def do_append(self, arguments: str) -> tuple[list[bytes], str]:
        tokens = TOKEN.findall(arguments)
        mailbox = self.find(unquoted(tokens[0]))
        flags = tokens[2 : tokens.index(")")] if tokens[1] == "(" else []
        message = mailbox.deliver(unquoted(tokens[-1]).encode("utf-8", "surrogateescape"), flags=flags)
        return [], f"OK [APPENDUID {mailbox.uidvalidity} {message.uid}] appended"

    def do_examine(self, arguments: str) -> tuple[list[bytes], str]:
        return self.select(arguments, "READ-ONLY")

    def do_select(self, arguments: str) -> tuple[list[bytes], str]:
        return self.select(arguments, "READ-WRITE")

    def select(self, arguments: str, access: str) -> tuple[list[bytes], str]:
        tokens = TOKEN.findall(arguments)
        lines = [b"* OK [CLOSED] left\r\n"] if self.mailbox is not None and self.qresync else []
        self.leave()
        mailbox = self.find(unquoted(tokens[0]))
        if mailbox.name in self.profile.restless:
            mailbox.uidvalidity += 1
        self.mailbox = mailbox
        self.view = list(mailbox.messages)
        mailbox.listeners.append(self.on_change)
        modseqs = "CONDSTORE" in self.profile.capabilities
        self.condstore |= modseqs and "(CONDSTORE)" in arguments
        lines += [
            b"* FLAGS (\\Answered \\Flagged \\Deleted \\Seen \\Draft)\r\n",
            b"* OK [PERMANENTFLAGS (\\Answered \\Flagged \\Deleted \\Seen \\Draft \\*)] ok\r\n",
            f"* {len(self.view)} EXISTS\r\n".encode(),
            b"* 0 RECENT\r\n",
        ]
        if self.profile.tell_uidvalidity:
            lines.append(f"* OK [UIDVALIDITY {mailbox.uidvalidity}] ok\r\n".encode())
        if self.profile.tell_uidnext:
            lines.append(f"* OK [UIDNEXT {mailbox.uidnext}] ok\r\n".encode())
        if modseqs and self.profile.tell_highestmodseq:
            lines.append(f"* OK [HIGHESTMODSEQ {mailbox.highestmodseq}] ok\r\n".encode())
        if "OBJECTID" in self.profile.capabilities:
            lines.append(f"* OK [MAILBOXID ({mailbox.mailbox_id})] ok\r\n".encode())
        asked = re.search(r"\(QRESYNC \((\d+) (\d+)(?: ([\d:,*]+))?", arguments)
        if asked is not None and self.qresync and int(asked[1]) == mailbox.uidvalidity:
            lines += self.since(int(asked[2]), asked[3] or "1:*", ["UID", "FLAGS", "MODSEQ"])
        return lines, f"OK [{access}] open"

    def since(self, modseq: int, uids: str, items: list[str]) -> list[bytes]:
        mailbox = self.opened()
        inside = uid_test(uids, mailbox.uidnext - 1)
        gone = sorted(uid for uid, when in mailbox.vanished.items() if when > modseq and inside(uid))
        lines = [f"* VANISHED (EARLIER) {ranges(gone)}\r\n".encode()] if gone else []
        for number, message in enumerate(self.view, 1):
            if message.modseq > modseq and inside(message.uid):
                lines.append(self.fetch_line(message, number, items))
        return lines

    # --- selected ---

    def opened(self) -> Mailbox:
        if self.mailbox is None:
            raise Refused("BAD no mailbox selected")
        return self.mailbox

    def do_unselect(self, _: str) -> tuple[list[bytes], str]:
        self.opened()
        self.leave()
        return [], "OK left"

    do_close = do_unselect

    def do_uid_fetch(self, arguments: str) -> tuple[list[bytes], str]:
        mailbox = self.opened()
        uids, _, rest = arguments.partition(" ")
        since = re.search(r" \(CHANGEDSINCE (\d+)( VANISHED)?\)$", rest)
        body = rest[: since.start()] if since is not None else rest
        items = _ITEM.findall(re.sub(r"^\(|\)$", "", body))
        supported = self.profile.capabilities
        gated = {"MODSEQ": "CONDSTORE", "EMAILID": "OBJECTID", "THREADID": "OBJECTID", "X-GM-MSGID": "X-GM-EXT-1"}
        if any(item in gated and gated[item] not in supported for item in items):
            raise Refused("BAD unknown item")
        lines: list[bytes] = []
        highest = max((message.uid for message in self.view), default=0)
        inside = uid_test(uids, highest)
        if since is not None:
            if "CONDSTORE" not in supported:
                raise Refused("BAD unknown modifier")
            if since[2] is not None and self.qresync:
                gone = sorted(uid for uid, when in mailbox.vanished.items() if when > int(since[1]))
                gone = [uid for uid in gone if uid_test(uids, mailbox.uidnext - 1)(uid)]
                if gone:
                    lines.append(f"* VANISHED (EARLIER) {ranges(gone)}\r\n".encode())
            items = [*items, "MODSEQ"] if "MODSEQ" not in items else items
        items = ["UID", *[item for item in items if item != "UID"]]
        for number, message in enumerate(self.view, 1):
            if inside(message.uid) and (since is None or message.modseq > int(since[1])):
                lines.append(self.fetch_line(message, number, items))
        return lines, "OK fetched"

    def fetch_line(self, message: Message, number: int, items: Sequence[str]) -> bytes:
        return b"* %d FETCH (%b)\r\n" % (number, b" ".join(self.item(message, item) for item in items))

    def item(self, message: Message, item: str) -> bytes:
        name = item.upper()
        simple: dict[str, Callable[[], str]] = {
            "UID": lambda: f"UID {message.uid}",
            "FLAGS": lambda: f"FLAGS ({' '.join(sorted(message.flags))})",
            "MODSEQ": lambda: f"MODSEQ ({message.modseq})",
            "RFC822.SIZE": lambda: f"RFC822.SIZE {len(message.raw)}",
            "INTERNALDATE": lambda: f'INTERNALDATE "{date_time(message.internal_date)}"',
            "EMAILID": lambda: f"EMAILID ({message.email_id})",
            "THREADID": lambda: "THREADID NIL",
            "X-GM-MSGID": lambda: f"X-GM-MSGID {message.gm_msgid}",
            "X-GM-THRID": lambda: f"X-GM-THRID {message.gm_thrid}",
            "X-GM-LABELS": lambda: f"X-GM-LABELS ({' '.join(map(quoted, message.labels))})",
        }
        if name in simple:
            return simple[name]().encode("utf-8", "surrogateescape")
        if name == "BODYSTRUCTURE":
            return b'BODYSTRUCTURE ("TEXT" "PLAIN" ("CHARSET" "utf-8") NIL NIL "7BIT" %d 1)' % len(message.raw)
        found = re.fullmatch(r"(?:BODY|BODY\.PEEK)\[([^\]]*)\](?:<(\d+)\.(\d+)>)?", name)
        if found is None:
            raise Refused("BAD unknown item")
        if not name.startswith("BODY.PEEK"):
            message.flags.add("\\Seen")
        data = section(message.raw, found[1])
        partial = ""
        if found[2] is not None:
            data = data[int(found[2]) : int(found[2]) + int(found[3])]
            partial = f"<{found[2]}>"
        return f"BODY[{found[1]}]{partial} {{{len(data)}}}\r\n".encode() + data

    def do_uid_search(self, arguments: str) -> tuple[list[bytes], str]:
        self.opened()
        returned = re.match(r"RETURN \(([^)]*)\) ", arguments)
        tokens = TOKEN.findall(arguments[returned.end() :] if returned is not None else arguments)
        test = criteria(tokens, self.view)
        uids = [message.uid for message in self.view if test(message)]
        if returned is None:
            return [f"* SEARCH{''.join(f' {uid}' for uid in uids)}\r\n".encode()], "OK searched"
        if "ESEARCH" not in self.profile.capabilities:
            raise Refused("BAD unknown option")
        told = ""
        for option in returned[1].split() or ["ALL"]:
            if option == "COUNT":
                told += f" COUNT {len(uids)}"
            elif uids:
                value = {"ALL": ranges(uids), "MIN": min(uids), "MAX": max(uids)}[option]
                told += f" {option} {value}"
        return [f'* ESEARCH (TAG "%TAG%") UID{told}\r\n'.encode()], "OK searched"

    def do_uid_store(self, arguments: str) -> tuple[list[bytes], str]:
        mailbox = self.opened()
        uids, how, rest = arguments.split(" ", 2)
        named = set(rest.strip("()").split())
        for message in list(self.view):
            if uid_test(uids, mailbox.uidnext - 1)(message.uid):
                flags = {"+": message.flags | named, "-": message.flags - named}.get(how[0], named)
                mailbox.set_flags(message.uid, flags)
        return [], "OK stored"

    def do_uid_copy(self, arguments: str) -> tuple[list[bytes], str]:
        return self.copy(arguments, move=False)

    def do_uid_move(self, arguments: str) -> tuple[list[bytes], str]:
        return self.copy(arguments, move=True)

    def copy(self, arguments: str, *, move: bool) -> tuple[list[bytes], str]:
        mailbox = self.opened()
        uids, _, name = arguments.partition(" ")
        target = self.find(unquoted(name))
        for message in list(self.view):
            if uid_test(uids, mailbox.uidnext - 1)(message.uid):
                (mailbox.move_to if move else mailbox.copy_to)(message.uid, target)
        return [], "OK copied"

    def do_expunge(self, _: str) -> tuple[list[bytes], str]:
        mailbox = self.opened()
        mailbox.expunge(*[message.uid for message in mailbox.messages if "\\Deleted" in message.flags])
        return [], "OK expunged"


class ImapServer:
    """Use as an async context manager; `port` is known inside.

    `counts` has how often each command came, `logins` how often each user got in, `login_times` when (of the monotonic
    clock), `commands` all lines after their tags, `refused` those that the profile refuses, `open` and `peak` the
    number of connections.
    """

    def __init__(
        self,
        accounts: Iterable[Account],
        profile: Profile | frozenset[str] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        implicit_tls: bool = False,
    ) -> None:
        self.accounts = {account.username: account for account in accounts}
        self.profile = profile if isinstance(profile, Profile) else Profile(profile if profile is not None else FULL)
        self.tls = tls
        self._implicit_tls = implicit_tls
        self.bends: list[Bend] = []
        self.counts: Counter[str] = Counter()
        self.logins: Counter[str] = Counter()
        self.login_times: list[float] = []
        self.commands: list[str] = []
        self.refused: list[str] = []
        self.tokens: list[str] = []
        self.open = 0
        self.peak = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> ImapServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        """Listen; on the old port when it is given again."""
        tls = self.tls if self._implicit_tls else None
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", port or self.port, ssl=tls, limit=1 << 26, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.drop_all()

    async def drop_all(self) -> None:
        """End every connection at once, as a restart of the host would; new ones are taken."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def bend(self, pattern: str, bender: Bender, *, times: int | None = None, skip: int = 0) -> Bend:
        """Bend the answers to commands that match (searched in the line after the tag). `GREETING`, `IDLE-PUSH` and
        `DONE` name the greeting, what comes in IDLE, and its end.
        """
        bend = Bend(re.compile(pattern), bender, times, skip)
        self.bends.append(bend)
        return bend

    def count(self, name: str) -> int:
        """How often a command came. `UID FETCH` and the like are names."""
        return self.counts[name]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = writer
        self.open += 1
        self.peak = max(self.peak, self.open)
        session = _Session(self, reader, writer)
        try:
            await session.serve()
        except (Ended, ConnectionError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            session.close()
            self._tasks.pop(task, None)
            writer.close()
