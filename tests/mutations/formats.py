"""Faults of products of narrow numbers, on stand-ins for the kernels that only GPUs have."""

from __future__ import annotations

from typing import Any, Callable, Tuple

from tests.mutations import Row, rows
from tests.mutations.numerics import gpus, two_gpus_with_tf32
from tests.mutations.patching import replace

_FOURS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def scale_at(scales: Any, outer: int, inner: int) -> Any:
    """Which scale cuBLAS applies to each row and block: its documents' formula."""
    import torch

    row, block = torch.arange(outer)[:, None], torch.arange(inner)[None, :]
    tile = row // 128 * (inner // 4) + block // 4
    return scales.float()[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4]


def row_after_row(scales: Any, outer: int, inner: int) -> Any:
    """Scales that are not in tiles."""
    return scales.float().reshape(outer, inner)


def numbers_of(matrix: Any) -> Any:
    """What a matrix of fp8, or of two numbers of fp4 in each byte, says."""
    import torch

    if matrix.dtype is not torch.float4_e2m1fn_x2:
        return matrix.float()
    halves = torch.stack([matrix.view(torch.uint8) & 15, matrix.view(torch.uint8) >> 4], -1)
    codes = halves.flatten(-2).long()
    return torch.tensor(_FOURS)[codes % 8] * (1 - 2 * (codes // 8))


def multiply_blocks(find: Callable[[Any, int, int], Any] = scale_at) -> None:
    """_scaled_mm with a scale for each block."""
    import torch

    def make(real: Any) -> Any:
        def product(left: Any, right: Any, **more: Any) -> Any:
            if more["scale_a"].dim() != 1:
                return real(left, right, **more)
            size = 16 if left.dtype is torch.float4_e2m1fn_x2 else 32
            sides = []
            for side, scales in ((left, more["scale_a"]), (right.t(), more["scale_b"])):
                numbers = numbers_of(side)
                found = find(scales, len(numbers), numbers.shape[1] // size)
                sides.append(numbers * found.repeat_interleave(size, 1))
            return torch.matmul(sides[0], sides[1].t()).to(more["out_dtype"])

        return product

    replace(torch, "_scaled_mm", make)


def multiply_groups(which: Callable[[int], int] = lambda group: group) -> None:
    """_scaled_grouped_mm: each group of rows with the matrix of its own, or of another group."""
    import torch

    def product(left: Any, many: Any, down: Any, across: Any, offs: Any, out_dtype: Any) -> Any:
        found = torch.zeros(left.shape[0], many.shape[2])
        start = 0
        for group, end in enumerate(offs.tolist()):
            part, right = left[start:end].float(), many[which(group)].float()
            found[start:end] = (part @ right) * down[start:end, None] * across[which(group)]
            start = end
        return found.to(out_dtype)

    vars(torch).update(_scaled_grouped_mm=product)


def a_gpu(capability: Tuple[int, int]) -> Callable[[], None]:
    """One GPU that has the formats of its compute capability."""

    def sound() -> None:
        import torch

        from verify.backends import pytorch

        two_gpus_with_tf32()
        vars(pytorch.BACKEND)["every"] = lambda _: (None, gpus(1, capability))
        vars(torch.cuda).update(get_device_capability=lambda *_: capability)
        torch.version.cuda = "12.8"
        multiply_blocks()
        multiply_groups()

    return sound


A_HOPPER, A_BLACKWELL = a_gpu((9, 0)), a_gpu((10, 0))


def lose_a_product() -> None:
    """One sum of int8 lacks one."""
    import torch

    def make(real: Any) -> Any:
        def product(left: Any, right: Any) -> Any:
            found = real(left, right)
            found[3, 5] -= 1
            return found

        return product

    replace(torch, "_int_mm", make)


def scale_by_the_first_row() -> None:
    """Each row has the first row's scale."""
    import torch

    def make(real: Any) -> Any:
        def product(left: Any, right: Any, **more: Any) -> Any:
            if more["scale_a"].dim() == 2:
                more["scale_a"] = more["scale_a"][:1].repeat(left.shape[0], 1)
            return real(left, right, **more)

        return product

    replace(torch, "_scaled_mm", make)


def refuse(name: str, text: str) -> Callable[[], None]:
    """A build that has no kernel for what has this dtype, or scales for rows."""

    def seed() -> None:
        import torch

        def make(real: Any) -> Any:
            def product(left: Any, right: Any, **more: Any) -> Any:
                if more["scale_a"].dim() == 2 if name == "rows" else str(left.dtype) == name:
                    raise RuntimeError(text)
                return real(left, right, **more)

            return product

        replace(torch, "_scaled_mm", make)

    return seed


_NO_ROWS = "Rowwise scaling is not currently supported on your device"
_NO_FOURS = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul"
ROWS: "dict[str, Tuple[Row, ...]]" = {
    "pytorch": (
        *rows(
            "numerics.matmul",
            ("a sum of int8 lacks one", lose_a_product, "int8 512x1024x512"),
            ("rows of fp8 have one scale", scale_by_the_first_row, "fp8 rowwise"),
            level="quick",
        ),
        *rows(
            "numerics.matmul",
            ("the build has no kernel for rows of fp8", refuse("rows", _NO_ROWS),
             "this build has no kernel"),
            ("each group gets the first one's matrix", lambda: multiply_groups(lambda _: 0),
             "fp8 grouped"),
            sound=A_HOPPER,
            level="quick",
        ),
        *rows(
            "numerics.matmul",
            ("scales of blocks are read row after row", lambda: multiply_blocks(row_after_row),
             "512x1024x512: error"),
            ("no kernel multiplies nvfp4", refuse("torch.float4_e2m1fn_x2", _NO_FOURS),
             "nvfp4 512x1024x512"),
            sound=A_BLACKWELL,
            level="quick",
        ),
    )
}  # fmt: skip
