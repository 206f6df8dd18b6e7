"""PyTorch's products of narrow numbers: int8, fp8 with scales of rows or of groups, and Blackwell's
formats with a scale for each block of a row.

The scales are powers of two, which every format holds, and the result is scaled back. So it is the
plain product only if the kernel applies each scale where it belongs.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from verify.running.symptoms import kind

FOURS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # what nvfp4 has, and their negatives


class NumberFormat(NamedTuple):
    """One format: torch's function, the dtypes that it needs, and how two matrices are multiplied.

    `sure`: the compute capabilities for which every build has a kernel, from a major version of
    CUDA on; on others an error means that there is none.
    """

    function: str
    dtypes: Tuple[str, ...]
    multiply: Callable[[Callable[..., Any], Any, Any], Any]
    sure: Sequence[Tuple[int, int]]
    on_cpu: bool = False
    cuda: int = 12


def lacks(dtype: str, *, is_gpu: bool) -> Optional[str]:
    """Why this release, or a CPU, does not have a format."""
    import torch

    form = FORMATS[dtype]
    absent = [name for name in (form.function, *form.dtypes) if not hasattr(torch, name)]
    if (
        not absent and dtype == "fp8 rowwise"
    ):  # as long as two results came back, there was one scale
        several = len(torch.ops.aten._scaled_mm.default._schema.returns) > 1  # noqa: SLF001
        absent = ["scales for rows of fp8"] if several else []
    if absent:
        return "torch {} has no {}".format(torch.__version__, absent[0])
    return None if is_gpu or form.on_cpu else "CPUs have none"


def is_absent(
    text: str, dtype: str, capability: Optional[Tuple[int, int]], cuda: Optional[str]
) -> bool:
    """Whether an error says that a build for this CUDA has no kernel of a format, and it may do
    without. The functions have no public names, so that a release may call them otherwise.
    """
    form = FORMATS[dtype]
    major = int((cuda or "0").partition(".")[0])
    must = major >= form.cuda and capability in form.sure
    return text.startswith("TypeError") or (not must and kind(text) in (None, "kernel"))


def put(values: Any, dtype: str) -> Any:
    """A tensor's numbers rounded to a format."""
    import torch

    if dtype != "nvfp4":
        return values.to(getattr(torch, FORMATS[dtype].dtypes[0]))
    middles = [(low + high) / 2 for low, high in zip(FOURS, FOURS[1:])]
    nearest = torch.bucketize(values.abs().float(), torch.tensor(middles, device=values.device))
    return torch.tensor(FOURS, device=values.device)[nearest] * values.sign().float()


def multiply(left: Any, right: Any, dtype: str) -> Any:
    """The product of two matrices of `put`."""
    import torch

    form = FORMATS[dtype]
    return form.multiply(getattr(torch, form.function), left, right)


def columns(matrix: Any) -> Any:
    """The same matrix or matrices, with columns that are contiguous."""
    return matrix.transpose(-2, -1).contiguous().transpose(-2, -1)


def _powers(count: int, like: Any, most: int = 2) -> Any:
    """So many powers of two, which repeat themselves."""
    import torch

    return 2.0 ** (torch.arange(count, device=like.device) % (2 * most + 1) - most).float()


def _whole(function: Callable[..., Any], left: Any, right: Any) -> Any:
    return function(left, columns(right))


def _by_row(function: Callable[..., Any], left: Any, right: Any) -> Any:
    import torch

    down, across = _powers(left.shape[0], left)[:, None], _powers(right.shape[1], left)[None, :]
    scales = {"scale_a": down, "scale_b": across}
    return function(left, columns(right), **scales, out_dtype=torch.bfloat16) / (down * across)


def _by_group(function: Callable[..., Any], left: Any, right: Any) -> Any:
    """Four groups of rows; each has its own matrix, which is the right one or its negative."""
    import torch

    rows = left.shape[0]
    ends = torch.tensor([rows // 8, rows // 2, rows * 3 // 4, rows], device=left.device)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], device=left.device)
    many = columns((right.float() * signs[:, None, None]).to(right.dtype))
    down = _powers(rows, left)
    across = torch.stack([_powers(right.shape[1], left).roll(turn) for turn in range(len(signs))])
    found = function(left, many, down, across, offs=ends.to(torch.int32), out_dtype=torch.bfloat16)
    group = torch.bucketize(torch.arange(rows, device=left.device), ends, right=True)
    return found / (down[:, None] * across[group] * signs[group, None])


def _by_block(
    size: int, scale: str, pack: Callable[[Any], Any]
) -> Callable[[Callable[..., Any], Any, Any], Any]:
    """With a scale for so many terms of a row: along a row both together are the same."""

    def work(function: Callable[..., Any], left: Any, right: Any) -> Any:
        import torch

        scales_dtype = getattr(torch, scale)
        down, across = _powers(left.shape[0], left), _powers(right.shape[1], left)
        along = _powers(left.shape[1] // size, left, 1)
        scales = (down[:, None] * along, across[:, None] / along)
        found = function(
            pack(left),
            pack(right.t()).t(),
            **{"scale_" + side: tiled(one).to(scales_dtype) for side, one in zip("ab", scales)},
            out_dtype=torch.bfloat16,
        )
        return found / (down[:, None] * across[None, :])

    return work


def tiled(scales: Any) -> Any:
    """Scales in the order of cuBLAS: tiles of 128 rows by 4 blocks, in which 4 blocks of 4 rows
    that are 32 apart follow each other (cuBLAS, "1D Block Scaling Factors Layout").
    """
    rows, blocks = scales.shape
    tiles = scales.reshape(rows // 128, 4, 32, blocks // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).flatten()


def _pack(numbers: Any) -> Any:
    """Two of nvfp4 in a byte: the first one in the lower half."""
    import torch

    known = torch.tensor(FOURS, device=numbers.device)
    codes = torch.bucketize(numbers.abs(), known) + 8 * (numbers < 0)
    pairs = codes[:, ::2] + 16 * codes[:, 1::2]
    return pairs.to(torch.uint8).contiguous().view(torch.float4_e2m1fn_x2)


_EIGHT, _EXPONENT = "float8_e4m3fn", "float8_e8m0fnu"
FORMATS: Dict[str, NumberFormat] = {
    "int8": NumberFormat("_int_mm", ("int8",), _whole, ((8, 0), (9, 0)), on_cpu=True),
    "fp8 rowwise": NumberFormat("_scaled_mm", (_EIGHT,), _by_row, ((9, 0),), on_cpu=True),
    "fp8 grouped": NumberFormat("_scaled_grouped_mm", (_EIGHT,), _by_group, ((9, 0),)),
    "mxfp8": NumberFormat(
        "_scaled_mm",
        (_EIGHT, _EXPONENT),
        _by_block(32, _EXPONENT, lambda numbers: numbers.contiguous()),
        ((10, 0),),
    ),
    "nvfp4": NumberFormat(
        "_scaled_mm",
        (_EIGHT, "float4_e2m1fn_x2"),
        _by_block(16, _EIGHT, _pack),
        ((10, 0),),
    ),
}
