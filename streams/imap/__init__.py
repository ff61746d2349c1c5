"""IMAP: what crosses the wire, and the session that asks and listens.

Read in this order:

* `protocol/`: sans-IO. `framing` cuts the byte stream into responses, `parser` turns each into a value of `responses`,
  `commands` encodes what we send, `codes` says what a refusal means. No socket, no clock, no event loop.
* `values`: what a caller gives and gets.
* `connection`: the aioimaplib protocol class with our own response path; deadlines, back-pressure, compression.
* `session`: the commands that reading a mailbox needs. It never changes mail: EXAMINE and PEEK only.
* `connecting`: address check, TCP, TLS or STARTTLS, greeting. `addresses` and `tls` are its rules.
* `sasl`, `credentials`, `oauth`: how we prove who we are, and where tokens come from.
* `hosts`: how often and how many at once we may knock at one mail host, over all accounts of the process.
"""
