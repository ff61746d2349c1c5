"""Turns itself into another program, tied to its parent's life. Run as a script, standard library only.

    python -I -S launch.py PARENT_PID DEATH_SIGNAL UID GID -- PROGRAM ARGUMENT...

Invariant: when the parent is gone, however it went, the program gets DEATH_SIGNAL; nothing outlives who started it.
A script rather than `preexec_fn`, which may deadlock in a process with threads. The kernel forgets the death signal
when credentials change, hence the order: first the user, then the signal. UID or GID `-1` keeps what it is.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def main(arguments: list[str]) -> None:
    """Become the program named in `arguments`; returns only by raising."""
    parent, death_signal, uid, gid = (int(value) for value in arguments[:4])
    command = arguments[5:]
    libc = ctypes.CDLL(None, use_errno=True)
    if uid >= 0:
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)
    if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        sys.exit(1)  # the parent went between fork and here
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
