"""The control plane: Faust agents and tables for the lifecycle of accounts and the sessions of their users.

::

    account.state_changed ──▶ accounts table ──▶ host (start, stop)
             │ re-keyed by user
             ▼
    user.accounts ──▶ users table ──▶ account.heat ──▶ accounts table ──▶ host (hot)
    user.active   ──────┘  coalesced

`attach` puts it into an app. `intake`, `accounts`, `users` and `delivery` know nothing of Faust; `plane` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.agents.plane import ControlPlane
    from streams.agents.ports import ShardHost
    from streams.observer import RuntimeObserver
    from streams.settings import Settings


def attach(app: Any, *, settings: Settings, host: ShardHost, store: Any, observer: RuntimeObserver) -> ControlPlane:
    """Give the app its agents and tables. Call it once, before the app starts.

    `host` runs the shards that the assignment brings; `store` is the directory of accounts with which the live set is
    compared (None: no comparison).
    """
    from streams.agents.plane import ControlPlane

    return ControlPlane(app, settings=settings, host=host, store=store, observer=observer)
