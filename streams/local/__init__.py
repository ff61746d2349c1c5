"""The local stack: real Kafka, PostgreSQL and a mail server on loopback, for the demo, the tests and development.

Map: `stack` puts it together, `kafka`, `postgres`, `dovecot` and `pymap_server` are the services, `containers` the
same in Docker, `process` and `launch` run programs and end them, `jars` and `ports` and `certificates` get what they
need, `demo` is `make demo`. `python -m streams.local` runs it all in the foreground.
"""
