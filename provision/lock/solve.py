"""Plan -> lock: a PEP 751 file that names every wheel by version, address, size and sha256.

uv chooses package versions (`uv pip compile`, for the target's Python and platform); the plan has
decided the build of the framework. The candidate indexes of the plan are tried in turn, so an
unreachable index costs a line in the log and never the job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from images.errors import DiskFullError, Failure
from images.net.address import shown_url, url_secrets
from images.system import process
from provision.errors import Exit, IndexUnreachableError
from provision.host.uv import builtin_index, index_logins, plain_index, uv_directory, uv_indexes
from provision.lock.lockfile import Lock, addresses_of, clip, parse_lock, read_lock, with_wheels
from provision.lock.network import no_such_host
from provision.lock.origins import account, with_indexes
from provision.lock.places import uv_places
from provision.lock.sources import SourceView, SourceWheels
from provision.lock.uv import (
    Outcome,
    WheelTarget,
    access_refused,
    address_asked,
    compile_argv,
    help_with,
    is_disk_full,
    judge_uv,
    target_of,
    told_of_mirrors,
    uses_cache,
    uv_environment,
)
from provision.lock.uv_answers import Answer, UvAnswers, UvQuestion, sources_for_uv
from provision.lock.wheels import finished
from provision.model.environment import with_addresses
from provision.model.plan import PACKAGES, DeclaredIndex, IndexCandidate, Plan, Reason, Request

_UV_TIMEOUT_S = 300.0
_LINKS_FACTOR = 6
_MOST_NAMED = 8


class UvBrokenError(Failure):
    """uv could not work on this machine; no index was at fault."""

    code = "uv-broken"
    exit_code = 5


class IndexAccessError(Failure):
    """An index, or the proxy before it, demands a login; or its certificate is not trusted."""

    code = "index-access"
    exit_code = Exit.UNREACHABLE


class NoSolutionError(Failure):
    """The index answered, and the requested packages exclude each other or do not exist."""

    code = "no-solution"
    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The result of trying one index; `text` is the lock, or uv's error message."""

    candidate: IndexCandidate
    outcome: Outcome
    reason: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The wheels that an index has for a plan: uv's lock, and the plan with that index alone."""

    text: str
    plan: Plan


def lock_of(
    found: Solution,
    *,
    ca_bundle: Path | None,
    offline: bool,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Lock:
    """The lock for what uv found: with the sizes of the wheels, the plan, and the `names` of the
    indexes that it has packages of, with their addresses.
    """
    lock = read_lock(finished(found.text, found.plan, ca_bundle, offline=offline, names=names))
    return replace(lock, addresses=addresses_of(parse_lock(found.text)))


def find_wheels(
    plan: Plan,
    request: Request,
    *,
    ca_bundle: Path | None,
    offline: bool,
    tell: Callable[[str], None],
    answers: UvAnswers | None = None,
    sources: SourceWheels | None = None,
) -> Solution:
    """Try the plan's indexes in order; use the first that answers and has everything.
    UvBrokenError: uv cannot run; else the failure of the last index tried.
    """
    attempts: list[Attempt] = []
    for candidate in candidates_for(plan, request, ca_bundle=ca_bundle, offline=offline):
        attempt = ask_index(
            candidate,
            plan,
            request,
            ca_bundle=ca_bundle,
            offline=offline,
            answers=answers,
            sources=sources,
        )
        if attempt.outcome == "locked":
            return Solution(text=attempt.text, plan=_with_index(plan, attempt, attempts))
        if attempt.outcome == "broken":
            raise uv_broken(attempt.reason, attempt.text)
        attempts.append(attempt)
        tell(f"{candidate.name} ({candidate.requirement}): {attempt.reason}")
    raise _no_index(attempts, request, offline=offline)


def candidates_for(
    plan: Plan, request: Request, *, ca_bundle: Path | None, offline: bool
) -> Sequence[IndexCandidate]:
    """The plan's indexes. Where a project or the configuration names others, these are asked for
    the plan's build, too, after those of --index.
    """
    given = [one for one in plan.indexes if one.name == "--index"]
    rest = [one for one in plan.indexes if one.name != "--index"]
    if not rest or any(one.url is None and one.requirement == rest[0].requirement for one in rest):
        return plan.indexes
    if any(one.kind != "silent" for one in request.indexes):
        name, why = f"the indexes of {request.declared_in}", f"named by {request.declared_in}"
    else:
        environment = {**os.environ, **uv_environment(os.environ, ca_bundle)}
        variables = {name: value for name, value in environment.items() if value is not None}
        try:
            here = uv_indexes(variables, offline=offline)
        except process.CommandFailed:  # the question for the packages says what is wrong
            return plan.indexes
        if not here.named - {plain_index(here.default)}:
            return plan.indexes
        name, why = "your own indexes", "named by your configuration of uv"
    own = IndexCandidate(name=name, url=None, requirement=rest[0].requirement, why=why)
    return [*given, own, *rest]


def uv_broken(reason: str, output: str) -> Failure:
    """The error for a uv that could not work here: a full disk has its own."""
    kind = DiskFullError if is_disk_full(output) else UvBrokenError
    return kind(
        f"uv, which resolves the packages, failed here: {reason}",
        fix=help_with(output),
        detail=clip(output, 2000),
    )


def ask_index(
    candidate: IndexCandidate,
    plan: Plan,
    request: Request,
    *,
    ca_bundle: Path | None,
    offline: bool,
    answers: UvAnswers | None = None,
    sources: SourceWheels | None = None,
) -> Attempt:
    """Let uv resolve everything from one index, and check that it chose the build of the plan."""
    why = no_such_host(candidate.url) if candidate.url and not offline else None
    if why is not None:  # uv would need seconds to find that
        why = f"unreachable: {shown_url(candidate.url or '')}: {why}"
        return Attempt(candidate=candidate, outcome="unreachable", reason=why)
    lines = [candidate.requirement, *plan.requirements]
    target = target_of(plan)
    outcome, reason, text = run_uv(
        lines,
        target,
        index=candidate.url,
        ca_bundle=ca_bundle,
        offline=offline,
        constraints=request.constraints,
        addresses=request.addresses,
        declared=request.indexes,
        answers=answers,
        sources=sources,
    )
    if outcome == "locked" and (problem := wrong_build(text, plan)):
        outcome, reason, text = "absent", problem, ""
    return Attempt(candidate=candidate, outcome=outcome, reason=reason, text=text)


def run_uv(
    lines: Sequence[str],
    target: WheelTarget,
    *,
    index: str | None,
    ca_bundle: Path | None,
    offline: bool,
    alone: bool = False,
    releases_only: bool = False,
    constraints: Sequence[str] = (),
    addresses: Sequence[str] = (),
    declared: Sequence[DeclaredIndex] = (),
    answers: UvAnswers | None = None,
    sources: SourceWheels | None = None,
) -> Answer:
    """Resolve requirement lines with uv: the outcome, the reason in one line, and the lock or what
    uv printed. `index` goes before the installer's default one; `constraints` are requirements
    that limit versions; `addresses` the whole ones of wheels that the requirements name; `declared`
    the places that a project names; `answers` are those of the same job; `sources` builds releases
    that have no wheel (None: they do not count); the rest is as for `compile_argv`. The lock has
    whole addresses, too: `finished` shortens them.
    """

    def placed(lines: Sequence[str]) -> Sequence[str]:
        return lines if sources is None else sources.lines(lines, addresses, target)

    def run(view: SourceView | None) -> Answer:
        question = UvQuestion(
            tuple(placed(lines)),
            target,
            index,
            offline,
            alone,
            releases_only,
            tuple(placed(constraints)),
            tuple(addresses),
            tuple(declared),
            view,
        )
        if answers is None:
            return _run_uv(question, ca_bundle)
        return answers.of(question, lambda: _run_uv(question, ca_bundle))

    return run(None) if sources is None else sources.resolve(run, target)


def _run_uv(asked: UvQuestion, ca_bundle: Path | None) -> Answer:
    view = asked.view
    with uv_directory() as made:
        given = sources_for_uv(made, view)
        limits = made / "constraints.txt" if asked.constraints else None
        if limits is not None:
            limits.write_text(_text(asked.constraints, asked.addresses), encoding="utf-8")
        environment = uv_environment(os.environ, ca_bundle)
        environment |= uv_places(  # not as options: every user may read a command line
            asked.index,
            asked.declared,
            {**os.environ, **{k: v for k, v in environment.items() if v is not None}},
            ca_bundle=ca_bundle,
            offline=asked.offline,
        )
        # uv's cache keeps addresses whole, in files that others may read
        if (asked.addresses and not asked.offline) or not uses_cache(os.environ):
            environment["UV_CACHE_DIR"] = str(made / "cache")
        merged = {**os.environ, **environment}
        known = {name: value for name, value in merged.items() if value is not None}
        if given is not None:  # beside the places that are named
            others = environment.get("UV_FIND_LINKS") or os.environ.get("UV_FIND_LINKS")
            environment["UV_FIND_LINKS"] = ",".join(filter(None, (others, str(given.wheels))))
        # of a page without hashes uv downloads the wheels
        linked = given is not None or known.get("UV_FIND_LINKS")
        limit_s = _UV_TIMEOUT_S * (_LINKS_FACTOR if linked else 1)
        default = known.get("UV_DEFAULT_INDEX") or known.get("UV_INDEX_URL") or ""
        whole = (asked.index or "", default, *asked.addresses)
        secrets = [word for url in whole for word in url_secrets(url)]

        def compile_to(out: Path, *, offline: bool) -> process.Completed:
            return process.run(
                compile_argv(
                    asked.target,
                    out,
                    offline=offline,
                    alone=asked.alone,
                    releases_only=asked.releases_only,
                    constraints=limits,
                    sources=given,
                ),
                timeout_s=limit_s,
                env=environment,
                input=_text(asked.lines, asked.addresses),
                cwd=made,  # uv looks for a uv.toml in the folders above: here it finds none
                redact=secrets,
            )

        lock, listing = made / "pylock.toml", made / "requirements.txt"  # which names each index
        try:
            done = compile_to(lock, offline=asked.offline)
            if done.ok:
                done = compile_to(listing, offline=True)  # the same, from uv's cache
                if not (done.ok or asked.offline):  # which its configuration may forbid
                    done = compile_to(listing, offline=False)
            if not done.ok:
                return *judge_uv(done.output), done.output
            named = uv_indexes(known, offline=asked.offline).named
            own = given.wheels.as_uri() if given is not None else ""
            text = with_indexes(lock.read_text("utf-8"), listing.read_text("utf-8"), named, own)
            for wheel in view.built if view is not None else ():
                for name in (wheel.path.name, quote(wheel.path.name)):
                    text = text.replace(f'"{own}/{name}"', f'"{wheel.path.as_uri()}"')
        except process.CommandTimedOut:
            return "unreachable", f"unreachable: no complete answer within {limit_s:g} s", ""
        except process.CommandFailed as error:
            return *judge_uv(error.detail), error.detail
        except ValueError as error:
            return "broken", f"it {error}.", ""
        return "locked", "has it", with_wheels(text)


def _text(lines: Sequence[str], addresses: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in with_addresses(lines, addresses))


def wrong_build(text: str, plan: Plan) -> str | None:
    """An index may hold another build under the same version; its local tag gives it away."""
    name = PACKAGES[plan.framework]
    for package in parse_lock(text).packages:
        if package.name == name:
            local = package.version.local if package.version else None
            if local is not None and local != plan.wheel_tag:  # PyPI has no local tags
                return f"has {name} {package.version}, not the {plan.wheel_tag} build"
            return None
    return f"resolved without {name}"


def _with_index(plan: Plan, found: Attempt, failed: Sequence[Attempt]) -> Plan:
    chosen = found.candidate
    skipped = "".join(f"; {a.candidate.name} {a.reason}" for a in failed)
    names = {builtin_index(): "PyPI"} | (
        {plain_index(chosen.url): chosen.name} if chosen.url else {}
    )
    come_from = account(found.text, first=PACKAGES[plan.framework], names=names)
    reason = Reason(
        code="index-chosen",
        message=f"The wheels come from {come_from}: {chosen.why}{skipped}.",
        source=shown_url(chosen.url) if chosen.url else "the installer's default index",
    )
    kept = tuple(r for r in plan.reasons if r.code != "index-order")
    return plan._replace(index_url=chosen.address, indexes=(chosen,), reasons=(*kept, reason))


def _no_index(attempts: Sequence[Attempt], request: Request, *, offline: bool = False) -> Failure:
    told = "\n".join(
        f"{a.candidate.name} ({a.candidate.requirement}): {a.reason}" for a in attempts
    )
    wanted = attempts[0].candidate.requirement if attempts else "the wheels"
    outcomes = {attempt.outcome for attempt in attempts}
    if refused := access_refused([a.reason for a in attempts if a.outcome == "unreachable"]):
        host, why, fix = refused
        if host and host in index_logins(os.environ, request.places.names, request.index_url or ""):
            why = f"{host} demands another login than yours"
        if host or outcomes == {"unreachable"}:
            return IndexAccessError(f"{why}.", fix=fix)
    # If one index has the build but no solution, that is the answer, whatever else is unreachable.
    if "unsolvable" in outcomes or outcomes == {"absent"}:
        more = len(request.companions) - _MOST_NAMED
        asked = f" with {', '.join(request.companions[:_MOST_NAMED])}" if request.companions else ""
        asked += f" and {more} more" if more > 0 else ""
        by = f"{request.declared_in} or --with" if request.declared_in else "--with"
        return NoSolutionError(
            f"No index that answers has {wanted}{asked} as one consistent set.",
            fix=f"Change a requirement of {by} that the reasons above name, or name the index that "
            "has it with --index.",
            detail=told,
        )
    if offline:
        return IndexUnreachableError(
            f"uv's cache has no {wanted} with all that it needs, and --offline forbids to ask an "
            "index.",
            fix="Run this once without --offline, with the same UV_CACHE_DIR.",
            detail=told,
        )
    left = [a for a in attempts if a.outcome != "absent"]
    silent = " and ".join(dict.fromkeys(address_asked(a.reason) or a.candidate.name for a in left))
    return IndexUnreachableError(
        f"No index that answers has {wanted}, and {silent} could not be reached."
        if len(left) < len(attempts)
        else f"No index that has {wanted} could be reached: {silent}.",
        fix="Check the network, the proxy and --ca-bundle, or name a mirror with --index: an "
        "index, or a page of links to wheels.",
        detail=told,
        log=told_of_mirrors([a.reason for a in left], request.index_url, os.environ),
    )
