"""The projection: the log as rows in PostgreSQL (schema `mail`), exactly once as the database sees it.

`decoding` makes events out of records, `fold` makes rows out of events (pure), `tables` writes rows and positions in
one transaction, `projector` runs it, `rebuild` starts over from the log. `migrations` holds both schemas.
"""
