"""The directory: accounts and their credentials, the truth in PostgreSQL (schema `mailstreams`), never rebuilt.

Start at `accounts.AccountStore`; `credentials` seals what is secret, `sources` hands it to a login, `reconcile`
compares the truth with what a worker has heard.
"""
