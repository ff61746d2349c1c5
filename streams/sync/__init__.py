"""The data plane: shards, their writer, and the runners that bring mailboxes and log into agreement."""
