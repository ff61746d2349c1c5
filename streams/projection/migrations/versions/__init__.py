"""One module per revision, oldest first. A released revision is never edited."""
