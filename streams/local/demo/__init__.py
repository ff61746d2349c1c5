"""`make demo`: real mail from a mail server into the log and the database, shown as it happens.

Map: `postman` does things to mailboxes as any mail program would, `deeds` remembers what was done and when, `watch`
reads the log and the database and finds each deed again, `view` shows it, `product` runs our own command line and
worker as a person would, `run` is the order of it all.
"""
