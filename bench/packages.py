"""How many widely used packages `provision lock --with NAME` locks, and in which release.

    ./run python bench/packages.py [--only NAME] [--jobs N] [--output FILE]

A package counts if the lock has the newest release that pip knows, or an older one whose reason is
printed, or if the refusal names a command or a line that works. A person judges the last two: the
output has what was printed. The packages were written down before the first run. pip's newest
release is the one for this Python. The package index must be reachable.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from provision.lock.lockfile import parse_lock, read_lock_file

HOST = ("--gpu", "RTX 4090", "--driver", "580.95.05", "--base", "bootstrap")
LIMIT_S = 900
NAMES = (
    "accelerate albumentations axolotl bitsandbytes causal-conv1d coqui-tts ctranslate2 "
    "cupy-cuda12x datasets deepspeed diffusers einops evaluate fairscale faiss-cpu "
    "faster-whisper flash-attn gradio gsplat hydra-core jieba kornia langdetect lightning "
    "llama-cpp-python lm-eval lycoris-lora mamba-ssm mlflow monai nemo-toolkit nerfstudio nltk "
    "onnxruntime-gpu open-clip-torch openai-whisper opencv-python optimum peft pyannote-audio "
    "ray rouge-score schedulefree scikit-learn sentence-transformers sentencepiece sglang spacy "
    "stable-baselines3 tensorrt timm torch-geometric torchaudio torchcodec torchvision "
    "transformers trl ultralytics vllm whisperx "
)


def newest(name: str) -> str:
    """The newest release that pip offers, or "" if it offers none."""
    asked = [sys.executable, "-m", "pip", "index", "versions", name]
    found = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    said = re.match(r"\S+ \((\S+)\)", found.stdout)
    return said[1] if said else ""


def locked(name: str, place: Path) -> dict[str, object]:
    """What a lock with the package has of it, and what was printed."""
    there = place / f"pylock.{name}.toml"
    words = ("lock", "--with", name, *HOST, "--output", str(there))
    argv = [sys.executable, "-m", "provision", *words]
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"exit": None, "release": "", "printed": f"no answer in {LIMIT_S} s"}
    printed = (done.stdout + done.stderr).strip()
    if not there.exists():
        return {"exit": done.returncode, "release": "", "printed": printed}
    packages = parse_lock(read_lock_file(there).text).packages
    releases = {str(one.name): str(one.version) for one in packages}
    return {"exit": done.returncode, "release": releases.get(name, ""), "printed": printed}


def measured(name: str, place: Path) -> dict[str, object]:
    """One package: pip's newest release, the lock's, and whether it is the newest."""
    latest, found = newest(name), locked(name, place)
    release = str(found["release"])
    verdict = "older" if release else "refused"
    if release and release.partition("+")[0] == latest:
        verdict = "newest"
    return {"name": name, "newest": latest, "verdict": verdict, **found}


def main() -> None:
    """Lock each package and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=NAMES.split(), action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    names = args.only or NAMES.split()
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(args.jobs) as pool:
        rows = []
        for row in pool.map(lambda name: measured(name, Path(place)), names):
            rows.append(row)
            cells = (row["name"], row["newest"], row["release"], row["verdict"])
            print("".join(f"{cell:<22}" for cell in cells), flush=True)
    for row in rows:
        if row["verdict"] != "newest":
            print(f"\n== {row['name']} (exit {row['exit']})\n{row['printed']}")
    if args.output:
        args.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
