"""Which of a cause's fixes are for a machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from provision.doctor.model import Fix

# On such a machine only what was written for it is right: a Linux driver inside WSL, or
# `systemctl restart docker` for the snap, do harm or nothing.
EXCLUSIVE = frozenset(["wsl", "docker-desktop", "snap-docker", "rootless"])
FAMILIES = frozenset(["debian", "rhel", "suse", "arch", "alpine", "nixos", "other"])
_ENGINES = frozenset(["docker", "podman", "systemd"])


def pick_fixes(fixes: Sequence[Fix], where: frozenset[str]) -> tuple[Fix, ...]:
    """Those for this machine: the ones that name it, and those for everybody. Where nothing is
    known of the machine, all of them, the most used first.
    """
    known = where & {name for fix in fixes for name in fix.on}
    if not where:
        return tuple(sorted(fixes, key=_most_used))
    chosen = [fix for fix in fixes if not fix.on or set(fix.on) & where]
    if known or any(not fix.on for fix in fixes):
        return narrowed(sorted(chosen, key=lambda fix: not fix.on))
    return tuple(fixes)


def narrowed(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    """Of the fixes picked for a machine, those that fit it closest: what is for an exclusive
    place stands alone, and what names a distribution stands before what names its family.
    """
    exclusive = tuple(fix for fix in fixes if EXCLUSIVE & set(fix.on))
    if exclusive:
        return exclusive
    own = any(set(fix.on) - FAMILIES - EXCLUSIVE - _ENGINES for fix in fixes)
    return tuple(fix for fix in fixes if not (own and fix.on and set(fix.on) <= FAMILIES))


def _most_used(fix: Fix) -> int:
    """What is for everybody first, then the families in the order in which GPU machines have them,
    then engines; what is for an exclusive place last.
    """
    if EXCLUSIVE & set(fix.on):
        return len(FAMILIES) + len(_ENGINES)
    order = ("ubuntu", "debian", "rhel", "suse", "arch")
    return min(
        (order.index(name) + 1 if name in order else len(order) + 1 for name in fix.on), default=0
    )
