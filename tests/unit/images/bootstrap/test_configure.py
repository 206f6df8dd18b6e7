"""What scripts would have written: each part by itself. Together they are compared with mmdebstrap
in the engines' lane.
"""

from __future__ import annotations

import re
from typing import Any

from images.bootstrap.configure import (
    accounts,
    alternatives,
    certificates,
    loader,
    mime,
    pam,
    simple,
    wanted_paths,
)
from images.bootstrap.configure.scripts import read_script
from images.bootstrap.tree import PackageTree
from images.system.ldcache import read_cache
from tests.kit.cases import cases

EPOCH = 1_700_000_000


def tree(**texts: bytes) -> PackageTree:
    return PackageTree(epoch=EPOCH, arch="amd64", suite="bookworm", texts=dict(texts))


@cases(
    "name expected",
    ("an ordinary one",
     ("3037310b300906035504061302444531143012060355040a0c0b4578616d706c65204f726731"
     "12301006035504030c09526f6f742043412031"), 0x7475DA24),
    ("blanks", "301b3119301706035504030c102020526f6f7420202043412009203120", 0x6D53F7AA),
    ("other letters",
     ("30373135303306035504030c2c4e65744c6f636b204172616e792028436c61737320476f6c64"
     "292046c59174616ec3ba73c3ad7476c3a16e79"), 0x7FF7FE23),
    ("a string of two-byte letters",
     "30233121301f06035504031e1800dc006e00ef0063006f0064006500200052006f006f0074", 0x6B089AD3),
    ("capital letters", "30123110300e06035504031307524f4f54206361", 0x8489A545),
    ("two attributes in one part", "30163114300806035504030c01613008060355040b0c015a", 0xD48415A3),
    ("none at all", "3000", 0xEEA339DA),
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
        "usr/share/debianutils/shells.d/dash": b"/usr/bin/dash\n/usr/bin/sh\n",
    })  # fmt: skip
    accounts.add_shells(made, [{"shells": ["/usr/bin/tmux"]}])
    shells = ["/bin/sh", "/usr/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/dash"]
    assert (made.read("etc/shells") or b"").decode().split() == [
        "#", "comment", *shells, "/usr/bin/tmux",
    ]  # fmt: skip
    assert (made.read("var/lib/shells.state") or b"").decode().split() == shells


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


def test_the_alternative_of_the_highest_priority_is_the_choice() -> None:
    page, more = ["pager.1.gz", "/man/pager.1.gz", "/man/less.1.gz"], "/usr/bin/more"
    rows = [
        {"alternatives": [{"name": "pager", "link": "/usr/bin/pager", "path": path,
                           "priority": priority, "slaves": slaves}]}
        for path, priority, slaves in (("/usr/bin/less", 77, [page]), (more, 50, []))
    ]  # fmt: skip
    for order in (rows, rows[::-1]):
        made = tree()
        made.files |= {"usr/bin/less", "usr/bin/more", "man/less.1.gz"}
        alternatives.add_alternatives(made, order)
        assert made.added["etc/alternatives/pager"].target == "/usr/bin/less"
        assert (made.read("var/lib/dpkg/alternatives/pager") or b"").decode() == (
            "auto\n/usr/bin/pager\npager.1.gz\n/man/pager.1.gz\n\n"
            "/usr/bin/less\n77\n/man/less.1.gz\n/usr/bin/more\n50\n\n\n"
        )


def test_a_library_that_is_an_alternative_is_in_the_loaders_cache() -> None:
    directory = "usr/lib/x86_64-linux-gnu"
    made = tree(**{"etc/ld.so.conf": f"/{directory}\n".encode()})
    made.sonames = {f"{directory}/blas/libblas.so.3.11.0": "libblas.so.3"}
    made.links = {f"{directory}/blas/libblas.so.3": "libblas.so.3.11.0"}
    made.add_link("etc/alternatives/blas", f"/{directory}/blas/libblas.so.3")
    made.add_link(f"{directory}/libblas.so.3", "/etc/alternatives/blas")
    loader.add_cache(made)
    entries = read_cache(made.read("etc/ld.so.cache") or b"")
    assert entries is not None
    assert [entry.path for entry in entries] == [f"/{directory}/libblas.so.3"]


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
    "links": dict, "alternatives": list, "diversions": dict, "shells": list, "groups": dict,
    "modes": dict, "unless": dict, "refused": str,
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
    numbers = [n for row in simple.all_rows() for n in row.get("groups", {}).values()]
    assert not wrong
    assert len(numbers) == len(set(numbers))
    assert len(simple.all_rows()) == len({repr(row) for row in simple.all_rows()})
    assert ("base-files", "any") in seen


SECTION = "# Automatically added by {}/13.11.4\n{}\n# End automatically added section\n"
ALTERNATIVE = {
    "name": "pager", "link": "/usr/bin/pager", "path": "/usr/bin/less", "priority": 77,
    "slaves": [["p.1", "/man/p.1", "/man/less.1"]],
}  # fmt: skip
INSTALL = (
    "update-alternatives --quiet --install /usr/bin/pager pager \\\n"
    "  /usr/bin/less $prio --slave /man/p.1 p.1 /man/less.1"
)


@cases(
    "script expected",
    ("nothing", "", []),
    ("nothing but what each script has", "set -e\n\n# a comment\nexit 0", []),
    ("a service, which a container does not start",
     SECTION.format("dh_installinit", "update-rc.d x defaults >/dev/null"), []),
    ("a part of debhelper that is new", SECTION.format("dh_unknown", "x"), "x"),
    ("an alternative", f"prio=77\n{INSTALL}", [ALTERNATIVE]),
    ("when it is configured",
     (f'prio=77\nif [ "$1" = "configure" ] || [ "$1" = "abort-upgrade" ]; then\n'
     f"{INSTALL}\nfi"), [ALTERNATIVE]),
    ("by cases", (f'prio=77\ncase "$1" in\n  configure|abort-remove)\n{INSTALL}\n  ;;\n'
     '  abort-upgrade)\n  ;;\n  *)\n  echo "$1" >&2\n  exit 1\n  ;;\nesac'), [ALTERNATIVE]),
    ("only for upgrades", ('if [ "$1" = upgrade ] &&\n  dpkg --compare-versions "$2" lt 1\nthen\n'
     "  for i in a b; do rm $i; done\nfi"), []),
    ("only for a version before",
     'if [ "$1" = configure ]; then\n  if [ -n "$2" ]; then\n    rm /x\n  fi\nfi', []),
    ("a program that is not there",
     'if [ -x "`which update-mime 2> /dev/null`" ]; then\n  update-mime\nfi', []),
    ("a program that is there", "if command -v here >/dev/null 2>&1; then\n  here\nelse\n  x\nfi",
     "here"),
    ("what is removed was not there", "update-alternatives --remove old /usr/bin/old", []),
    ("after the end", "exit 0\nldconfig", []),
    ("any other command", "ldconfig -x\nexit 0", "ldconfig -x"),
    ("a function", "f() {\n  true\n}\nf", "f() {"),
    ("an unknown condition", "if true; then\nexit 0", "if true; then"),
    ("a block without an end", 'if [ -z "$2" ]; then\nexit 0', "the end of the script"),
    ("a variable without a value", "x --of $prio", "x --of $prio"),
    ("a value that is computed", "prio=$(date)", "prio=$(date)"),
    ("a path upwards", "update-alternatives --install /../x x /y 1",
     "update-alternatives --install /../x x /y 1"),
)  # fmt: skip
def test_a_script_is_followed_as_far_as_it_is_understood(
    script: str, expected: list[Any] | str
) -> None:
    read = read_script(f"#!/bin/sh\n{script}\n", "configure", {"here"}.__contains__)
    if isinstance(expected, str):
        assert read.unread == expected
    else:
        assert (list(read.alternatives), read.unread) == (expected, "")


def test_a_script_in_another_language_is_not_understood() -> None:
    assert read_script("#!/usr/bin/perl\n1;\n", "configure", bool).unread == "#!/usr/bin/perl"


MIME = b"""\
<mime-info xmlns="http://www.freedesktop.org/standards/shared-mime-info">
<mime-type type="image/x-a"><comment>An A</comment><comment xml:lang="de">Ein A</comment>
<sub-class-of type="image/x-b"/><alias type="image/a"/><generic-icon name="image"/>
<glob pattern="*.A"/><glob pattern="*.a" case-sensitive="true" weight="60"/>
<magic priority="90"><match type="string" value="A\\x00\\n" offset="0:9">
<match type="little16" value="0x102" mask="0xffff" offset="4"/></match></magic>
<root-XML namespaceURI="http://a" localName="a"/>
<treemagic><treematch path="DIR" type="directory" non-empty="true"/></treemagic></mime-type>
</mime-info>
"""


def test_mime_types_are_written_as_their_program_would() -> None:
    made = tree(**{"usr/share/mime/packages/a.xml": MIME})
    mime.add_types(made)
    assert not made.added
    made.files.add("usr/bin/update-mime-database")
    mime.add_types(made)
    found = {path.removeprefix("usr/share/mime/"): one.content for path, one in made.added.items()}
    assert found["globs2"].endswith(b"\n60:image/x-a:*.a:cs\n60:image/x-a:*.a\n50:image/x-a:*.a\n")
    assert found["magic"] == (
        b"MIME-Magic\0\n[90:image/x-a]\n>0=\0\3A\0\n+10\n1>4=\0\2\2\1&\xff\xff\n"
    )
    assert found["treemagic"] == b'MIME-TreeMagic\0\n[50:image/x-a]\n>"DIR"=directory,non-empty\n'
    assert found["aliases"] == b"image/a image/x-a\n"
    assert found["subclasses"] == b"image/x-a image/x-b\n"
    assert found["XMLnamespaces"] == b"http://a a image/x-a\n"
    assert b"<comment>An A</comment>" in found["image/x-a.xml"]
    assert b"Ein A" not in found["image/x-a.xml"]
