"""What end-to-end tests and storms stand on: workers as real processes, clients of mail, a live view of the log.

worker.py     one `faust -A streams worker` process: start, stop, kill, pause, resume
fleet.py      settings of one fleet, its accounts, its workers, and waiting until all is at rest
mailer.py     an ordinary IMAP client that changes mail and keeps a journal of it
watch.py      the log as it grows, folded
letters.py    messages to append, ordinary and odd
routine.py    one of everything that a client does to mail
sleeper.py    the product on a machine that sleeps just before it opens a fence
outages.py    services that refuse
proxy.py      a TCP proxy that cuts, delays, halves and goes silent
"""
