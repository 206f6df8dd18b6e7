"""The options of `provision`'s commands, in the groups in which --help shows them."""

from __future__ import annotations

import argparse

from provision.cli.layer_options import layer_options


def request_options(verb: argparse.ArgumentParser) -> None:
    """What the image should contain."""
    group = verb.add_argument_group("request")
    group.add_argument("--cuda", metavar="X.Y", help="CUDA version of the image: 11.7 or cu117")
    group.add_argument(
        "--framework",
        metavar="NAME",
        help="pytorch (default), tensorflow or jax",
    )
    group.add_argument(
        "--framework-version", metavar="SPEC", help="version: 2.0.1 or '>=2' (PEP 440)"
    )
    group.add_argument("--python", metavar="X.Y", help="Python version of the image")
    group.add_argument(
        "--with",
        dest="companions",
        metavar="NAME",
        action="append",
        default=[],
        help="install this package too: torchvision or any requirement (repeatable)",
    )
    group.add_argument(
        "--base",
        metavar="IMAGE",
        help="base image, oci:DIR, or bootstrap (built from Debian packages)",
    )
    group.add_argument(
        "--apt",
        metavar="NAME",
        action="append",
        default=[],
        help="install this Debian package too; without --base, the base is built from such "
        "packages (repeatable)",
    )
    group.add_argument(
        "--flavour",
        metavar="KIND",
        help="runtime, or devel with compilers (default: what the packages need)",
    )
    group.add_argument("--index", metavar="URL", help="package index to try first")


def project_argument(verb: argparse.ArgumentParser) -> None:
    """The project that packages are read from."""
    verb.add_argument(
        "project",
        metavar="DIR",
        nargs="?",
        help="take the packages that this project or file declares (uv.lock, requirements.txt, "
        "...); build adds its code to the image",
    )
    group = verb.add_argument_group("project")
    for option, name, said in (
        ("--extra", "extras", "install this extra of the project, too (repeatable)"),
        ("--group", "groups", "install this dependency group of the project, too (repeatable)"),
        ("--without", "without", "leave out a package that the project requires (repeatable)"),
    ):
        group.add_argument(
            option, dest=name, metavar="NAME", action="append", default=[], help=said
        )


def plan_options(verb: argparse.ArgumentParser) -> None:
    """How a plan is shown."""
    verb.add_argument("--explain", action="store_true", help="show every reason, with its source")
    verb.add_argument(
        "--matrix",
        action="store_true",
        help="list every build and whether it fits",
    )
    verb.add_argument(
        "--format",
        metavar="KIND",
        help="print how to install it without a container: uv or pip (shell commands), or conda "
        "(environment.yml)",
    )


def host_options(verb: argparse.ArgumentParser) -> None:
    """Which machines the plan is for."""
    group = verb.add_argument_group("host (default: this one)")
    group.add_argument(
        "--host",
        metavar="FILE",
        action="append",
        default=[],
        help="output of nvidia-smi or `provision detect --json` elsewhere, a directory of such, "
        "or - (repeatable)",
    )
    group.add_argument("--driver", metavar="V", help="assume this driver version")
    group.add_argument(
        "--gpu",
        dest="gpus",
        metavar="NAME|CC",
        action="append",
        default=[],
        help="assume this GPU, by name or compute capability (repeatable)",
    )


def network_options(verb: argparse.ArgumentParser) -> None:
    """Network access."""
    group = verb.add_argument_group("network")
    group.add_argument("--ca-bundle", metavar="FILE", help="CA certificates to trust (PEM)")
    group.add_argument("--offline", action="store_true", help="do not use the network")


def base_options(verb: argparse.ArgumentParser) -> None:
    """Which Debian packages a bootstrapped base gets."""
    verb.add_argument(
        "--snapshot",
        metavar="DATE",
        help="date of the Debian packages in a bootstrapped base (2026-03-01 or today)",
    )


def lock_output(verb: argparse.ArgumentParser) -> None:
    """Where the lock goes."""
    verb.add_argument(
        "--output",
        metavar="PATH",
        default="pylock.toml",
        help="file to write (default: pylock.toml)",
    )


def build_options(verb: argparse.ArgumentParser) -> None:
    """Where the image goes, and how it is built."""
    group = verb.add_argument_group("build")
    group.add_argument("--tag", metavar="NAME:TAG", help="name and tag of the image")
    group.add_argument(
        "--lock",
        metavar="FILE",
        action="append",
        default=[],
        help="build from this lock (repeatable, for other platforms)",
    )
    group.add_argument(
        "--bundle",
        metavar="FILE",
        help="build from a file of `provision bundle`, without a network",
    )
    group.add_argument(
        "--output",
        metavar="PATH",
        help="write a directory (OCI layout), a .tar, or a squashfs (enroot: .sqfs or .sqsh; "
        "Apptainer: .sif)",
    )
    group.add_argument("--push", metavar="REF", help="push the image to a registry: HOST/PATH:TAG")
    group.add_argument(
        "--builder",
        metavar="KIND",
        default="auto",
        help="docker (uses an engine), oci (needs no engine) or auto (default)",
    )
    group.add_argument("--no-verify", action="store_true", help="do not test the image")
    group.add_argument("--dry-run", action="store_true", help="show what would be built and exit")


def advanced_options(verb: argparse.ArgumentParser) -> None:
    """How layers are written, and where the documents of the build go."""
    verb.usage = "%(prog)s [OPTION ...] [DIR]"
    group = verb.add_argument_group("advanced")
    layer_options(group)
    group.add_argument(
        "--cache-from",
        metavar="IMAGE",
        help="reuse layers of this image (oci builder)",
    )
    group.add_argument("--sbom", metavar="FILE", help="where the SBOM goes (default: by the lock)")
    group.add_argument("--provenance", metavar="FILE", help="where it goes, signed")
    group.add_argument(
        "--no-provenance", action="store_true", help="write neither SBOM nor provenance"
    )
    group.add_argument("--key", metavar="FILE", help="Ed25519 private key to sign with (PEM)")


def suite_options(verb: argparse.ArgumentParser) -> None:
    """How much is checked."""
    group = verb.add_argument_group("suite")
    group.add_argument("--level", metavar="LEVEL", help="quick, standard (default) or full")
    group.add_argument(
        "--require", metavar="NAMES", help="fail if these checks are skipped (gpu,nccl,...)"
    )


def run_options(verb: argparse.ArgumentParser) -> None:
    """Which framework and checks, and for how long."""
    group = verb.add_argument_group("run")
    group.add_argument(
        "--framework",
        metavar="NAME",
        help="of an image with several frameworks, test this one; writes no record",
    )
    group.add_argument("--only", metavar="NAMES", help="run only these checks")
    group.add_argument("--timeout", metavar="SECONDS", help="time limit of the run (default: 1800)")


def file_options(verb: argparse.ArgumentParser) -> None:
    """In which formats the report is written."""
    group = verb.add_argument_group("report files, written even if checks fail")
    group.add_argument("--report", metavar="FILE", help="write the report as JSON")
    group.add_argument(
        "--junit", metavar="FILE", help="write JUnit XML, even if the run breaks off"
    )
    group.add_argument("--html", metavar="FILE", help="write an HTML page with plots")
    group.add_argument("--markdown", metavar="FILE", help="write Markdown, for a CI job summary")
    group.add_argument(
        "--prometheus", metavar="FILE", help="write metrics for node_exporter's textfile collector"
    )
    group.add_argument(
        "--baseline",
        metavar="FILE",
        help="earlier report (JSON) to compare with; any regression is a failure",
    )


def record_options(verb: argparse.ArgumentParser) -> None:
    """Writing and checking records."""
    group = verb.add_argument_group("record")
    group.add_argument("--record", metavar="FILE", help="where to write the signed record")
    group.add_argument("--no-record", action="store_true", help="do not write a record")
    group.add_argument(
        "--attach-record",
        action="store_true",
        help="push the record to the image's registry",
    )
    group.add_argument("--key", metavar="FILE", help="Ed25519 private key to sign with (PEM)")
    group.add_argument(
        "--check-record",
        metavar="FILE",
        nargs="?",
        const="",
        help="check that a record shows it passed on such a machine; put it after IMAGE",
    )
    group.add_argument(
        "--check-provenance",
        metavar="FILE",
        nargs="?",
        const="",
        help="check the signed provenance of the image; put it after IMAGE",
    )
    group.add_argument(
        "--lock",
        metavar="FILE",
        help="with --check-provenance: require that it was built from this lock",
    )
    group.add_argument(
        "--trust",
        metavar="FILE",
        action="append",
        default=[],
        help="trust this public key, too (repeatable)",
    )


def image_argument(verb: argparse.ArgumentParser) -> None:
    """The image to test."""
    verb.add_argument("image", metavar="IMAGE", help="image built by provision build")


def show_arguments(verb: argparse.ArgumentParser) -> None:
    """Which rows of the catalog."""
    verb.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        default="",
        help="torch, tensorflow, tensorflow-gpu, jax, cuda, driver, gpu, cudnn, nccl, image, "
        "conflicts",
    )
    verb.add_argument("name", metavar="NAME", nargs="*", help="version, tag or GPU name")


def refresh_options(verb: argparse.ArgumentParser) -> None:
    """Which sources are queried."""
    verb.add_argument(
        "--from",
        dest="sources",
        metavar="SOURCE",
        action="append",
        default=[],
        help="query only this source: pypi, pytorch or nvidia (repeatable)",
    )
    verb.add_argument("--index", metavar="URL", help="package index (default: the one pip uses)")
    verb.add_argument("--pytorch-index", metavar="URL", help="mirror of the PyTorch index")
    verb.add_argument("--nvidia", metavar="URL", help="mirror of NVIDIA's manifests")
    verb.add_argument("--dry-run", action="store_true", help="show changes without saving them")
    network_options(verb)


def page_options(verb: argparse.ArgumentParser) -> None:
    """Where the page goes."""
    verb.add_argument(
        "--output",
        metavar="DIR",
        required=True,
        help="write index.html to this directory; it is created if missing",
    )
    verb.add_argument(
        "--since",
        metavar="OLD.html",
        help="show what changed since this earlier page (it may be the one in --output)",
    )


def measure_options(verb: argparse.ArgumentParser) -> None:
    """Which wheel is read, and how."""
    verb.add_argument("wheel", metavar="WHEEL|URL", help="path or URL of a .whl file")
    verb.add_argument(
        "--deep", action="store_true", help="read the compiled code instead of the wheel's metadata"
    )
    verb.add_argument(
        "--write", action="store_true", help="save the result in your copy of the catalog"
    )
    verb.add_argument("--ca-bundle", metavar="FILE", help="CA certificates to trust (PEM)")


_DOCTOR = """what to diagnose:
  (nothing)        this machine
  IMAGE            an image, seen from inside a container
  FILE ...         Dockerfile, compose or requirements files, pyproject.toml,
                   environment.yml, pixi.toml: what will fail in them, and with
                   --gpu or --driver whether their torch runs there
  LOG ...          any other file, or an error text itself: the causes
  collect FILE     write the facts of this machine, redacted, to a file that
                   someone else can diagnose with --bundle
  explain [CODE]   describe a cause, or list all of them"""


def doctor_options(verb: argparse.ArgumentParser) -> None:
    """What is diagnosed, and what happens with the answer."""
    verb.epilog = "\n\n".join(filter(None, (_DOCTOR.rstrip("\n"), verb.epilog)))
    verb.add_argument(
        "what",
        metavar="WHAT",
        nargs="*",
        help="an image, files or logs, or a command (see below); default: this machine",
    )
    verb.add_argument(
        "--log",
        metavar="FILE",
        dest="logs",
        action="append",
        default=[],
        help="output of any program to explain; - for stdin (repeatable)",
    )
    verb.add_argument(
        "--bundle", metavar="FILE", help="diagnose the machine that this bundle was collected on"
    )
    verb.add_argument(
        "--no-host",
        action="store_true",
        help="diagnose only the log, not this machine",
    )
    verb.add_argument(
        "--here",
        action="store_true",
        help="the log was written on this machine, whose facts count",
    )
    verb.add_argument(
        "--case", metavar="FILE", help="write what a log shows, redacted, to share it"
    )
    verb.add_argument("--all", action="store_true", help="show all causes in full")
    verb.add_argument("--driver", metavar="V", help="check files for this driver version")
    verb.add_argument(
        "--gpu",
        dest="gpus",
        metavar="NAME|CC",
        action="append",
        default=[],
        help="check files for this GPU: a name or compute capability (repeatable)",
    )
    verb.add_argument(
        "--sarif", metavar="FILE", help="write the findings of checked files as SARIF"
    )
    fix = verb.add_argument_group("fix")
    fix.add_argument(
        "--fix",
        action="store_true",
        help="show the commands that fix the problem, ask, run them, and check the result",
    )
    fix.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    fix.add_argument("--undo", metavar="FILE", help="restore the files that a fix changed")
    network = verb.add_argument_group("network")
    network.add_argument("--ca-bundle", metavar="FILE", help="CA certificates to trust (PEM)")
    network.add_argument("--offline", action="store_true", help="do not use the network")
