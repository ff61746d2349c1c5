"""The sans-IO half of IMAP: bytes in, values out, and the other way round.

Invariant: the same bytes give the same values however they were cut into reads, in time linear in their number and in
memory bounded by the limits given.
"""
