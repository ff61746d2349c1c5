"""Commands as tasks: one engine, two lanes (`sync.commands` for an account's owner, `sync.jobs` for any process).

Invariant of the whole package: an execution may repeat, a conclusion may not. What a reader of `sync.command_events`
sees (read_committed) is at most one `success` or `failure` per command, whoever died and however often it was sent.
"""
