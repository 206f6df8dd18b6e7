"""Canaries: a secret of each kind is given to real commands, and looked for in all that they leave.

uv, the wheels, the base, the index and the registry are real; the servers are on this machine, and
hand nothing over without the secrets, so that each one is used. Secrets are looked for as they are
written, and inside Base64.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import pickle
import random
import re
import string
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from provision.doctor.redact import Redactor
from tests import ROOT
from tests.kit.fake_push_registry import PushRegistry
from tests.kit.local_index import NUMPY, LocalIndex, pure, torch
from tests.kit.once import made_once
from tests.kit.projects import base_layout, project

HOST = '{"driver": "535.104.05", "arch": "x86_64", "gpus": [{"name": "NVIDIA A100-SXM4-80GB"}]}'
KINDS = (
    "signature-of-aws", "signature-of-google", "signature-of-azure", "token-in-a-query",
    "login-of-a-wheel", "password-with-a-slash", "netrc", "index-option", "index-variable",
    "index-in-requirements", "git-token", "proxy", "environment", "registry", "secret-by-name",
    "secret-in-a-file", "secret-in-a-file-let-in-by-wildcard",
)  # fmt: skip
PLACES = (
    "lock", "label and configuration", "layers", "manifests", "SBOM", "provenance", "state",
    "offline bundle", "terminal", "registry", "doctor",
)  # fmt: skip


def canary(kind: str) -> str:
    """The part of a secret that is looked for: hexadecimal, as signatures are."""
    return hashlib.sha256(kind.encode()).hexdigest()[:24]


def forms(kind: str) -> tuple[bytes, ...]:
    """The canary as it is, and the middle of its Base64 at each of the three offsets."""
    word = canary(kind).encode()
    shifted = [base64.b64encode(b"x" * pad + word + b"x" * 3)[4:-8] for pad in range(3)]
    return word, *shifted


def long(kind: str, characters: int) -> str:
    return (canary(kind) * 40)[:characters]


class Guarded(LocalIndex):
    """An index whose pages need a login, and wheels that need a signature or a login."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[str] = set()
        self.open = True

    def reply(self, path: str, login: str | None) -> tuple[int, str, bytes, dict[str, str]]:
        place, _, query = path.partition("?")
        first, _, rest = place.strip("/").partition("/")
        if first not in KINDS:
            return super().reply(path, login)
        shown = f"{query} {base64.b64decode((login or '').removeprefix('Basic ')).decode()}"
        if not self.open or canary(first) not in shown:
            challenge = {} if "in" in first else {"WWW-Authenticate": 'Basic realm="x"'}
            return 401, "text/plain", b"who?", challenge
        if first == "index-option" and rest == "numpy":
            return 404, "text/plain", b"only the other index has it", {}
        self.used.add(first)
        return super().reply(f"/simple/{rest}/", None)


@dataclass
class Remains:
    """What the commands have left: the contents of each place."""

    places: dict[str, list[bytes]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    codes: dict[str, int] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def add(self, place: str, *contents: bytes) -> None:
        self.places.setdefault(place, []).extend(contents)


@dataclass
class Lab:
    """A user's machine: a home, a project, servers; each command has a store of its own."""

    root: Path
    index: Guarded
    registry: PushRegistry
    remains: Remains = field(default_factory=Remains)

    def whole(self, package: str, kind: str) -> str:
        """The address of a wheel with its secret, as a user copies it."""
        word, host = canary(kind), f"127.0.0.1:{self.index.port}"
        name = f"{package}-1.0-py3-none-any.whl"
        query = {
            "signature-of-aws": "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20260101T000000Z"
            f"&X-Amz-Signature={long(kind, 64)}",
            "signature-of-google": f"?X-Goog-Expires=60&X-Goog-Signature={long(kind, 512)}",
            "signature-of-azure": f"?sv=2024-11-04&sp=r&sig={long(kind, 43)}%3D",
            "token-in-a-query": f"?token={word}",
        }.get(kind, "")
        login = {"login-of-a-wheel": f"ci:{word}@", "password-with-a-slash": f"ci:ab/{word}@"}.get(
            kind, ""
        )
        host = host.replace("127.0.0.1", "localhost") if kind == "netrc" else host
        return f"http://{login}{host}/{kind}/files/{name}{query}"

    @property
    def direct(self) -> dict[str, str]:
        """The wheels that are named by their addresses: package -> address."""
        return {f"own{i}": self.whole(f"own{i}", kind) for i, kind in enumerate(KINDS[:7])}

    def run(
        self, title: str, *words: str, store: str = "store", env: Mapping[str, str] = {}
    ) -> str:
        """Run a command, keep what it prints, and return it."""
        done = subprocess.run(
            [sys.executable, "-m", "provision", *words],
            capture_output=True,
            timeout=120,
            check=False,
            cwd=self.root,
            env={**self.environment, "XDG_CACHE_HOME": str(self.root / store), **env},
        )
        self.remains.add("terminal", done.stdout, done.stderr)
        self.remains.codes[title] = done.returncode
        said = f"{done.stdout.decode()} {done.stderr.decode()}"
        self.remains.said[title] = " ".join(said.split())
        return said

    @property
    def environment(self) -> dict[str, str]:
        own = f"http://d:{canary('index-variable')}@127.0.0.1:{self.index.port}/index-variable/"
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.root / "home"),
            "XDG_STATE_HOME": str(self.root / "state"),
            "XDG_DATA_HOME": str(self.root / "data"),
            "PIP_CONFIG_FILE": os.devnull,
            "UV_CACHE_DIR": str(self.root / "uv"),
            "UV_DEFAULT_INDEX": own,
            "NO_PROXY": "127.0.0.1,localhost",
            "HTTPS_PROXY": f"http://p:{canary('proxy')}@proxy.example:3128",
            "HF_TOKEN": f"hf_{canary('environment')}",
            "DOCKER_HOST": "unix:///nonexistent",
        }

    @property
    def planned(self) -> tuple[str, ...]:
        index = f"http://i:{canary('index-option')}@127.0.0.1:{self.index.port}/index-option/"
        base = ("--base", f"{self.registry.address}/team/base:1", "--index", index)
        return ("--host", str(self.root / "host.json"), *base, "--without", "other")


def letters(kind: str) -> str:
    """A token of Hugging Face: letters alone."""
    return "hf_" + "".join(random.Random(kind).choices(string.ascii_letters, k=34))


def publish_base(lab: Lab) -> None:
    """Put a base into the registry."""
    base_layout(lab.root / "base")
    (entry,) = json.loads((lab.root / "base" / "index.json").read_bytes())["manifests"]
    for blob in (lab.root / "base" / "blobs" / "sha256").iterdir():
        lab.registry.blobs["team/base", f"sha256:{blob.name}"] = blob.read_bytes()
    manifest = lab.registry.blobs["team/base", entry["digest"]]
    for name in ("1", entry["digest"]):
        lab.registry.manifests["team/base", name] = (manifest, entry["mediaType"])


def make_project(lab: Lab) -> None:
    """Its requirements name each kind of address; secrets lie beside its code."""
    host = f"127.0.0.1:{lab.index.port}"
    lines = ["torch==2.0.1", "numpy<2", *(f"{name} @ {url}" for name, url in lab.direct.items())]
    lines += [f"--extra-index-url http://i:{canary('index-in-requirements')}@{host}/other"]
    lines += [f"other @ git+http://{canary('git-token')}@127.0.0.1:1/o/r.git"]
    word = canary("secret-by-name")
    project(
        lab.root / "app",
        {
            "requirements.txt": "\n".join(lines) + "\n",
            "main.py": "print(1)\n",
            ".python-version": "3.11\n",
            "src/.env": f"KEY={word}\n",
            ".docker/config.json": json.dumps({"auths": {"h": {"auth": word}}}),
            "prod.env": f"KEY={word}\n",
            ".dockerignore": "*\n!src/**\n!main.py\n!.docker\n!*.env\n",
        },
    )


def use(lab: Lab) -> None:
    """What users do: lock, build, build again from the lock, pack, push; and what fails."""
    out, lock = lab.root / "out", ("--lock", "pylock.toml")
    oci = ("--no-verify", "--builder", "oci")
    lab.run("incomplete", "lock", "app", *lab.planned[:-2], "--output", "pylock.toml", store="a")
    lab.run("lock", "lock", "app", *lab.planned, "--output", "pylock.toml", "-v", store="a")
    documents = ("--sbom", str(lab.root / "bom.json"), "--provenance", str(lab.root / "from.json"))
    lab.run("build", "build", "app", *lab.planned, *oci, "--output", str(out), *documents)
    whole = [word for name, url in lab.direct.items() for word in ("--with", f"{name} @ {url}")]
    again = (*lock, *oci, "--output")
    lab.run("of the lock", "build", "app", *again, str(lab.root / "out2"), "--json", store="b")
    lab.run("with addresses", "build", *again, str(lab.root / "out3"), *whole, store="c")
    lab.run("bundle", "bundle", *lock, *whole, "--output", "all.bundle", store="c")
    to = f"{lab.registry.address}/team/app:1"
    lab.run("push", "build", "app", *lock, *oci, "--push", to)
    lab.run("dry run", "build", "app", *lab.planned, "--dry-run", "--json")
    lab.run("lock alone", "build", *again, str(lab.root / "out4"), store="d")
    lab.run("foreign address", "build", *again, str(lab.root / "out5"), *whole[:2], "--with",
            f"numpy @ {lab.whole('numpy', 'signature-of-aws')}")  # fmt: skip
    for kind, text in (
        ("secret-in-a-file", ".dockerignore"),
        ("secret-in-a-file-let-in-by-wildcard", "*\n!src\n!main.py\n!src/*.py\n"),
    ):
        path = lab.root / "app" / "src" / "config.py"
        path.write_text(f"# {canary(kind)}\nTOKEN = '{letters(kind)}'  # {canary(kind)}\n")
        if "\n" in text:
            (lab.root / "app" / ".dockerignore").write_text(text)
        lab.run(kind, "build", "app", *again, str(lab.root / "out6"))
        path.unlink()
    lab.index.open = False
    lab.run("refused", "lock", "app", *lab.planned, "--output", "pylock.r.toml", store="e",
            env={"UV_CACHE_DIR": str(lab.root / "uv2")})  # fmt: skip
    lab.run("refused wheels", "build", *again, str(lab.root / "out7"), *whole, store="e")
    lab.run("doctor", "doctor", "collect", "machine.bundle")


def collect(lab: Lab) -> None:
    """Sort what is there by place; archives and layers are unpacked."""
    found, root = lab.remains, lab.root
    found.add("lock", *(path.read_bytes() for path in root.glob("pylock*.toml")))
    for layout in root.glob("out*"):
        for blob in (layout / "blobs" / "sha256").glob("*"):
            place, contents = of_layout(blob.read_bytes())
            found.add(place, *contents)
    found.add("SBOM", *(path.read_bytes() for path in root.glob("*bom*.json")))
    found.add("provenance", *(path.read_bytes() for path in root.glob("*from.json*")))
    for folder in ("state", "data", "store", *"abcde"):
        for path in (root / folder).rglob("*"):
            if path.is_file():
                found.add("state", *unpacked(path.read_bytes()), str(path).encode())
    found.add("offline bundle", *unpacked((root / "all.bundle").read_bytes()))
    found.add("doctor", *unpacked((root / "machine.bundle").read_bytes()))
    for data in lab.registry.blobs.values():
        found.add("registry", *unpacked(data))
    found.add("registry", *(data for data, _ in lab.registry.manifests.values()))
    log = [f"pip: cannot fetch {url} of {name}" for name, url in lab.direct.items()]
    log += [f"{name}={value}" for name, value in lab.environment.items()]
    log += [" ".join(lab.planned), (root / "app" / "requirements.txt").read_text()]
    found.add("doctor", Redactor().text("\n".join(log)).encode())
    found.used = lab.index.used


def of_layout(data: bytes) -> tuple[str, list[bytes]]:
    """The place that a blob of an image belongs to, and its contents."""
    try:
        document = json.loads(data)
    except ValueError:
        return "layers", unpacked(data)
    return "label and configuration" if "rootfs" in document else "manifests", [data]


def unpacked(data: bytes) -> list[bytes]:
    """A file, and what is packed in it."""
    found = [data]
    if data[:2] == b"\x1f\x8b":
        found.append(gzip.decompress(data))
    if found[-1][257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(found[-1])) as archive:
            for member in archive:
                if member.isfile() and (file := archive.extractfile(member)) is not None:
                    found += unpacked(file.read())
    return found


@pytest.fixture(scope="module")
def remains(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    """Made once for all processes of a run: it takes half a minute."""

    def make(folder: Path) -> None:
        (folder / "remains").write_bytes(pickle.dumps(left_by(tmp_path_factory.mktemp("secrets"))))

    kept = made_once(tmp_path_factory, "secrets-left", make) / "remains"
    found = pickle.loads(kept.read_bytes())
    assert isinstance(found, Remains)
    return found


def left_by(root: Path) -> Remains:
    """What all commands leave, on a machine in a directory."""
    with ExitStack() as stack:
        index = stack.enter_context(Guarded().serving())
        assert isinstance(index, Guarded)
        index.more = [pure("pip", "26.0"), torch("+cu117"), torch("+cu118"), NUMPY]
        index.more += [pure(f"own{i}", "1.0") for i in range(7)]
        registry = PushRegistry()
        stack.callback(registry.close)
        registry.realm, registry.users = "basic", {"me": canary("registry")}
        lab = Lab(root, index, registry)
        netrc = f"machine localhost login n password {canary('netrc')}\n"
        auth = base64.b64encode(f"me:{canary('registry')}".encode()).decode()
        docker = {"auths": {registry.address: {"auth": auth}}}
        project(root, {"host.json": HOST})
        project(root / "home", {".netrc": netrc, ".docker/config.json": json.dumps(docker)})
        publish_base(lab)
        make_project(lab)
        use(lab)
        collect(lab)
        return lab.remains


def test_the_commands_end_as_they_should(remains: Remains) -> None:
    refused = {
        "incomplete": 5, "lock alone": 5, "foreign address": 2, "secret-in-a-file": 2, "refused": 5,
        "secret-in-a-file-let-in-by-wildcard": 2, "refused wheels": 5,
    }  # fmt: skip
    wanted = {title: refused.get(title, 0) for title in remains.codes}
    assert remains.codes == wanted, remains.said


def test_the_secrets_were_needed(remains: Remains) -> None:
    """Else their absence would say nothing."""
    assert remains.used == set(KINDS[:9])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_is_left(kind: str, place: str, remains: Remains) -> None:
    assert remains.places[place]
    whole = (*forms(kind), quote(canary(kind)).encode(), letters(kind).encode())
    left = [data for data in remains.places[place] if any(form in data for form in whole)]
    assert [data[:4000] for data in left] == []


def test_what_is_missing_is_named_with_what_to_type(remains: Remains) -> None:
    said = remains.said["lock alone"]
    assert "address without login and query, which is all that a lock has" in said
    assert re.search(r"Give the whole address again: --with 'own\d @ http\S+whl\?\.\.\.'", said)
    assert "provision build DIR --lock FILE" in said
    assert "src/config.py, line 2, has a token of Hugging Face" in remains.said["secret-in-a-file"]
    assert ".docker/config.json, prod.env, src/.env" in remains.said["build"]
