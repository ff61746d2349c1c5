"""The truth: an independent reader of mail server, log and database, and the rules that hold between them.

It shares no code with the product, not even its records: it reads the server with `imapclient`, the log with a plain
consumer and `json`, the database with SQL. What it proves is therefore not an agreement of the product with itself.

    readers   server.py, log.py, database.py            what is there
    fold.py                                             what the log adds up to, and events that make no sense
    header.py, content.py                               what is told of a message is what its header says
    rules.py                                            what must hold between them
    statuses.py                                         what is said of accounts is still so
    journal.py                                          what a script did, so that each event can be explained
    secrets.py                                          what must be nowhere
    truth.py                                            all of it, in one call
"""
