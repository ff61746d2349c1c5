"""The process around everything else: how it starts, reports on itself, drains and ends. Knows no mail and no shard."""
