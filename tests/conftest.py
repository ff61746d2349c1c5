"""What every test shares: profiles of property tests, and the real services."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.fixtures.services",)

# The settings of whoever works in this tree are not those of a test.
os.environ["MAILSTREAMS_ENV_FILE"] = os.devnull

# No deadline per example: the machine is shared, and time is measured where it is the point, not here.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", deadline=None, max_examples=20_000, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("MAILSTREAMS_HYPOTHESIS_PROFILE", "default"))
