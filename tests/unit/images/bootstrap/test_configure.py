"""What scripts would have written: each part by itself. Together they are compared with mmdebstrap
in the engines' lane.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from images.bootstrap.configure import (
    accounts,
    alternatives,
    certificates,
    loader,
    pam,
    simple,
    wanted_paths,
)
from images.bootstrap.tree import PackageTree
from images.system.ldcache import read_cache

EPOCH = 1_700_000_000


def tree(**texts: bytes) -> PackageTree:
    return PackageTree(epoch=EPOCH, arch="amd64", suite="bookworm", texts=dict(texts))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("3037310b300906035504061302444531143012060355040a0c0b4578616d706c65204f726731"
                     "12301006035504030c09526f6f742043412031", 0x7475DA24, id="an ordinary one"),
        pytest.param("301b3119301706035504030c102020526f6f7420202043412009203120", 0x6D53F7AA,
                     id="blanks"),
        pytest.param("30373135303306035504030c2c4e65744c6f636b204172616e792028436c61737320476f6c64"
                     "292046c59174616ec3ba73c3ad7476c3a16e79", 0x7FF7FE23, id="other letters"),
        pytest.param("30233121301f06035504031e1800dc006e00ef0063006f0064006500200052006f006f0074",
                     0x6B089AD3, id="a string of two-byte letters"),
        pytest.param("30123110300e06035504031307524f4f54206361", 0x8489A545, id="capital letters"),
        pytest.param("30163114300806035504030c01613008060355040b0c015a", 0xD48415A3,
                     id="two attributes in one part"),
        pytest.param("3000", 0xEEA339DA, id="none at all"),
    ],
)  # fmt: skip
def test_a_subjects_hash_is_openssls(name: str, expected: int) -> None:
    """Recorded from `openssl x509 -subject_hash` of OpenSSL 3.0.19."""
    assert certificates.subject_hash(bytes.fromhex(name)) == expected


UNIX = b"""\
Name: Unix authentication
Default: yes
Priority: 256
Auth-Type: Primary
Auth:
\t[success=end default=ignore]\tpam_unix.so try_first_pass
Auth-Initial:
\t[success=end default=ignore]\tpam_unix.so
Session-Type: Additional
Session:
\trequired\tpam_unix.so
"""
FINGER = b"""\
Name: Fingers
Default: yes
Priority: 300
Auth-Type: Primary
Auth:
\t[success=end default=ignore]\tpam_finger.so
"""
HOME = (
    b"Name: Home\nDefault: no\nPriority: 0\nSession-Type: Additional\nSession:\n\toptional\tx.so\n"
)
TEMPLATE = "# {0}\n${0}_primary\n{0}\trequisite\tpam_deny.so\n${0}_additional\n"


def test_pams_stacks_are_made_of_the_default_profiles() -> None:
    made = tree(**{
        "usr/share/pam/common-auth": TEMPLATE.format("auth").encode(),
        "usr/share/pam/common-session": TEMPLATE.format("session").encode(),
        "usr/share/pam-configs/unix": UNIX,
        "usr/share/pam-configs/finger": FINGER,
        "usr/share/pam-configs/mkhomedir": HOME,
    })  # fmt: skip
    pam.add_stacks(made)
    assert (made.read("etc/pam.d/common-auth") or b"").decode() == (
        "# auth\n"
        "auth\t[success=2 default=ignore]\tpam_finger.so\n"
        "auth\t[success=1 default=ignore]\tpam_unix.so try_first_pass\n"
        "auth\trequisite\tpam_deny.so\n"
    )
    assert (made.read("etc/pam.d/common-session") or b"").decode() == (
        "# session\n"
        "session\t[default=1]\t\t\tpam_permit.so\n"
        "session\trequisite\tpam_deny.so\n"
        "session\trequired\tpam_unix.so\n"
    )
    assert made.read("var/lib/pam/seen") == b"finger\nunix\nmkhomedir\n"


def test_shells_are_listed_in_both_directories() -> None:
    made = tree(**{
        "usr/share/debianutils/shells": b"# comment\n/bin/sh\n",
        "usr/share/debianutils/shells.d/bash": b"/bin/bash\n",
        "usr/share/debianutils/shells.d/dash": b"/usr/bin/dash\n",
    })  # fmt: skip
    accounts.add_shells(made, [])
    assert (made.read("etc/shells") or b"").decode().split("\n") == [
        "# comment", "/bin/sh", "/usr/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/dash", "",
    ]  # fmt: skip


def test_the_loaders_cache_has_each_library_once_by_its_own_name() -> None:
    made = tree(**{
        "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/triplet.conf": b"/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n",
    })  # fmt: skip
    directory = "usr/lib/x86_64-linux-gnu"
    made.sonames = {
        f"{directory}/libz.so.1.2.13": "libz.so.1",
        f"{directory}/libplain.so": "",
        f"{directory}/deeper/libhidden.so.1": "libhidden.so.1",
        "usr/lib/libup.so.2": "libup.so.2",
    }
    made.links = {
        f"{directory}/libz.so.1": "libz.so.1.2.13",
        f"{directory}/libz.so": "libz.so.1",
        f"{directory}/libother.so": "../nowhere.so",
    }
    loader.add_cache(made)
    entries = read_cache(made.read("etc/ld.so.cache") or b"")
    assert entries is not None
    assert sorted(entry.path for entry in entries) == [
        "/lib/libup.so.2",
        "/lib/x86_64-linux-gnu/libplain.so",
        "/lib/x86_64-linux-gnu/libz.so",
        "/lib/x86_64-linux-gnu/libz.so.1",
    ]


def test_an_alternative_without_its_program_leaves_nothing() -> None:
    slaves = [["nawk", "/usr/bin/nawk", "/usr/bin/mawk"], ["m", "/m", "/absent"]]
    group = {"name": "awk", "link": "/usr/bin/awk", "path": "/usr/bin/mawk", "priority": 5}
    group["slaves"] = slaves
    made = tree()
    alternatives.add_alternatives(made, [{"alternatives": [group]}])
    assert not made.added
    made.files.add("usr/bin/mawk")
    alternatives.add_alternatives(made, [{"alternatives": [group]}])
    assert (made.read("var/lib/dpkg/alternatives/awk") or b"").decode() == (
        "auto\n/usr/bin/awk\nnawk\n/usr/bin/nawk\n\n/usr/bin/mawk\n5\n/usr/bin/mawk\n\n"
    )
    assert made.added["usr/bin/nawk"].target == "/etc/alternatives/nawk"


def test_what_is_there_is_left_alone() -> None:
    made = tree(source=b"new")
    made.files.add("etc/there")
    simple.apply(
        made, [{"copies": {"etc/there": "source", "etc/new": "source", "etc/x": "absent"}}]
    )
    assert set(made.added) == {"etc/new"}


KEYS: dict[str, type] = {
    "package": str, "suites": list, "directories": dict, "copies": dict, "files": dict,
    "links": dict, "alternatives": list, "diversions": dict, "shells": list,
}  # fmt: skip


def test_every_row_of_the_data_is_well_formed() -> None:
    wanted = re.compile(wanted_paths())
    wrong: list[Any] = []
    seen: set[tuple[str, str]] = set()
    for row in simple.all_rows():
        wrong += [row for key, value in row.items() if not isinstance(value, KEYS[key])]
        paths = [*row.get("directories", {}), *row.get("copies", {}), *row.get("files", {})]
        wrong += [path for path in (*paths, *row.get("links", {})) if path.startswith("/")]
        wrong += [s for s in row.get("copies", {}).values() if not wanted.fullmatch(s)]
        for suite in row.get("suites", ["any"]):
            if suite != "any" or "suites" not in row:
                seen.add((row["package"], suite))
    assert not wrong
    assert len(simple.all_rows()) == len({repr(row) for row in simple.all_rows()})
    assert ("base-files", "any") in seen
