"""An IMAP server for tests that answers wrongly on purpose.

Three layers, each usable alone:

* `model`: accounts in memory, with mailboxes, UIDs, flags, modification sequences. Tests change them as another client
  would (`deliver`, `set_flags`, `expunge`, `move`, `renumber`, `new_epoch`, ...).
* `server`: `ImapServer` serves a model as a decent server would, with the capabilities of its `Profile`; the profile
also
  has the manners of bad ones (a UIDVALIDITY that changes at each SELECT, no UIDNEXT, ...). Every answer can be bent:
  `server.bend(r"UID FETCH", ...)` gives a function the responses that would be sent and sends what it returns: other
  bytes, `Pause`, `Pieces`, `Drop`, `Reset`, `Hang`.
* `script`: `ScriptedServer` knows no model: it sends and expects what a list says, byte by byte.

    account = Account("alice", "secret")
    account.mailboxes["INBOX"].deliver(b"Subject: hi\\r\\n\\r\\nhello")
    async with ImapServer([account], Profile(QRESYNC)) as server:
        server.bend(r"UID FETCH", lambda answer: [*answer[:1], Drop()], times=1)
        ...                                     # dial 127.0.0.1:server.port
        assert server.count("LOGIN") == 2
"""
