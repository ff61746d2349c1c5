"""The job `export`: messages of an account as .eml files, Maildir or mbox, in a directory or an object store.

Invariants: mail is only read (EXAMINE, BODY.PEEK); nothing is written outside the account's directory below EXPORT_DIR;
a message that the manifest lists is complete in its place, so that an export which is interrupted goes on where it was.
"""
