"""Tests: `unit` and `contract` need nothing, `integration` and `e2e` run on real services (see `fixtures`)."""
