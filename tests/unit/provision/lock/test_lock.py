"""Locks: what uv says is understood, what is written can be read, what is wrong is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomli_w

from images.errors import Failure
from provision.errors import BadInputError, LockFileError
from provision.lock import solve as lock
from provision.lock import uv
from provision.lock.lockfile import read_lock, read_lock_file, refuse_unlocked, write_lock
from provision.lock.network import make_secrets
from provision.lock.wheels import finished as finish
from provision.model.plan import Base, DebianPackage, IndexCandidate, Plan, Request
from provision.model.planfile import plan_from_json, plan_to_json, without_nulls
from tests.kit.cases import cases

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLAN = Plan(
    verdict="direct",
    framework="pytorch",
    framework_version="2.0.1",
    cuda="11.7",
    wheel_tag="cu117",
    index_url="pypi",
    python="3.11",
    arch="x86_64",
    base=Base(kind="registry", reference="python:3.11-slim", python="3.11", glibc="2.36"),
    requirements=("numpy<2",),
    indexes=(IndexCandidate(name="PyPI", url=None, requirement="torch==2.0.1", why="its default"),),
)


def uv_lock(
    version: str = "2.0.1",
    url: str = "https://user:canary@e.example/torch-VERSION-cp311-cp311-linux_x86_64.whl",
    more: str = "",
) -> str:
    return f"""lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.11"
[[packages]]
name = "torch"
version = "{version}"
marker = "sys_platform == 'linux'"
index = "https://user:canary@e.example/simple"
sdist = {{ url = "https://e.example/torch-{version}.tar.gz", hashes = {{ sha256 = "{"0" * 64}" }} }}
[[packages.wheels]]
url = "{url.replace("VERSION", version)}"
size = 7
hashes = {{ sha256 = "{"1" * 64}" }}
{more}"""


def finished() -> str:
    return finish(uv_lock(), PLAN, None, offline=True)


def test_a_finished_lock_is_read_back_whole() -> None:
    read = read_lock(finished())
    assert read.plan == PLAN
    assert read.wheels[0].sha256 == "1" * 64
    assert read.download_bytes == 7


def test_a_finished_lock_holds_no_login_and_no_sdist() -> None:
    text = finished()
    assert "canary" not in text
    assert "sdist" not in text
    assert "e.example/torch-2.0.1-cp311-cp311-linux_x86_64.whl" in text


WHOLE = "https://u:5ecret@e.example/torch-2.0.1-cp311-cp311-linux_x86_64.whl?sig=5ecret&x=1"


def test_a_lock_has_addresses_without_queries_and_the_build_the_whole_ones() -> None:
    found = lock.Solution(text=uv_lock(url=WHOLE), plan=PLAN)
    made = lock.lock_of(found, ca_bundle=None, offline=True)
    assert made.addresses == (WHOLE,)
    assert made.wheels[0].url == "https://e.example/torch-2.0.1-cp311-cp311-linux_x86_64.whl"
    assert "5ecret" not in f"{made} {made.text}"
    secrets = make_secrets(ca=None, index=None, hosts=[], env={}, addresses=made.addresses)
    assert secrets.addresses == {made.wheels[0].url: WHOLE}
    assert {"5ecret", "sig=5ecret&x=1"} <= set(secrets.values)
    assert "5ecret" not in repr(secrets)


def test_a_lock_of_an_earlier_version_loses_the_query_when_it_is_read() -> None:
    plain = finished()
    shown = "https://e.example/torch-2.0.1-cp311-cp311-linux_x86_64.whl"
    old = plain.replace(shown, WHOLE).replace("numpy<2", f"numpy @ {WHOLE}")
    read = read_lock(old)
    assert read.text == plain.replace("numpy<2", f"numpy @ {shown}")
    assert (read.addresses, read.wheels[0].url) == ((WHOLE,), shown)
    assert read.plan.requirements == (f"numpy @ {shown}",)
    assert read_lock(plain).text == plain


def test_only_wheels_of_the_lock_are_named_beside_it() -> None:
    read = read_lock(finished())
    wheel = read.wheels[0]
    refuse_unlocked([], [read])
    refuse_unlocked([f"torch @ {wheel.url}", f"torch @ {wheel.url} ; os_name == 'posix'"], [read])
    for text in ("numpy @ https://e.example/numpy.whl", f"other @ {wheel.url}", "torch==2.0.1"):
        with pytest.raises(BadInputError, match="is not a wheel of the lock"):
            refuse_unlocked([text], [read])


def test_a_finished_lock_says_for_which_machine_it_is() -> None:
    data = tomllib.loads(finished())
    assert data["requires-python"] == "==3.11.*"
    assert "platform_machine" in data["environments"][0]


@cases(
    "output outcome",
    ("a name that does not resolve",
     ("error: Failed to fetch: https://e.example/torch/\n  cause: dns error\n"
      "  cause: failed to lookup address information: Name or service not known"), "unreachable"),
    ("a silent server",
     "error: Failed to fetch: http://e.example/torch/\n  cause: operation timed out",
     "unreachable"),
    ("an index without this build",
     ("error: No solution found when resolving dependencies\n  cause: Because there is no "
      "version of torch==2.0.1+cu117 and you require torch==2.0.1+cu117, we can conclude "
      "that your requirements are unsatisfiable."), "absent"),
    ("a companion that does not exist",
     ("error: No solution found when resolving dependencies\n  cause: Because nosuchthing "
      "was not found in the package registry and you require nosuchthing, ..."), "unsolvable"),
    ("a login is asked for", "HTTP status 401 Unauthorized", "unreachable"),
    ("no word at all", "", "broken"),
    ("a home that is read-only",
     ("error: Failed to initialize cache at `/home/u/.cache/uv`\n  cause: failed to create "
      "directory `/home/u/.cache/uv`: Read-only file system (os error 30)"), "broken"),
    ("few open files",
     ("thread 'main2' panicked at crates/uv/src/lib.rs:3121:14:\nFailed building the "
      'Runtime: Os { code: 24, kind: TooManyOpenFiles, message: "Too many open files" }'),
     "broken"),
    ("few open files for a connection",
     ("error: Failed to fetch: `https://e.example/torch/`\n  cause: Too many open files "
      "(os error 24)"), "broken"),
    ("no Python",
     ("error: No interpreter found for Python 3.11 in virtual environments, managed "
      "installations, or search path"), "broken"),
    ("a directory that is gone", "Current directory does not exist", "broken"),
)  # fmt: skip
def test_uv_refusals_are_understood(output: str, outcome: str) -> None:
    assert uv.judge_uv(output)[0] == outcome


@cases(
    "version fine",
    ("the plain version of an index that holds the build", "2.0.1", True),
    ("the build by its own tag", "2.0.1+cu117", True),
    ("another build of the same version", "2.0.1+cu118", False),
    ("the CPU build", "2.0.1+cpu", False),
)
def test_another_build_under_the_same_version_is_noticed(version: str, *, fine: bool) -> None:
    assert (lock.wrong_build(uv_lock(version), PLAN) is None) == fine


@cases(
    "text",
    ("an empty file", ""),
    ("broken TOML", "not = [toml"),
    ("TOML that is no lock", "a = 1"),
    ("a later format", 'lock-version = "9.0"\ncreated-by = "x"\npackages = []'),
    ("without our table", 'lock-version = "1.0"\ncreated-by = "x"\npackages = []'),
    ("nested without end", "x = " + "[" * 100_000),
    ("a verdict that is none",
     ('lock-version = "1.0"\ncreated-by = "x"\npackages = []\n[tool.gpu-provision.plan]\n'
      'verdict = "splendid"')),
)  # fmt: skip
def test_bad_locks_are_refused(text: str) -> None:
    with pytest.raises(LockFileError) as caught:
        read_lock(text)
    assert caught.value.exit_code == 2
    assert "provision lock" in caught.value.fix


def test_a_wheel_without_hash_is_refused() -> None:
    text = finished().replace(f'sha256 = "{"1" * 64}"', f'md5 = "{"1" * 32}"')
    with pytest.raises(LockFileError):
        read_lock(text)


def test_a_lock_is_written_whole(tmp_path: Path) -> None:
    made = read_lock(finished())
    write_lock(made, tmp_path / "pylock.toml")
    assert read_lock_file(tmp_path / "pylock.toml") == made
    assert [p.name for p in tmp_path.iterdir()] == ["pylock.toml"]


def test_an_unwritable_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be written"):
        write_lock(read_lock(finished()), tmp_path / "no" / "pylock.toml")


def test_plans_survive_json_and_toml() -> None:
    assert plan_from_json(plan_to_json(PLAN)) == PLAN
    assert plan_from_json(without_nulls(plan_to_json(PLAN))) == PLAN


def test_debian_packages_survive_json_and_toml() -> None:
    added = DebianPackage(name="libstdc++6", version="1:2.36~rc1-9+deb12u9", sha256="0" * 64)
    assert PLAN.base is not None
    plan = PLAN._replace(base=PLAN.base._replace(apt=("ffmpeg", "g++"), added=(added,)))
    table = tomllib.loads(tomli_w.dumps(without_nulls(plan_to_json(plan))))
    assert table["base"]["apt"] == ["ffmpeg", "g++"]
    assert plan_from_json(table) == plan
    for key, wrong in (("name", 1), ("version", "1; rm"), ("sha256", "0")):
        changed = {**table["base"], "added": [{**table["base"]["added"][0], key: wrong}]}
        with pytest.raises(LockFileError, match=rf"base\.added\[0\]\.{key}"):
            plan_from_json({**table, "base": changed})


def test_secrets_hold_logins_for_the_hosts_of_the_lock_only(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(
        "machine e.example login me password canary\nmachine other.example login me password no\n"
    )
    secrets = make_secrets(
        ca=None,
        index="https://bob:s%40cret@mirror.example/simple",
        hosts=["e.example", "mirror.example"],
        env={"HOME": str(tmp_path), "PATH": ""},
    )
    assert "machine e.example login me password canary" in secrets.netrc
    assert "machine mirror.example login bob password s@cret" in secrets.netrc
    assert "other.example" not in secrets.netrc
    assert {"canary", "s@cret", "s%40cret"} <= set(secrets.values)
    assert "canary" not in repr(secrets)


def test_uv_hears_of_pip_s_index(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "PIP_INDEX_URL": "https://pip.example/simple"}
    assert uv.uv_environment(env, None)["UV_DEFAULT_INDEX"] == "https://pip.example/simple"
    mine = {**env, "UV_DEFAULT_INDEX": "https://uv.example/simple"}
    assert "UV_DEFAULT_INDEX" not in uv.uv_environment(mine, None)


@cases(
    "outcomes exit_code",
    ("nobody answers", ["unreachable", "unreachable"], 5),
    ("who answers does not have it", ["unreachable", "absent"], 5),
    ("all answer and none has it", ["absent", "absent"], 3),
    ("one has it and cannot add the rest", ["unreachable", "unsolvable"], 3),
)
def test_who_is_to_blame_when_nothing_can_be_locked(
    outcomes: list[uv.Outcome], exit_code: int
) -> None:
    attempts = [
        lock.Attempt(candidate=PLAN.indexes[0], outcome=outcome, reason="so")
        for outcome in outcomes
    ]
    assert lock._no_index(attempts, Request()).exit_code == exit_code


def test_the_address_that_did_not_answer_is_named_without_its_login() -> None:
    output = (
        "error: Request failed\n  cause: Failed to fetch: `http://u:pw@m.example/simple/torch/?s=1`\n"
        "  cause: dns error\n  cause: no such name"
    )
    reason = "unreachable: http://m.example/simple/torch/: no such name"
    assert uv.judge_uv(output) == ("unreachable", reason)
    attempt = lock.Attempt(candidate=PLAN.indexes[0], outcome="unreachable", reason=reason)
    assert lock._no_index([attempt], Request()).message == (
        "No index that has torch==2.0.1 could be reached: http://m.example/simple/torch/."
    )


OWN = "unreachable: https://download.pytorch.org/whl/cu128: no such name"
MIRROR = "unreachable: http://m.example/simple/torch/: no such name"


@cases(
    "index env reasons expected",
    ("no mirror", None, {}, [OWN], OWN),
    ("--index", "http://m.example", {}, [MIRROR, OWN], MIRROR),
    ("uv's own", None, {"UV_INDEX_URL": "m"}, [OWN, MIRROR], MIRROR),
    ("it was not asked", None, {"PIP_INDEX_URL": "m"}, [OWN], "an index did not answer"),
)
def test_with_a_mirror_the_doctor_is_not_asked_of_pytorchs_index(
    index: str | None, env: dict[str, str], reasons: list[str], expected: str
) -> None:
    quiet = {"PIP_CONFIG_FILE": "/dev/null", **env}
    assert uv.told_of_mirrors(reasons, index, quiet) == expected


def test_when_no_index_answers_each_is_named() -> None:
    attempts = [
        lock.Attempt(candidate=PLAN.indexes[0], outcome="unreachable", reason="unreachable: dns")
    ]
    failure = lock._no_index(attempts, request=Request())
    assert isinstance(failure, Failure)
    assert failure.exit_code == 5
    assert "PyPI (torch==2.0.1): unreachable: dns" in failure.detail
