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


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("", [], id="an empty log"),
        pytest.param("step 1\nstep 2\n", [], id="a log that just stops"),
        pytest.param(
            "error: cannot open x\nmake: *** [all] Error 1\nSuccessfully built x\n",
            [],
            id="it ended well",
        ),
        pytest.param(
            "FileNotFoundError: no a.jpg\n[ERROR] killing subprocess 7\nDone.\n",
            ["FileNotFoundError: no a.jpg"],
            id="a script that says that it is done, after a failure",
        ),
        pytest.param(
            "copied 3 files\n12 passed, 0 failed\nDone.\n", [], id="nothing failed, and done"
        ),
        pytest.param(
            "GET /health 200\nlibc++abi: terminating due to uncaught exception: no memory\n",
            ["libc++abi: terminating due to uncaught exception: no memory"],
            id="an exception that nothing caught",
        ),
        pytest.param(
            "tar (child): /usr/share/nvidia-kmod.tar.xz: Cannot open: No such file or directory\n"
            "tar (child): Error is not recoverable: exiting now\ntar: Child returned status 2\n"
            "error: Bad exit status from /var/tmp/rpm-tmp.a1 (%prep)\n"
            "akmods: Building rpms failed; see /var/cache/akmods/nvidia/a.failed.log for details\n",
            ["tar (child): /usr/share/nvidia-kmod.tar.xz: Cannot open: No such file or directory"],
            id="akmods without its source",
        ),
        pytest.param(
            '  17 | print("error: ", x)\na.c:(.text+0x7): undefined reference to `f\'\n'
            "collect2: error: ld returned 1 exit status\nmake: *** [all] Error 1\n",
            ["a.c:(.text+0x7): undefined reference to `f'"],
            id="a linker, after a compiler that shows the source",
        ),
        pytest.param(
            "error: Failed to build `numba==0.58.1`\n  cause: Call to `setuptools.build_meta`"
            " failed (exit status: 1)\n\n         [stderr]\n"
            + '           File "<string>", line 14, in <module>\n             run_setup()\n'
            * 9
            + "         RuntimeError: Cannot install on Python version 3.13.0\n\n"
            "hint: Build failures usually indicate a problem with the package\n",
            ["RuntimeError: Cannot install on Python version 3.13.0"],
            id="the output of a build, which uv prints after its own error",
        ),
        pytest.param(
            "-- Detecting CUDA compiler ABI info - failed\n"
            "  nvcc fatal   : Unsupported gpu architecture 'compute_70'\n"
            "CMake will not be able to correctly generate this project.\n"
            "*** CMake configuration failed\n",
            ["nvcc fatal : Unsupported gpu architecture 'compute_70'"],
            id="CMake's status, and what nvcc says",
        ),
        pytest.param(
            "E1102 10:00:02.000100  1 main.go:132] error starting plugins: no NVML here\n"
            "panic: cannot start: no NVML here\n\ngoroutine 1 [running]:\nmain.main()\n"
            "\t/src/main.go:9 +0x2b\nexit status 2\n",
            ["panic: cannot start: no NVML here"],
            id="a crash of a program in Go",
        ),
        pytest.param(
            "[Nov 02 2026 09:00:01] [INFO] [tid 39] the daemon starts\n"
            "[Nov 02 2026 09:00:02] [ERROR] [tid 39] Cannot open the session (IN_USE)\n"
            "[Nov 02 2026 09:00:02] [ERROR] [tid 39] The fabric was not set up\n"
            "[Nov 02 2026 09:00:03] [ERROR] [tid 41] Failed to start\n",
            [
                "[Nov 02 2026 09:00:02] [ERROR] [tid 39] Cannot open the session (IN_USE)",
                "[Nov 02 2026 09:00:02] [ERROR] [tid 39] The fabric was not set up",
                "[Nov 02 2026 09:00:03] [ERROR] [tid 41] Failed to start",
            ],
            id="a daemon's errors, the first of them first",
        ),
        pytest.param(
            "(EngineCore_DP0 pid=8) ERROR 11-02 10:00:02 [core.py:8] ValueError: 4 GiB are left\n"
            "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause"
            " above. Failed core proc(s): {'EngineCore_DP0': 1}\n",
            ["(EngineCore_DP0 pid=8) ERROR 11-02 10:00:02 [core.py:8] ValueError: 4 GiB are left"],
            id="what vLLM points at, and not the pointer",
        ),
        pytest.param(
            "./fit: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./fit)\n",
            [
                "./fit: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./fit)",
            ],
            id="the loader misses a version of a symbol",
        ),
        pytest.param(
            "STATE      ERRORS   FAILED\nidle       0        0\nmake: *** [x] Error 1\n",
            [],
            id="headings of a table",
        ),
        pytest.param(
            "Cannot find the headers\nFailed command:\nmake -j2 MISMATCH=1\n",
            ["Cannot find the headers"],
            id="a command that failed is no reason",
        ),
        pytest.param(
            "[10:00:01] warning: asked for NVML, but this was not built with NVML support\n"
            "[10:00:02] error: count reported lower than configured (0 < 4)\n",
            [
                "[10:00:01] warning: asked for NVML, but this was not built with NVML support",
                "[10:00:02] error: count reported lower than configured (0 < 4)",
            ],
            id="a daemon warns of what it lacks, and fails later",
        ),
        pytest.param("make: *** [all] Error 2\n", [], id="a wrapper alone"),
        pytest.param(
            "E   ValueError: bad shape\nFAILED test_a.py::test_b - ValueError: bad shape\n"
            "========= 1 failed, 6 passed in 3.07s =========\n",
            ["E ValueError: bad shape FAILED test_a.py::test_b - ValueError: bad shape"],
            id="a test that failed, among others that passed",
        ),
        pytest.param("======= 7 passed in 3.07s =======\n", [], id="tests that passed"),
        pytest.param(
            'Traceback (most recent call last):\n  File "a.py", line 3, in fit\n'
            "    assert sigma > 0\n           ^^^^^^^^^\nAssertionError\n",
            ["assert sigma > 0 AssertionError"],
            id="an exception without words",
        ),
        pytest.param(
            "ValueError: the rows differ in length\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            + '  File "a.py", line 3, in fit\n' * 200
            + "UnicodeEncodeError: no such character\n",
            ["ValueError: the rows differ in length", "UnicodeEncodeError: no such character"],
            id="a chain of exceptions with many frames",
        ),
        pytest.param(
            "ValueError: the rows differ in length\n"
            + "step\n" * 200
            + "UnicodeEncodeError: no such character\n",
            ["UnicodeEncodeError: no such character"],
            id="two exceptions far apart that are no chain",
        ),
        pytest.param(
            "AssertionError\n", ["AssertionError"], id="one without a line of code above it"
        ),
        pytest.param(
            "Traceback (most recent call last):\n  File 'a.py'\nException: it was renamed\n",
            ["Exception: it was renamed"],
            id="an exception of no special kind",
        ),
        pytest.param(
            "677.2s 4438 ImportError: no broadcast_to\n",
            ["677.2s 4438 ImportError: no broadcast_to"],
            id="Kaggle's log",
        ),
        pytest.param(
            "pydantic_core.ValidationError: 1 validation error for A\n\n"
            "  Value error, no such GPU\n",
            ["pydantic_core.ValidationError: 1 validation error for A Value error, no such GPU"],
            id="a message behind a blank line",
        ),
        pytest.param(
            "[42908.5] [drm:i915_reset] *ERROR* GPU hanging too fast, declaring wedged!\n"
            "[43223.1] wlan0: failed to remove key (-5)\n[43224.0] usb 1-1: device not found\n",
            ["[42908.5] [drm:i915_reset] *ERROR* GPU hanging too fast, declaring wedged!"],
            id="a kernel's lines about a GPU, among others",
        ),
        pytest.param(
            "start.sh: line 13: HOME: unbound variable\n",
            ["start.sh: line 13: HOME: unbound variable"],
            id="a shell",
        ),
        pytest.param(
            "10.0% proc'd: 452 (1694 Gflop/s)   errors: 0   temps: 50 C\n        GPU 0: OK\n"
            "        GPU 1: FAULTY\n0 errors were corrected\n",
            [],
            id="errors that were counted, and are none",
        ),
        pytest.param(
            "npm error code 1\nnpm error RequestError: read ECONNRESET\n"
            "npm error     at ClientRequest.<anonymous> (index.js:970:111)\n",
            ["npm error RequestError: read ECONNRESET"],
            id="npm, behind its own prefix",
        ),
        pytest.param(
            "(EE) Backtrace:\n(EE) 0: /usr/lib/xorg/Xorg (failed+0x4d) [0x5577d9a3b64d]\n"
            "frame #3: <unknown function> + 0xe0a53 (0x14ac2227ea53 in libc.so)\n"
            "fatal: the display is lost\n",
            ["fatal: the display is lost"],
            id="frames of compiled code",
        ),
        pytest.param(
            "    graceful_termination_timeout: 90,\ncannot load the tokenizer\n"
            "make: *** [serve] Error 1\n",
            ["cannot load the tokenizer"],
            id="a setting",
        ),
        pytest.param(
            "TypeError: string indices must be integers\n"
            "[I ProcessGroupNCCL.cpp:844] [Rank 0] NCCL watchdog thread terminated normally\n",
            ["TypeError: string indices must be integers"],
            id="a message, and what another program says next",
        ),
        pytest.param(
            "a.c:1: error: no x\nmake: *** [all] Error 2\n", ["a.c:1: error: no x"], id="a compiler"
        ),
        pytest.param(
            "OSError: no route\n\nThe above exception was the direct cause of the following:\n\n"
            "RuntimeError: no download\nsubprocess.CalledProcessError: Command 'x' returned"
            " non-zero exit status 1.\n",
            ["OSError: no route", "RuntimeError: no download"],
            id="a chain of exceptions",
        ),
        pytest.param(
            "  -- Looking for CUDA\n  You must set CUDA_HOME\n  [end of output]\n"
            "error: subprocess-exited-with-error\n",
            ["You must set CUDA_HOME"],
            id="words that are no error to a program",
        ),
        pytest.param("Fatal error:\nNo GPU fits\n", ["Fatal error: No GPU fits"], id="two lines"),
        pytest.param(
            "RuntimeError: cannot open the file\n+ docker rm web\nmake: *** [all] Error 1\n",
            ["RuntimeError: cannot open the file"],
            id="a command that the shell shows is no part of a message",
        ),
        pytest.param(
            "OSError: [Errno 28] No space left on device\n\nuser@host:~$ pip list\n",
            ["OSError: [Errno 28] No space left on device"],
            id="a prompt",
        ),
        pytest.param(
            "ImportError: libGL.so.1: No such file or directory\nPython 3.11.2 on linux\n",
            ["ImportError: libGL.so.1: No such file or directory"],
            id="a message that is whole",
        ),
        pytest.param(
            "RuntimeError: the weights are 12 GB and the limit is 8\n\nsee you later\n",
            ["RuntimeError: the weights are 12 GB and the limit is 8"],
            id="a message ends with its paragraph",
        ),
        pytest.param(
            'error: subprocess-exited-with-error\n  File "<string>", line 14, in <module>\n'
            "    requires = get_requires_for_build({})\n  cannot run on this Python\n"
            "ERROR: Failed to build installable wheels for some pyproject.toml based projects\n",
            ["cannot run on this Python"],
            id="a line of a traceback's code",
        ),
        pytest.param(
            "[n1:7] Signal: Segmentation fault (11)\n[n1:7] *** End of error message ***\n"
            "mpirun noticed that process rank 2 exited on signal 11 (Segmentation fault).\n",
            ["[n1:7] Signal: Segmentation fault (11)"],
            id="a rank's signal",
        ),
        pytest.param("step 1\nKilled\n", [], id="the last word is a wrapper"),
        pytest.param(
            "step 9\nOSError: no room\n\nKilled\n", ["OSError: no room"], id="killed afterwards"
        ),
        pytest.param(
            "  error: subprocess-exited-with-error\n  exit code: 1\n"
            "      ModuleNotFoundError: No module named 'torch'\n"
            "      [end of output]\nerror: metadata-generation-failed\n",
            ["ModuleNotFoundError: No module named 'torch'"],
            id="an exception in pip's box",
        ),
        pytest.param(
            "RuntimeError:\n\nThe detected CUDA version (12.2) is another one.\n"
            "error: subprocess-exited-with-error\n",
            ["RuntimeError: The detected CUDA version (12.2) is another one."],
            id="a message that begins on the next line",
        ),
        pytest.param(
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 03:04:05 DUE TO TIME LIMIT\n",
            ["slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 03:04:05 DUE TO TIME LIMIT"],
            id="Slurm's time limit",
        ),
        pytest.param(
            "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-01-02T03:04:05 ***\n",
            [],
            id="a job that somebody cancelled",
        ),
        pytest.param(
            "RuntimeError: a worker died\nslurmstepd: error: Detected 1 oom_kill event\n",
            ["RuntimeError: a worker died", "slurmstepd: error: Detected 1 oom_kill event"],
            id="an exception, and what killed the step",
        ),
        pytest.param(
            "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)\n"
            "Last error:\nnvmlInit_v2() failed: Driver/library version mismatch\n",
            ["nvmlInit_v2() failed: Driver/library version mismatch"],
            id="words behind the last end",
        ),
        pytest.param(
            "[rank0]: torch.distributed.DistBackendError: NCCL error in: a.cpp:7, internal error\n"
            "[rank0]: Last error:\n[rank0]: Bootstrap : no usable interface found\n",
            ["[rank0]: Bootstrap : no usable interface found"],
            id="a rank's words behind the last end",
        ),
        pytest.param(
            "nvcc error : 'cicc' died due to signal 9 (Kill signal)\n"
            "gmake[2]: *** Waiting for unfinished jobs....\n",
            ["nvcc error : 'cicc' died due to signal 9 (Kill signal)"],
            id="gmake waits for others",
        ),
        pytest.param(
            "slurmstepd: error: pyxis: [ERROR] Command not found: nvidia-container-cli\n"
            "slurmstepd: error: pyxis: container start failed with error code: 1\n"
            "slurmstepd: error: Failed to invoke spank plugin stack\n",
            ["slurmstepd: error: pyxis: [ERROR] Command not found: nvidia-container-cli"],
            id="pyxis below its hook",
        ),
        pytest.param(
            "Warning  FailedScheduling  3m  0/2 nodes are available: 2 Insufficient gpu.\n",
            ["Warning FailedScheduling 3m 0/2 nodes are available: 2 Insufficient gpu."],
            id="only warnings",
        ),
        pytest.param(
            "WARNING: no hostfile, unable to use it\nprocess 7 exits with return code = -9\n",
            [],
            id="a warning before a wrapper",
        ),
        pytest.param(
            "[  1.0] (WW) Open ACPI failed\n[  1.1] (EE) NVIDIA: Failed to load module nv\n"
            "[  1.2] (EE)\nFatal server error:\n[  1.2] (EE) no screens found\n[  1.3] (EE) Server"
            " terminated with error (1). Closing log file.\n",
            ["[ 1.1] (EE) NVIDIA: Failed to load module nv", "[ 1.2] (EE) no screens found"],
            id="an X server",
        ),
        pytest.param(
            "#7 51.7 nvcc fatal : Unsupported gpu architecture\n"
            '#7 ERROR: process "/bin/sh -c pip" did not complete successfully: exit code: 1\n'
            " => ERROR [3/4] RUN pip install x  9.9s\n",
            ["#7 51.7 nvcc fatal : Unsupported gpu architecture"],
            id="a step of BuildKit",
        ),
        pytest.param(
            "ERROR: Service 'x' failed to build: write /var/lib/x: no space left on device\n",
            ["ERROR: Service 'x' failed to build: write /var/lib/x: no space left on device"],
            id="a wrapper that says why",
        ),
        pytest.param(
            ">>> import ext\nImportError: ext.so: undefined symbol: _Zx\n>>> import torch\n"
            ">>> torch.__version__\n'2.6.0+cu124'\n",
            ["ImportError: ext.so: undefined symbol: _Zx"],
            id="what is typed behind an error is no part of it",
        ),
        pytest.param(
            "In [1]: run_missing_file()\nFileNotFoundError: x\n",
            ["FileNotFoundError: x"],
            id="what is typed is no reason",
        ),
        pytest.param(
            "ValueError: bad\n" + "step\n" * 900 + "make: *** [all] Error 2\n",
            [],
            id="an error long before",
        ),
    ],
)
def test_what_states_a_reason(text: str, lines: list[str]) -> None:
    assert said(text) == lines


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
        pytest.param(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n",
            GOOD_ENDS["nvidia-smi"],
            id="the table of GPUs behind an exception",
        ),
        pytest.param(
            "", GOOD_ENDS["nvidia-smi"].replace("33C", "ERR!"), id="a GPU that does not answer"
        ),
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
        pytest.param(
            "", GOOD_ENDS["a pod that is ready"] + "it began\n", id="a pod, and a log behind it"
        ),
        pytest.param(
            "The compute mode is not supported on this device.\n",
            "Treating as warning and moving on.\nAll done.\n",
            id="a program that is done whatever happens",
        ),
        pytest.param("removed\nDone.\n", "Building the module\n" * 9, id="done, and more work"),
    ],
)
def test_this_is_no_good_end(begin: str, end: str) -> None:
    assert verdict(begin + end) != "healthy"


def test_an_old_event_before_a_good_end_is_not_sure() -> None:
    event = "[ 81.10] NVRM: Xid (PCI:0000:5e:00): 79, pid=7, GPU has fallen off the bus.\n"
    old = event + "step\n" * 90 + "4711  fit  gpu  8  COMPLETED  0:0\n"
    assert verdict(event) == "found"
    assert verdict(old) == "healthy"
    assert {one.confidence for one in diagnose([("log", old)]).causes} == {"medium"}
