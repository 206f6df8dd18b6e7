"""The words with which a log says why it ended, past the wrappers."""

from __future__ import annotations

import io
import json
import re
from functools import lru_cache
from typing import Any

import pytest

from provision.doctor import diagnose
from provision.doctor.account import of_a_machine, verdict_of
from provision.doctor.commands.text import describe_diagnosis
from provision.doctor.outline import outline
from provision.doctor.reasons import reasons
from tests import ROOT

EXAMINED = ROOT / "tests" / "data" / "doctor" / "examined.json"


@lru_cache(maxsize=1)
def examined() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(EXAMINED.read_text(encoding="utf-8"))
    return cases


def said(text: str) -> list[str]:
    stream = io.BytesIO(text.encode())
    return [one.says for one in reasons(stream, outline(stream, "log"))]


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        ("docker build of vLLM: mamba-ssm", "retrieval incomplete: got only 178257920 out of"),
        ("docker build on pytorch:22.12-py3", "Killed cicc"),
        ("hashcat 7.1.2", 'cannot open source file "OpenCL/inc_checksum_crc32.cl"'),
        ("ComfyUI on Windows in CPU mode", "This Controlnet needs a VAE but none was provided"),
        ("177.73 .run takes", "The kernel you are installing for is a Xen kernel!"),
        ("llama.cpp on Jetson AGX Xavier", 'identifier "__fp16" is undefined'),
        ("sglang for AMD", "Could not find a version that satisfies the requirement vllm=="),
        ("llama.cpp Vulkan build: coopmat", "'coopmat' : undeclared identifier"),
        ("llama.cpp on Jetson Nano", "implicit declaration of function"),
        ("llama-cli SYCL on an i3", "work-group cannot exceed {512, 512, 512}"),
        ("llama-server Vulkan with an embedding", "non-causal attention requires n_ubatch"),
        ("others 05: GROMACS", "Cannot run short-ranged nonbonded interactions on a GPU"),
        ("clusters 17: The user's disk quota", "disk quota exceeded"),
        ("cluster 10: Rank 0", "torch.cuda.OutOfMemoryError: CUDA out of memory."),
        ("others 28: The CANN operator", "no matching function for call to 'CastIntrinsicsImpl'"),
        ("Apptainer build of Triton: pip", "satisfies the requirement setuptools>=40.8.0"),
    ],
)
def test_the_words_for_why_a_log_ended(begin: str, words: str) -> None:
    case = next(case for case in examined() if case["id"].startswith(begin))
    assert words in " ".join(said(case["text"]))


REASONS = {
    "an empty log": "",
    "a log that just stops": "step 1\nstep 2\n",
    "it ended well": "error: cannot open x\nmake: *** [all] Error 1\nSuccessfully built x\n",
    "a script that says that it is done, after a failure":
        "=> FileNotFoundError: no a.jpg\n[ERROR] killing subprocess 7\nDone.\n",
    "nothing failed, and done": "copied 3 files\n12 passed, 0 failed\nDone.\n",
    "an exception that nothing caught":
        "GET /health 200\n=> libc++abi: terminating due to uncaught exception: no memory\n",
    "akmods without its source": (
        "=> tar (child): /usr/share/nvidia-kmod.tar.xz: Cannot open: No such file or directory\n"
        "tar (child): Error is not recoverable: exiting now\ntar: Child returned status 2\n"
        "error: Bad exit status from /var/tmp/rpm-tmp.a1 (%prep)\n"
        "akmods: Building rpms failed; see /var/cache/akmods/nvidia/a.failed.log for details\n"),
    "a linker, after a compiler that shows the source": (
        '  17 | print("error: ", x)\n=> a.c:(.text+0x7): undefined reference to `f\'\n'
        "collect2: error: ld returned 1 exit status\nmake: *** [all] Error 1\n"),
    "the output of a build, which uv prints after its own error": (
        "error: Failed to build `numba==0.58.1`\n"
        "  cause: Call to `setuptools.build_meta` failed (exit status: 1)\n\n"
        "         [stderr]\n"
        + '           File "<string>", line 14, in <module>\n             run_setup()\n' * 9
        + "=>          RuntimeError: Cannot install on Python version 3.13.0\n\n"
        "hint: Build failures usually indicate a problem with the package\n"),
    "CMake's status, and what nvcc says": (
        "-- Detecting CUDA compiler ABI info - failed\n"
        "=>   nvcc fatal   : Unsupported gpu architecture 'compute_70'\n"
        "CMake will not be able to correctly generate this project.\n"
        "*** CMake configuration failed\n"),
    "a crash of a program in Go": (
        "E1102 10:00:02.000100  1 main.go:132] error starting plugins: no NVML here\n"
        "=> panic: cannot start: no NVML here\n\ngoroutine 1 [running]:\nmain.main()\n"
        "\t/src/main.go:9 +0x2b\nexit status 2\n"),
    "a daemon's errors, the first of them first": (
        "[Nov 02 2026 09:00:01] [INFO] [tid 39] the daemon starts\n"
        "=> [Nov 02 2026 09:00:02] [ERROR] [tid 39] Cannot open the session (IN_USE)\n"
        "=> [Nov 02 2026 09:00:02] [ERROR] [tid 39] The fabric was not set up\n"
        "=> [Nov 02 2026 09:00:03] [ERROR] [tid 41] Failed to start\n"),
    "what vLLM points at, and not the pointer": (
        "=> (EngineCore_DP0 pid=8) ERROR 11-02 10:00:02 [core.py:8] ValueError: 4 GiB are left\n"
        "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause "
        "above. Failed core proc(s): {'EngineCore_DP0': 1}\n"),
    "the loader misses a version of a symbol":
        "=> ./fit: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./fit)\n",
    "headings of a table":
        "STATE      ERRORS   FAILED\nidle       0        0\nmake: *** [x] Error 1\n",
    "a command that failed is no reason":
        "=> Cannot find the headers\nFailed command:\nmake -j2 MISMATCH=1\n",
    "a daemon warns of what it lacks, and fails later": (
        "=> [10:00:01] warning: asked for NVML, but this was not built with NVML support\n"
        "=> [10:00:02] error: count reported lower than configured (0 < 4)\n"),
    "a wrapper alone": "make: *** [all] Error 2\n",
    "a test that failed, among others that passed": (
        "=> E   ValueError: bad shape\n+> FAILED test_a.py::test_b - ValueError: bad shape\n"
        "========= 1 failed, 6 passed in 3.07s =========\n"),
    "tests that passed": "======= 7 passed in 3.07s =======\n",
    "an exception without words": (
        'Traceback (most recent call last):\n  File "a.py", line 3, in fit\n'
        "=>     assert sigma > 0\n           ^^^^^^^^^\n+> AssertionError\n"),
    "a chain of exceptions with many frames": (
        "=> ValueError: the rows differ in length\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        + '  File "a.py", line 3, in fit\n' * 200
        + "=> UnicodeEncodeError: no such character\n"),
    "two exceptions far apart that are no chain": (
        "ValueError: the rows differ in length\n"
        + "step\n" * 200
        + "=> UnicodeEncodeError: no such character\n"),
    "one without a line of code above it": "=> AssertionError\n",
    "an exception of no special kind":
        "Traceback (most recent call last):\n  File 'a.py'\n=> Exception: it was renamed\n",
    "Kaggle's log": "=> 677.2s 4438 ImportError: no broadcast_to\n",
    "a message behind a blank line": (
        "=> pydantic_core.ValidationError: 1 validation error for A\n\n"
        "+>   Value error, no such GPU\n"),
    "a kernel's lines about a GPU, among others": (
        "=> [42908.5] [drm:i915_reset] *ERROR* GPU hanging too fast, declaring wedged!\n"
        "[43223.1] wlan0: failed to remove key (-5)\n[43224.0] usb 1-1: device not found\n"),
    "a shell": "=> start.sh: line 13: HOME: unbound variable\n",
    "errors that were counted, and are none": (
        "10.0% proc'd: 452 (1694 Gflop/s)   errors: 0   temps: 50 C\n        GPU 0: OK\n"
        "        GPU 1: FAULTY\n0 errors were corrected\n"),
    "npm, behind its own prefix": (
        "npm error code 1\n=> npm error RequestError: read ECONNRESET\n"
        "npm error     at ClientRequest.<anonymous> (index.js:970:111)\n"),
    "frames of compiled code": (
        "(EE) Backtrace:\n(EE) 0: /usr/lib/xorg/Xorg (failed+0x4d) [0x5577d9a3b64d]\n"
        "frame #3: <unknown function> + 0xe0a53 (0x14ac2227ea53 in libc.so)\n"
        "=> fatal: the display is lost\n"),
    "a setting": (
        "    graceful_termination_timeout: 90,\n=> cannot load the tokenizer\n"
        "make: *** [serve] Error 1\n"),
    "a message, and what another program says next": (
        "=> TypeError: string indices must be integers\n"
        "[I ProcessGroupNCCL.cpp:844] [Rank 0] NCCL watchdog thread terminated normally\n"),
    "a compiler": "=> a.c:1: error: no x\nmake: *** [all] Error 2\n",
    "a chain of exceptions": (
        "=> OSError: no route\n\nThe above exception was the direct cause of the following:\n\n"
        "=> RuntimeError: no download\n"
        "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.\n"),
    "words that are no error to a program": (
        "  -- Looking for CUDA\n=>   You must set CUDA_HOME\n  [end of output]\n"
        "error: subprocess-exited-with-error\n"),
    "two lines": "=> Fatal error:\n+> No GPU fits\n",
    "a command that the shell shows is no part of a message":
        "=> RuntimeError: cannot open the file\n+ docker rm web\nmake: *** [all] Error 1\n",
    "a prompt": "=> OSError: [Errno 28] No space left on device\n\nuser@host:~$ pip list\n",
    "a message that is whole":
        "=> ImportError: libGL.so.1: No such file or directory\nPython 3.11.2 on linux\n",
    "a message ends with its paragraph":
        "=> RuntimeError: the weights are 12 GB and the limit is 8\n\nsee you later\n",
    "a line of a traceback's code": (
        'error: subprocess-exited-with-error\n  File "<string>", line 14, in <module>\n'
        "    requires = get_requires_for_build({})\n=>   cannot run on this Python\n"
        "ERROR: Failed to build installable wheels for some pyproject.toml based projects\n"),
    "a rank's signal": (
        "=> [n1:7] Signal: Segmentation fault (11)\n[n1:7] *** End of error message ***\n"
        "mpirun noticed that process rank 2 exited on signal 11 (Segmentation fault).\n"),
    "the last word is a wrapper": "step 1\nKilled\n",
    "killed afterwards": "step 9\n=> OSError: no room\n\nKilled\n",
    "an exception in pip's box": (
        "  error: subprocess-exited-with-error\n  exit code: 1\n"
        "=>       ModuleNotFoundError: No module named 'torch'\n      [end of output]\n"
        "error: metadata-generation-failed\n"),
    "a message that begins on the next line": (
        "=> RuntimeError:\n\n+> The detected CUDA version (12.2) is another one.\n"
        "error: subprocess-exited-with-error\n"),
    "Slurm's time limit":
        "=> slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 03:04:05 DUE TO TIME LIMIT\n",
    "a job that somebody cancelled":
        "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-01-02T03:04:05 ***\n",
    "an exception, and what killed the step":
        "=> RuntimeError: a worker died\n=> slurmstepd: error: Detected 1 oom_kill event\n",
    "words behind the last end": (
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)\n"
        "Last error:\n=> nvmlInit_v2() failed: Driver/library version mismatch\n"),
    "a rank's words behind the last end": (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: a.cpp:7, internal error\n"
        "[rank0]: Last error:\n=> [rank0]: Bootstrap : no usable interface found\n"),
    "gmake waits for others": (
        "=> nvcc error : 'cicc' died due to signal 9 (Kill signal)\n"
        "gmake[2]: *** Waiting for unfinished jobs....\n"),
    "pyxis below its hook": (
        "=> slurmstepd: error: pyxis: [ERROR] Command not found: nvidia-container-cli\n"
        "slurmstepd: error: pyxis: container start failed with error code: 1\n"
        "slurmstepd: error: Failed to invoke spank plugin stack\n"),
    "only warnings":
        "=> Warning  FailedScheduling  3m  0/2 nodes are available: 2 Insufficient gpu.\n",
    "a warning before a wrapper":
        "WARNING: no hostfile, unable to use it\nprocess 7 exits with return code = -9\n",
    "an X server": (
        "[  1.0] (WW) Open ACPI failed\n=> [  1.1] (EE) NVIDIA: Failed to load module nv\n"
        "[  1.2] (EE)\nFatal server error:\n=> [  1.2] (EE) no screens found\n"
        "[  1.3] (EE) Server terminated with error (1). Closing log file.\n"),
    "a step of BuildKit": (
        "=> #7 51.7 nvcc fatal : Unsupported gpu architecture\n"
        '#7 ERROR: process "/bin/sh -c pip" did not complete successfully: exit code: 1\n'
        " => ERROR [3/4] RUN pip install x  9.9s\n"),
    "a wrapper that says why":
        "=> ERROR: Service 'x' failed to build: write /var/lib/x: no space left on device\n",
    "what is typed behind an error is no part of it": (
        ">>> import ext\n=> ImportError: ext.so: undefined symbol: _Zx\n>>> import torch\n"
        ">>> torch.__version__\n'2.6.0+cu124'\n"),
    "what is typed is no reason": "In [1]: run_missing_file()\n=> FileNotFoundError: x\n",
    "an error long before": (
        "ValueError: bad\n"
        + "step\n" * 900
        + "make: *** [all] Error 2\n"),
}  # fmt: skip


@pytest.mark.parametrize("log", REASONS.values(), ids=REASONS)
def test_what_states_a_reason(log: str) -> None:
    """Lines with "=> " are what is said of a log; "+> " goes on with the one before."""
    lines: list[str] = []
    for mark, line in re.findall(r"^([=+])> (.*)", log, re.MULTILINE):
        before = f"{lines.pop()} " if mark == "+" else ""
        lines.append(before + " ".join(line.split()))
    assert said(re.sub(r"^[=+]> ", "", log, flags=re.MULTILINE)) == lines


def test_the_line_that_states_the_failure_is_among_the_first_three_shown() -> None:
    failed = json.loads((EXAMINED.parent / "failed.json").read_text(encoding="utf-8"))["runs"]
    missed = []
    for run in failed:
        diagnosis = diagnose([("log", run["text"])])
        evidence = [one for cause in diagnosis.causes[:1] for one in cause.evidence]
        first = list({one.where: one.says for one in (*diagnosis.reasons, *evidence)}.values())
        assert re.search(run["states"], run["text"]), run["id"]
        if not any(re.search(run["states"], line) for line in first[:3]):
            missed.append(run["id"])
    assert len(missed) <= 0.05 * len(failed), missed


def test_a_long_log_is_read_across_its_pieces() -> None:
    text = "step\n" * 50_000 + "Please install Cython\nerror: subprocess-exited-with-error\n"
    stream = io.BytesIO(text.encode())
    (one,) = reasons(stream, outline(stream, "log"))
    assert (one.says, one.where) == ("Please install Cython", "log:50001")


def test_a_line_as_long_as_the_log_is_read_in_pieces() -> None:
    text = "x" * (8 << 20) + "\nPlease install Cython\nerror: subprocess-exited-with-error\n"
    assert said(text) == ["Please install Cython"]


def test_a_machine_of_whose_log_nobody_asked_is_not_quoted() -> None:
    kernel = "ACPI Error: AE_NOT_FOUND\nNVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n"
    diagnosis = diagnose([("the kernel log", kernel)])
    assert diagnosis.reasons
    assert of_a_machine(diagnosis).reasons == ()


def test_an_answer_that_is_not_sure_stands_beside_the_logs_own_words() -> None:
    text = "You must set CUDA_HOME\nRuntimeError: Error compiling objects for extension\n"
    diagnosis = diagnose([("log", text)])
    assert diagnosis.causes[0].code == "extension-build-failed"
    lines = describe_diagnosis(diagnosis, "found", about="log").splitlines()
    assert lines[0] == "failed      You must set CUDA_HOME  [log:1]"


def test_what_the_evidence_shows_is_not_quoted_again() -> None:
    text = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory\n"
    diagnosis = diagnose([("log", text)])
    assert [one.where for one in diagnosis.reasons] == ["log:1"]
    assert "log says" not in describe_diagnosis(diagnosis, "found", about="log")


def test_a_line_is_shown_once() -> None:
    diagnosis = diagnose([("log", "my.OwnError: no such thing\nexit status 3\n")])
    shown = describe_diagnosis(diagnosis, "unknown", about="log")
    assert shown.count("my.OwnError") == 1
    assert "log says    my.OwnError: no such thing" in shown
    assert "last lines  exit status 3" in shown


def test_errors_before_a_normal_end_are_shown_without_a_verdict() -> None:
    diagnosis = diagnose([("log", "my.OwnError: no such thing\n" + "step\n" * 20 + "Done.\n")])
    shown = describe_diagnosis(diagnosis, "healthy", about="log").splitlines()
    assert shown[:2] == [
        "No failure found: log ends normally.",
        "earlier     my.OwnError: no such thing  [log:1]",
    ]


def test_what_any_program_has_counts_where_it_is_the_reason() -> None:
    builds = "building\n" * 200
    text = (
        "error: <urlopen error retrieval incomplete: got only 17 out of 32 bytes>\n"
        f"{builds}RuntimeError: Error compiling objects for extension\n"
    )
    assert diagnose([("log", text)]).causes[0].code == "connection-cut"


GOOD_ENDS = {
    "Slurm's accounting": "4711  fit  gpu  8  COMPLETED  0:0\n4711.0  fit  8  COMPLETED  0:0\n",
    "Slurm's controller": "[2026-11-02T10:00:09.100] _job_complete: JobId=4711 done\n",
    "Slurm's mail": "Slurm Job_id=4711 Name=fit Ended, Run time 01:02:03, COMPLETED, ExitCode 0\n",
    "seff": "Job ID: 4711\nState: COMPLETED (exit code 0)\nCPU Utilized: 00:21:10\n",
    "Ansible's recap": (
        "PLAY RECAP ***\n"
        "node-a : ok=4    changed=0    unreachable=0    failed=0    skipped=1    ignored=0\n"
    ),
    "nccl-tests": (
        "node-a:90:90 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin symbol.\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 301.22\n"
    ),
    "dcgmi": "| Denylist    | Pass        |\n| PCIe        | Pass - All  |\n+----+-----+\n",
    "a server": (
        "INFO:     Uvicorn running on http://0.0.0.0:8000\n"
        'INFO:     192.0.2.7:50412 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    ),
    "systemd": "Nov 02 10:00:09 node-a systemd[1]: fit.service: Deactivated successfully.\n",
    "a service that runs": (
        "     Active: active (running) since Mon 2026-11-02 10:00:09 UTC; 3min ago\n"
        "   Main PID: 812 (dcgm)\n      Tasks: 9\n\n"
        "Nov 02 10:00:09 node-a systemd[1]: Started dcgm.service.\n"
    ),
    "pods": "fit-0   0/1     Completed   0          12m\n",
    "a pod that is ready": (
        "Conditions:\n  Type              Status\n  Ready             True\n"
        "QoS Class:  Burstable\nEvents:\n  Type     Reason     Age  From     Message\n"
        "  Warning  Unhealthy  9m   kubelet  Readiness probe failed: connection refused\n"
    ),
    "pytest": "tests/test_fit.py ....\n======== 4 passed, 1 warning in 3.07s ========\n",
    "a training": "step 90 loss 0.1\nSaving model checkpoint to out/checkpoint-90\n",
    "an installation and what there is now": (
        "Successfully installed numpy-2.1.0\nPackage Version\n------- -------\n"
        + "numpy   2.1.0\n" * 40
    ),
    "nvidia-smi": (
        "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05      CUDA Version: 13.0     |\n"
        + "| N/A   33C    P0     62W /  400W |       4MiB /  81920MiB |      0%  Default |\n" * 16
        + "+------+\n"
    ),
    "a kernel that has started": (
        "[    5.610000] [drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 1\n"
        "[    9.900000] br-1a2b: port 1(veth1) entered forwarding state\n"
    ),
}
BAD_LINES = {
    "an exception": "RuntimeError: the shapes do not fit",
    "a job out of time": "4713  fit  gpu  8  TIMEOUT  0:0",
    "a job out of memory": "4713  fit  gpu  8  OUT_OF_ME+  0:125",
    "a failed job": "4713  fit  gpu  8  FAILED  1:0",
    "a job's state": "   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)",
    "a host out of reach": "node-b : ok=1 changed=0 unreachable=1 failed=0",
    "a failed host": "node-b : ok=1 changed=0 unreachable=0 failed=2",
    "a failed test": "| Memory      | Fail - GPU 0 |",
    "a request that failed": 'INFO:     192.0.2.7:50412 - "POST /v1/chat HTTP/1.1" 500 Error',
    "an exit code": "srun: task 3: Exited with exit code 1",
    "a pod that restarts": "fit-1   0/1     CrashLoopBackOff   7 (2m ago)   12m",
    "a pod that is not ready": "  Ready             False",
    "a failed unit": "     Active: failed (Result: exit-code) since Mon 2026-11-02 10:00:09 UTC",
    "tests that failed": "======== 3 passed, 2 errors in 3.07s ========",
}
# Programs' own words that all is done: they say nothing of what was printed long before.
LAST_WORDS = {"systemd", "pytest", "a training", "an installation and what there is now"}


def verdict(text: str) -> str:
    return verdict_of(diagnose([("log", text)]), asked_of_a_text=True)


@pytest.mark.parametrize("name", GOOD_ENDS)
def test_a_good_end_is_healthy(name: str) -> None:
    assert verdict(f"it begins\n{GOOD_ENDS[name]}") == "healthy"


@pytest.mark.parametrize("bad", BAD_LINES)
@pytest.mark.parametrize("good", GOOD_ENDS)
def test_a_good_end_hides_no_failure_behind_it(good: str, bad: str) -> None:
    assert verdict(f"{GOOD_ENDS[good]}{BAD_LINES[bad]}\n") != "healthy"


@pytest.mark.parametrize("between", [0, 40], ids=["just before", "far before"])
@pytest.mark.parametrize("bad", BAD_LINES)
@pytest.mark.parametrize("good", sorted({*GOOD_ENDS} - LAST_WORDS))
def test_a_good_row_hides_no_other_row(good: str, bad: str, between: int) -> None:
    text = f"{BAD_LINES[bad]}\n" + "a line\n" * between + GOOD_ENDS[good]
    assert verdict(text) != "healthy"


def test_an_ignored_failure_of_a_task_is_none() -> None:
    failed = 'fatal: [node-a]: FAILED! => {"msg": "no module loaded yet"}\n...ignoring\n'
    assert verdict(failed + GOOD_ENDS["Ansible's recap"]) == "healthy"


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        pytest.param("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n",
                     GOOD_ENDS["nvidia-smi"], id="the table of GPUs behind an exception"),
        pytest.param("", GOOD_ENDS["nvidia-smi"].replace("33C", "ERR!"),
                     id="a GPU that does not answer"),
        pytest.param(
            "",
            GOOD_ENDS["a kernel that has started"]
            + "[   99.100000] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0xffff:2477)\n",
            id="a kernel whose driver fails later",
        ),
        pytest.param(
            "",
            GOOD_ENDS["a service that runs"]
            + "Nov 02 10:00:10 node-a dcgm[812]: cannot open the library\n",
            id="a service that runs and says what it cannot do",
        ),
        pytest.param("", GOOD_ENDS["a pod that is ready"] + "it began\n",
                     id="a pod, and a log behind it"),
        pytest.param("The compute mode is not supported on this device.\n",
                     "Treating as warning and moving on.\nAll done.\n",
                     id="a program that is done whatever happens"),
        pytest.param("removed\nDone.\n", "Building the module\n" * 9, id="done, and more work"),
    ],
)  # fmt: skip
def test_this_is_no_good_end(begin: str, end: str) -> None:
    assert verdict(begin + end) != "healthy"


def test_an_old_event_before_a_good_end_is_not_sure() -> None:
    event = "[ 81.10] NVRM: Xid (PCI:0000:5e:00): 79, pid=7, GPU has fallen off the bus.\n"
    old = event + "step\n" * 90 + "4711  fit  gpu  8  COMPLETED  0:0\n"
    assert verdict(event) == "found"
    assert verdict(old) == "healthy"
    assert {one.confidence for one in diagnose([("log", old)]).causes} == {"medium"}
