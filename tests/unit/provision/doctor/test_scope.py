"""Which lines belong together, what a run survives, and how a log ends: whole logs, not one line.

The texts are written after logs that were answered wrongly: another product's failure beside an
ordinary line about the GPU, an echo of a failure, a warning that the program goes on after.
"""

from __future__ import annotations

import io
import json

import pytest

from provision.doctor import Diagnosis, Fact, diagnose, load
from provision.doctor.account import verdict_of
from provision.doctor.causes import find_causes
from provision.doctor.context import TextContext
from provision.doctor.model import Hit, KnownFailure, Symptom
from provision.doctor.outline import outline
from provision.doctor.scope import MESSAGE, PARAGRAPH, closest, is_together, within
from tests import ROOT
from tests.kit.cases import cases

DATA = ROOT / "tests" / "data" / "doctor"
ORDINARY = (DATA / "unrelated.txt").read_text(encoding="utf-8").splitlines()
CONJUNCTIONS = [
    (failure, symptom)
    for failure in load().failures
    for symptom in failure.symptoms
    if len(symptom.parts) > 1
]


def asked(text: str) -> Diagnosis:
    return diagnose([("log", text)])


def codes(text: str) -> list[str]:
    return [cause.code for cause in asked(text).causes]


def sure(text: str) -> list[str]:
    return [cause.code for cause in asked(text).causes if cause.confidence == "high"]


# --- what belongs together ----------------------------------------------------------------------


def hit(number: int, source: str = "log") -> Hit:
    return Hit(line="", source=source, number=number)


def test_no_conjunction_is_sure_whose_parts_are_a_thousand_lines_apart() -> None:
    """All of the knowledge's; facts of a machine that speak for the cause do not change it."""
    assert len(CONJUNCTIONS) > 200
    wrong = []
    for failure, symptom in CONJUNCTIONS:
        hits = {part: hit(1 + 1000 * i) for i, part in enumerate(symptom.parts)}
        causes = find_causes(load(), hits, {}).causes
        alone = _shown_by_one_line(failure, symptom)
        found = [one for one in causes if one.code == failure.code and one.confidence == "high"]
        wrong += [(failure.code, symptom.parts)] if found and not alone else []
    assert wrong == []


def _shown_by_one_line(failure: KnownFailure, conjunction: Symptom) -> bool:
    """Whether a part is a proof of its own in the same failure."""
    return any(one.parts[0] in conjunction.parts for one in failure.symptoms if len(one.parts) == 1)


@pytest.mark.parametrize("lines", [1000, 20_000])
def test_two_halves_of_a_log_are_no_proof(lines: int) -> None:
    near = "dpkg: Bad return status for module build on kernel: 6.8.0 (x86_64)\nnvidia/535.54, 6.8"
    assert sure(near) == ["dkms-build-failed"]
    first, second = near.split("\n")
    filler = [ORDINARY[i % len(ORDINARY)] for i in range(lines)]
    assert sure("\n".join([first, *filler, second])) == []


def test_parts_that_meet_further_down_are_found() -> None:
    """The first line of each part is far from the other's; later they stand together."""
    first = "nvidia: loading out-of-tree module taints kernel."
    near = "Bad return status for module build on kernel: 6.8.0 (x86_64)\nnvidia/535.54.03, 6.8.0"
    text = "\n".join([first, *ORDINARY, near])
    [cause] = [one for one in asked(text).causes if one.code == "dkms-build-failed"]
    assert cause.confidence == "high"
    assert {one.where for one in cause.evidence} == {"log:1002", "log:1003"}


def test_what_is_likely_and_far_above_does_not_explain_a_proof_at_the_end() -> None:
    above = "E: Unable to locate package linux-headers-6.8.0-90-generic"
    end = (
        "/var/lib/dkms/nvidia-tesla-470/470.256.02/build/nvidia/os-mlock.c:23:12: error: implicit"
        " declaration of function 'follow_pfn'\n"
        "Bad return status for module build on kernel: 6.12.9 (x86_64)"
    )
    [first, *_] = asked("\n".join([above, *map(str, range(200)), end])).causes
    assert (first.code, first.confidence) == ("dkms-build-failed", "high")


def test_what_a_log_says_of_its_machine_decides() -> None:
    """Secure Boot, and not a missing module, where the kernel's log tells of it."""
    log = (
        "secureboot: Secure boot enabled\n"
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7\n"
    )
    smi = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert asked(log + "\n".join(map(str, range(200))) + smi).causes[0].code == (
        "secure-boot-unsigned-module"
    )


def test_a_pipe_is_read_again() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    near = b"Bad return status for module build on kernel: 6.8.0 (x86_64)\nnvidia/535.54.03, 6.8.0"
    text = b"\n".join([b"nvidia: module", *(line.encode() for line in ORDINARY), near])
    [first, *_] = diagnose([("-", Pipe(text))]).causes
    assert (first.code, first.confidence) == ("dkms-build-failed", "high")


@cases(
    "numbers together",
    ("one line", (1, 1), True),
    ("one paragraph", (1, 1 + PARAGRAPH), True),
    ("further, and one part is in any log", (1, 2 + PARAGRAPH), False),
)
def test_a_word_of_every_log_must_be_of_the_same_paragraph(
    numbers: tuple[int, int], *, together: bool
) -> None:
    symptom = Symptom(parts=("VerySpecialWords failed", "(?i)nvidia"))
    assert is_together(symptom, [hit(number) for number in numbers]) is together


def test_telling_parts_may_be_of_one_long_message() -> None:
    symptom = Symptom(parts=("VerySpecialWords failed", "OtherUnusualWords too"))
    assert within(symptom) == MESSAGE
    assert not is_together(symptom, [hit(1), hit(1, "another log")])


def test_the_closest_lines_are_taken() -> None:
    found = {"a": [hit(1), hit(500), hit(900)], "b": [hit(200), hit(510)], "c": [hit(505)]}
    chosen = closest(("a", "b", "c"), found)
    assert chosen is not None
    assert [one.number for one in chosen] == [500, 510, 505]
    assert closest(("a", "x"), found) is None


# --- another product beside the GPU -------------------------------------------------------------

NVIDIA_LOADED = "[    3.310] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.107.02"
NVIDIA_REPOSITORY = (
    "Hit:1 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64  InRelease"
)
OTHERS = {
    "VirtualBox's module does not compile": """\
Setting up nvidia-settings (510.47.03-0ubuntu1) ...
Setting up virtualbox-dkms (6.1.50-dfsg-1~ubuntu1.22.04.1) ...
Loading new virtualbox-6.1.50 DKMS files...
Building initial module for 6.8.0-40-generic
Error! Bad return status for module build on kernel: 6.8.0-40-generic (x86_64)
Consult /var/lib/dkms/virtualbox/6.1.50/build/make.log for more information.
dpkg: error processing package virtualbox-dkms (--configure):
E: Sub-process /usr/bin/dpkg returned an error code (1)""",
    "Chrome's key is missing": """\
cuda-fedora39-x86_64                                        1.2 MB/s | 1.9 MB     00:01
Installing:
 google-chrome-stable   x86_64   128.0.6613.119-1   google-chrome   108 M
warning: google-chrome-stable-128.0.6613.119-1.x86_64.rpm: Header V4 RSA/SHA512 Signature: NOKEY
The GPG keys listed for the "google-chrome" repository are already installed but they are not \
correct for this package.
Error: GPG check FAILED""",
    "a mirror of Ubuntu is between two states": f"""\
{NVIDIA_REPOSITORY}
Err:2 http://de.archive.ubuntu.com/ubuntu jammy-updates/main amd64 Packages
  File has unexpected size (1850412 != 1850376). Mirror sync in progress? [IP: 192.0.2.22 80]
E: Failed to fetch http://de.archive.ubuntu.com/ubuntu/dists/Packages.gz  Hash Sum mismatch""",
    "a wireless card stays asleep": f"""\
{NVIDIA_LOADED}
[ 4021.55] iwlwifi 0000:03:00.0: Unable to change power state from D3cold to D0, device inaccessible
[ 4021.56] iwlwifi 0000:03:00.0: probe with driver iwlwifi failed with error -5""",
    "VirtualBox's module is not signed": f"""\
{NVIDIA_LOADED}
vboxdrv.sh: failed: modprobe vboxdrv failed. Please use 'dmesg' to find out why.
modprobe: ERROR: could not insert 'vboxdrv': Key was rejected by service
[   91.120] Loading of unsigned module is rejected""",
    "a backup disk is full beside ollama": """\
Sep 03 02:00:01 box ollama[1021]: llama_model_load: loaded meta data with 24 key-value pairs
Sep 03 02:11:09 box rsync[4411]: rsync: [receiver] write failed on "/mnt/backup/IMG_1.CR2": \
No space left on device (28)
Sep 03 02:11:09 box rsync[4411]: rsync error: error in file IO (code 11) at receiver.c(380)""",
    "mongodb wants a library of another release": f"""\
{NVIDIA_REPOSITORY}
The following packages have unmet dependencies:
 mongodb-org-mongos : Depends: libssl1.1 (>= 1.1.1) but it is not installable
 mongodb-org-server : Depends: libssl1.1 (>= 1.1.1) but it is not installable
E: Unable to correct problems, you have held broken packages.""",
    "a browser may not read the driver's parameters": (
        'audit: type=1400 audit(1725350000.1:101): apparmor="DENIED" operation="open" '
        'profile="snap.firefox.firefox" name="/proc/driver/nvidia/params" comm="firefox"'
    ),
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS.keys())
def test_the_failure_of_another_product_accuses_no_gpu(text: str) -> None:
    assert sure(text) == []
    assert not set(codes(text)) & {
        "dkms-build-failed",
        "nvidia-repo-mirror-sync",
        "gpu-stuck-in-d3cold",
        "secure-boot-unsigned-module",
        "model-cache-no-space",
        "apt-cuda-other-release",
        "apparmor-denies-gpu",
    }


# --- the stated reason stands above its echo ----------------------------------------------------

REASONS = {
    "JAX goes on with the CPU": (
        """\
Jax plugin configuration error: Exception when calling jax_plugins.xla_cuda12.initialize()
RuntimeError: Unable to use CUDA because of the following issues with CUDA components:
cuDNN: Outdated cuDNN installation found.
An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. \
Falling back to cpu.""",
        "jax-cuda-libraries-older",
        "jax-cpu-only-jaxlib",
    ),
    "no toolkit is where CUDA_HOME is by default": (
        """\
/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found
ninja: build stopped: subcommand failed.
CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.""",
        "nvcc-not-found",
        "cuda-home-wrong",
    ),
}


@pytest.mark.parametrize(("text", "reason", "echo"), REASONS.values(), ids=REASONS.keys())
def test_the_reason_stands_first(text: str, reason: str, echo: str) -> None:
    causes = asked(text).causes
    assert causes[0].code == reason
    assert all(one.confidence != "high" for one in causes if one.code == echo)


def test_tensorflow_names_the_library_that_the_loader_lacks() -> None:
    text = (
        "Could not load dynamic library 'libcusolver.so.11'; dlerror: libnvJitLink.so.12: cannot "
        "open shared object file: No such file or directory"
    )
    first = asked(text).causes[0]
    assert "libnvJitLink.so.12" in first.title
    assert "libcusolver" not in first.title


def test_a_name_that_uv_cannot_look_up_is_no_matter_of_docker_or_wsl() -> None:
    text = (
        "error: Failed to fetch: `https://index.example/simple/torch/`\n"
        "  Caused by: dns error: failed to lookup address information: Temporary failure in name "
        "resolution"
    )
    first = diagnose([("log", text)], {"docker.installed": Fact(value=True, where="x")}).causes[0]
    assert first.code == "dns-failure"
    assert not [fix.run for fix in first.fixes if "docker" in fix.run]


TORCH_FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.15 GiB of which 1.1 GiB is free. Process 3721648 has {} GiB memory in use. Of "
    "the allocated memory {} GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
    "unallocated."
)


@cases(
    "process own code",
    ("a container's own process", "78.00", "52.10", "gpu-out-of-memory"),
    ("the same on a smaller card", "23.10", "12.40", "gpu-out-of-memory"),
    ("really another one", "77.90", "0.40", "oom-other-process"),
)
def test_who_holds_the_memory_is_told_by_the_figures(process: str, own: str, code: str) -> None:
    assert codes(TORCH_FULL.format(process, own))[0] == code


# --- what a run survives ------------------------------------------------------------------------

EPOCHS = [
    f"Epoch {i}: 100%|##########| 100/100 [00:12<00:00, loss={2.5 / (i + 1):.3f}]"
    for i in range(40)
]
TRAINED = "\n".join(
    [*EPOCHS, "Saving model checkpoint to out/checkpoint-40", "Training completed."]
)
WARNINGS = {
    "wandb tries again": "wandb: Network error (ConnectTimeout), entering retry loop.",
    "pip tries again": (
        "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by "
        "'ReadTimeoutError(\"HTTPSConnectionPool(host='files.example', port=443): Read timed out. "
        "(read timeout=15)\")': /simple/torch/"
    ),
    "the Hub's client tries again": (
        "'(ReadTimeoutError(\"HTTPSConnectionPool(host='cdn-lfs.huggingface.co', port=443): Read "
        "timed out. (read timeout=10)\"), '(Request ID: 1)')' thrown while requesting GET "
        "https://huggingface.co/x/resolve/main/model.safetensors\nRetrying in 1s [Retry 1/5]."
    ),
    "DeepSpeed does without libaio": (
        " [WARNING]  async_io requires the dev libaio .so object and headers but these were not "
        "found.\n [WARNING]  async_io: please install the libaio-dev package with apt"
    ),
    "torchvision does without its images": (
        "torchvision/io/image.py:13: UserWarning: Failed to load image Python extension: "
        "'libc10_cuda.so: cannot open shared object file: No such file or directory'If you don't "
        "plan on using image functionality from `torchvision.io`, you can ignore this warning."
    ),
    "xFormers does without its kernels": (
        "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
        "    PyTorch 2.0.0+cu118 with CUDA 1108 (you have 2.0.1+cu117)"
    ),
    "urllib3 warns of the SSL library": (
        "urllib3/__init__.py:35: NotOpenSSLWarning: urllib3 v2 only supports OpenSSL 1.1.1+"
    ),
    "apex is optional": (
        "Warning: apex was installed without --cuda_ext. Falling back to torch.\nPlease install "
        "apex from https://www.github.com/nvidia/apex to use distributed and fp16 training."
    ),
    "an image's banner": (
        "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available."
    ),
    "cmake does without cuDNN": (
        "-- Could NOT find CUDNN (missing: CUDNN_LIBRARY_PATH CUDNN_INCLUDE_PATH)\n"
        "-- Configuring done"
    ),
}
FAILURE = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', GPU has fallen off the bus."


@pytest.mark.parametrize("warning", WARNINGS.values(), ids=WARNINGS.keys())
def test_a_warning_of_a_run_that_ended_well_is_no_failure(warning: str) -> None:
    diagnosis = asked(f"{warning}\n{TRAINED}")
    assert diagnosis.ended_well
    assert {cause.severity for cause in diagnosis.causes} <= {"warns"}
    assert all(cause.confidence != "high" for cause in diagnosis.causes)


@pytest.mark.parametrize("warning", WARNINGS.values(), ids=WARNINGS.keys())
def test_a_warning_does_not_stand_above_the_failure(warning: str) -> None:
    ordinary = "\n".join(EPOCHS)
    diagnosis = asked(f"{warning}\n{ordinary}\n{FAILURE}")
    assert not diagnosis.ended_well
    assert diagnosis.causes[0].code == codes(FAILURE)[0]
    assert diagnosis.causes[0].confidence == "high"


def test_a_failure_behind_an_ordinary_training_is_still_found() -> None:
    before = "\n".join([*WARNINGS.values(), TRAINED])
    assert codes(f"{before}\n{FAILURE}")[0] == codes(FAILURE)[0]


def test_an_ordinary_run_in_front_changes_few_answers() -> None:
    """Every tenth text of the corpus behind a training with all these warnings."""
    before = "\n".join([*WARNINGS.values(), *EPOCHS])
    cases = [
        case
        for path in sorted((DATA / "corpus").glob("*.json"))
        for case in json.loads(path.read_text(encoding="utf-8"))
        if not case.get("facts")
    ][::10]
    kept = sum(codes(f"{before}\n{case['text']}")[:1] == [case["code"]] for case in cases)
    assert len(cases) > 150
    assert kept / len(cases) > 0.95


@pytest.mark.parametrize(
    "name",
    ["cicc", "cc1plus", "nvcc", "ninja", "java", "train.py", "python3", "node", "ollama", "rustc"],
)
def test_whatever_the_kernel_kills_for_memory_is_known(name: str) -> None:
    text = f"[12345.6] Out of memory: Killed process 4242 ({name}) total-vm:61234567kB"
    assert codes(text)[0] in {"host-ram-exhausted", "nvcc-killed-no-memory"}


# --- how a log ends -----------------------------------------------------------------------------


@cases(
    "text done last",
    ("done", "Successfully built 1a2b\n", True, None),
    ("broken", "Successfully built 1a2b\nE: it broke\n", False, "E: it broke"),
    ("repaired", "E: it broke\nagain\nSuccessfully built 1a2b", True, "E: it broke"),
    ("a traceback's last line",
     'Traceback (most recent call last):\n  File "x"\nmy.OwnError: no such thing', False,
     "my.OwnError: no such thing"),
    ("make", "make: *** [all] Error 2", False, "make: *** [all] Error 2"),
    ("unit", "Main process exited, code=exited, status=1/FAILURE", False, None),
    ("no word of it", "all is well here", False, None),
    ("nothing", "", False, None),
)  # fmt: skip
def test_how_a_text_ends(text: str, *, done: bool, last: str | None) -> None:
    found = outline(io.BytesIO(text.encode()), "log")
    assert bool(found.done) is done
    if last is not None:
        assert found.ends[-1][1] == last


def test_what_is_unknown_shows_the_lines_by_which_it_ended() -> None:
    text = f"{STEPS}\nmy.OwnError: no such thing\nexit status 3"
    diagnosis = asked(text)
    assert diagnosis.causes == ()
    assert [one.says for one in diagnosis.telling][-2:] == [
        "my.OwnError: no such thing",
        "exit status 3",
    ]


def test_without_texts_nothing_ended() -> None:
    assert not find_causes(load(), {}, {}, TextContext()).ended_well


# --- what ended the run, and what it went on after ----------------------------------------------

NEWER_GPU = (
    "/v/torch/cuda/__init__.py:235: UserWarning:\n"
    "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch"
    " installation.\n"
)
NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/data/index.npy'\n"
STEPS = "".join(f"step {n} of 90, loss {3 / (n + 1):.4f}\n" for n in range(90))
XFORMERS = "/v/layers.py:51: UserWarning: xFormers is not available (SwiGLU)\n"


@cases(
    "text expected",
    ("the warning came true", NEWER_GPU + NO_KERNEL, ["high", "blocks"]),
    ("it ended by a missing file", NEWER_GPU + NO_FILE, ["medium", "warns"]),
    ("and much later", NEWER_GPU + STEPS + NO_KERNEL, ["medium", "blocks"]),
)
def test_a_warning_is_as_bad_as_what_follows(text: str, expected: list[str]) -> None:
    (cause,) = [one for one in asked(text).causes if one.code == "gpu-newer-than-build"]
    assert [cause.confidence, cause.severity] == expected


def test_a_warning_of_pythons_with_much_behind_it_was_survived() -> None:
    missing, cause = asked(XFORMERS + STEPS + NO_FILE).causes
    assert missing.code == "file-missing"
    assert (cause.code, cause.severity) == ("xformers-other-torch", "warns")


def test_what_is_near_the_end_stands_before_what_is_not() -> None:
    early = "ModuleNotFoundError: No module named 'flash_attn'\n"
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert codes(early)[0] == "flash-attn-not-installed"
    assert codes(early + STEPS + memory)[0] == "gpu-out-of-memory"


def test_hardware_that_failed_is_no_better_later() -> None:
    lost = "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n"
    assert sure(lost + STEPS + NO_FILE) == ["xid-79-fallen-off-bus"]
    assert codes(lost + STEPS + NO_FILE)[0] == "xid-79-fallen-off-bus"


def test_a_hint_far_from_every_end_is_none() -> None:
    hint = "WARNING: NVML_ERROR_UNKNOWN was ignored\n"
    assert codes(hint)
    assert codes(hint + STEPS + NO_FILE) == ["file-missing"]


@cases(
    "last unexplained",
    ("a reason of its own", "KeyError: 'conv_in.weight'", True),
    ("another reason of its own", "ValueError: this node needs a VAE", True),
    ("a report of another", "RuntimeError: worker 3 exited unexpectedly", False),
    ("a program ended", "subprocess.CalledProcessError: Command 'train' returned 1", False),
    ("a reason that is known",
     "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", False),
)  # fmt: skip
def test_what_was_long_before_an_exception_of_another_kind_is_accused_of_nothing(
    last: str, *, unexplained: bool
) -> None:
    early = "requests.exceptions.SSLError: certificate verify failed: self-signed certificate\n"
    between = "step 1 loss 2.0\n" * 80
    said = asked(f"{early}{between}Traceback (most recent call last):\n  File 'a.py'\n{last}\n")
    assert said.causes
    assert said.unexplained == unexplained
    assert verdict_of(said, asked_of_a_text=True) == ("unknown" if unexplained else "found")


def test_an_outcome_without_a_known_cause_shows_what_failed_first() -> None:
    text = "node2: [rank4]: KeyError: 'index'\n" + TIMEOUT.format(0, 7, "ALLREDUCE", 16)
    cause = asked(text).causes[0]
    assert cause.code == "nccl-collective-timeout"
    assert cause.evidence[-1].where == "log:1"
    assert "KeyError" in cause.evidence[-1].says


def test_an_outcome_follows_from_what_any_program_has() -> None:
    text = f"node2: [rank4]: {NO_FILE}" + TIMEOUT.format(0, 7, "ALLREDUCE", 16)
    causes = {cause.code: cause for cause in asked(text).causes}
    assert next(iter(causes)) == "file-missing"
    assert causes["nccl-collective-timeout"].follows_from == "file-missing"


def test_what_any_program_has_says_less_than_anything_else() -> None:
    both = "ModuleNotFoundError: No module named 'flash_attn'\n"
    assert codes(both)[0] == "flash-attn-not-installed"
    early = "ModuleNotFoundError: No module named 'requests'\n"
    assert codes(early)[0] == "python-module-missing"
    assert "python-module-missing" not in codes(early + STEPS + "KeyError: 'loss'\n")


def test_the_end_is_shown_by_its_first_lines_and_its_last() -> None:
    error = "/app/ops.cpp:{}:44: error: 'struct event' has no member named 'backend'\n"
    text = STEPS + "".join(error.format(n) for n in range(9)) + "make: *** [all] Error 2\n"
    says = [one.says for one in asked(text).telling]
    assert ":0:44: error" in says[0]
    assert says[-1] == "make: *** [all] Error 2"
    assert len(says) == 6


# --- what a log states of its machine -----------------------------------------------------------

TABLE = (
    "| NVIDIA-SMI 535.104.05     Driver Version: 535.104.05   CUDA Version: 12.2     |\n"
    "|-------------------------+----------------------+----------------------+\n"
)
TIMEOUT = (
    "[rank{0}]:[E321 02:07:08 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3},"
    " Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
)
NOBODY = "RuntimeError: No CUDA GPUs are available\n"
NO_DRIVER = "RuntimeError: Found no NVIDIA driver on your system.\n"


@cases(
    "text first not_said",
    ("ranks wait for sums of different sizes",
     TIMEOUT.format(0, 1580, "ALLREDUCE", 466119168) + TIMEOUT.format(1, 1580, "ALLREDUCE", 1),
     "collective-order-mismatch", ""),
    ("ranks wait for different collectives",
     TIMEOUT.format(0, 7, "ALLREDUCE", 16) + TIMEOUT.format(1, 7, "BROADCAST", 16),
     "collective-order-mismatch", ""),
    ("ranks wait for the same",
     TIMEOUT.format(0, 7, "ALLREDUCE", 16) + TIMEOUT.format(1, 7, "ALLREDUCE", 16),
     "nccl-collective-timeout", ""),
    ("one rank is a step ahead",
     TIMEOUT.format(0, 7, "ALLREDUCE", 16) + TIMEOUT.format(1, 8, "BROADCAST", 1),
     "nccl-collective-timeout", ""),
    ("nvidia-smi works further down", NO_DRIVER + "$ exit\n$ nvidia-smi\n" + TABLE,
     "container-started-without-gpu", "no-driver-visible"),
    ("the container's configuration asks for no GPU",
     NOBODY + '            "DeviceRequests": null,\n            "Runtime": "runc",\n',
     "container-started-without-gpu", ""),
)  # fmt: skip
def test_what_a_log_states_is_used(text: str, first: str, not_said: str) -> None:
    found = codes(text)
    assert found[0] == first
    assert not_said not in found


def test_a_log_that_contradicts_itself_states_nothing() -> None:
    failed = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure"
        " that the latest NVIDIA driver is installed and running.\n"
    )
    assert codes(failed + TABLE) == codes(failed)


def test_the_nvidia_runtime_gives_gpus_without_being_asked_in_so_many_words() -> None:
    configuration = '            "DeviceRequests": null,\n            "Runtime": "nvidia",\n'
    assert codes(NOBODY + configuration) == codes(NOBODY)


def test_a_line_does_not_speak_for_itself() -> None:
    assert sure("PyTorch version: 2.13.0\nCUDA used to build PyTorch: None\n") == []


def test_a_fix_is_for_the_machine_here() -> None:
    """The log is of an Ubuntu. Where nothing is known of this machine, that is what is shown."""
    text = "OS: Ubuntu 22.04.3 LTS (x86_64)\nE: Unable to locate package nvidia-container-toolkit\n"
    here = {name: Fact(value="rhel", where="/etc/os-release") for name in ("os.id", "os.family")}
    for facts, family in (({}, "debian"), (here, "rhel")):
        fixes = [f for c in diagnose([("log", text)], facts).causes for f in c.fixes if f.on]
        assert fixes
        assert family in fixes[0].on
