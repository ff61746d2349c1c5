"""What goes over the wire: topics, records, keys, headers. Everything here is public API and additive only."""
