"""Where fuzzing starts: an input for each kind of response. Its first byte says how the rest is cut into reads."""

from __future__ import annotations

_LINES = (
    b"* OK [CAPABILITY IMAP4rev1 IDLE] ready\r\n",
    b"* CAPABILITY IMAP4rev1 CONDSTORE\r\n",
    b'* 1 FETCH (UID 7 FLAGS (\\Seen $x) MODSEQ (5) RFC822.SIZE 3 INTERNALDATE " 1-Jan-2026 00:00:00 +0100")\r\n',
    b"* 1 FETCH (UID 7 BODY[HEADER.FIELDS (FROM)] {3}\r\nabc)\r\n",
    b'* 1 FETCH (UID 7 BODY[] {3}\r\nabc\r\n BODY[TEXT]<0> "q\\"" RFC822.HEADER NIL)\r\n',
    b'* 1 FETCH (BODYSTRUCTURE (("TEXT" "HTML"" NIL NIL NIL "7BIT" 1 1) "MIXED") UID 7)\r\n',
    b'* 1 FETCH (X-GM-LABELS ("\\\\Inbox" {2}\r\na" [x]) X-GM-MSGID 1 EMAILID (a) THREADID NIL UID 2)\r\n',
    b'* LIST (\\HasNoChildren \\Sent) "/" "a&AOk-" ("OLDNAME" ("b"))\r\n* LIST () NIL {3}\r\nQ"x\r\n',
    b"* STATUS a b (MESSAGES 1 UIDNEXT 2 MAILBOXID (F1))\r\n",
    b'* ESEARCH (TAG "A1") UID MIN 1 MAX 9 COUNT 2 ALL 1,3:9 MODSEQ 7\r\n* SEARCH 1 2 (MODSEQ 9)\r\n',
    b"* VANISHED (EARLIER) 1,3:9\r\n* VANISHED 4\r\n* 3 EXISTS\r\n* 2 EXPUNGE\r\n* 0 RECENT\r\n",
    b'* NAMESPACE (("" "/")) NIL (("a" NIL))\r\n* ID ("name" "x")\r\n* FLAGS (\\Seen)\r\n* ENABLED QRESYNC\r\n',
    b"+ idling\r\nA1 NO [NOPERM] x {10}\r\n* BYE {3}\r\n[COPYUID 1 2 3]\r\n",
)
SEEDS: tuple[bytes, ...] = tuple(bytes([cut]) + line for cut in (0, 1, 3) for line in _LINES)
