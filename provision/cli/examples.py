"""The examples at the end of a --help; a test parses them all."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": (
        "provision plan",
        "provision plan --gpu 'RTX 4090' --driver 580.95.05",
        "provision build --cuda 12.8",
        "provision doctor train.log",
    ),
    "detect": ("provision detect", "provision detect --json > host.json"),
    "plan": (
        "provision plan",
        "provision plan --gpu V100 --driver 535 --cuda 11.7 --explain",
        "provision plan --host node1.json --host node2.json --with vllm",
        "provision plan requirements-gpu.txt --gpu H100 --driver 580.95.05",
        "provision plan --format uv | sh",
    ),
    "lock": (
        "provision lock --cuda 12.8 --with transformers",
        "provision lock . --gpu H100 --driver 580.95.05 --output pylock.h100.toml",
    ),
    "build": (
        "provision build",
        "provision build --cuda 11.7 --with torchvision",
        "provision build . --push registry.example/team/app:1",
        "provision build --lock pylock.toml --output image/",
        "provision build --base bootstrap --lazy --push registry.example/team/torch:1",
        "provision build --bundle torch.bundle --output image/",
        "provision build --cut A40 --output image.sqfs    # for an A40 alone",
    ),
    "run": (
        "provision run gpu-provision:pytorch2.0.1-cu117 -- python3 train.py",
        "provision run . -- python3 train.py",
        "provision run team/app:1 -v ./data:/data -e HF_TOKEN -p 8000",
    ),
    "bundle": (
        "provision bundle --cuda 12.8 --gpu H100 --driver 580.95.05 --output torch.bundle",
        "provision bundle --lock pylock.toml --with-tool --output torch.bundle",
        "provision bundle --check torch.bundle",
    ),
    "wheel": ("provision wheel flash-attn --output wheels/",),
    "inspect": (
        "provision inspect registry.example/team/app:1 --gpu H100",
        "provision inspect torch-2.0.1-cp311-cp311-manylinux1_x86_64.whl",
    ),
    "verify": (
        "provision verify gpu-provision:pytorch2.0.1-cu117",
        "provision verify registry.example/team/app:1 --level full --html report.html",
    ),
    "rm": ("provision rm gpu-provision:pytorch2.0.1-cu117",),
    "clean": ("provision clean",),
    "gate": ("provision gate registry.example/team/app:1 --max-age 12h",),
    "doctor": (
        "provision doctor",
        "provision doctor train.log",
        "docker build . 2>&1 | provision doctor --here -",
        "provision doctor Dockerfile",
    ),
    "completion": (
        'eval "$(provision completion bash)"    # in ~/.bashrc',
        'eval "$(provision completion zsh)"     # in ~/.zshrc, after compinit',
        "provision completion fish | source     # in ~/.config/fish/config.fish",
    ),
    "export": (
        "provision export compose team/app:1 --output compose.yaml",
        "provision export kubernetes registry.example/team/app:1 --gpus 8 --output job.yaml",
    ),
    "fleet": (
        "provision fleet detect --on slurm --output hosts/",
        "provision fleet plan hosts/",
        "provision fleet build hosts/ --push registry.example/team",
        "provision fleet verify --on slurm --image registry.example/team/app:1 --output reports/",
    ),
    "catalog": ("provision catalog show gpu 'RTX 4090'", "provision catalog refresh"),
    "store": ("provision store du", "provision store gc"),
    "export slurm": ("provision export slurm registry.example/team/app:1 --output train.sbatch",),
    "fleet detect": (
        "provision fleet detect --on slurm:gpu --output hosts/",
        "provision fleet detect --on ssh:hosts.txt --output hosts/",
    ),
    "fleet plan": ("provision fleet plan hosts/ --framework jax",),
    "fleet build": ("provision fleet build hosts/ --push registry.example/team",),
    "fleet verify": (
        "provision fleet verify --on slurm --image oci:/shared/images:NAME --output reports/",
    ),
    "fleet undrain": ("provision fleet undrain --on slurm --nodes 'n[0-3,7]'",),
    "catalog show": ("provision catalog show gpu 'RTX 4090'",),
    "catalog page": (
        "provision catalog page --output site    # then open site/index.html",
        "provision catalog page --output site --since site/index.html",
    ),
}
"""By the command's words ("fleet plan"); "" is `provision` itself."""


def examples_of(command: str) -> str | None:
    """The text below the options of a command; None: it has none."""
    lines = EXAMPLES.get(command)
    return None if lines is None else "\n".join(("examples:", *(f"  {line}" for line in lines)))
