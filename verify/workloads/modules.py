"""Networks as torch modules. Images are channels first."""

from __future__ import annotations

from typing import Any, List, Tuple

from verify.workloads.networks import Layers, Network


def module(network: Network) -> Any:
    """The network as a torch module, in fp32 on the CPU. Images are channels first."""
    parts, _ = _modules(network.layers, network.given)
    import torch

    return torch.nn.Sequential(*parts)


def _modules(layers: Layers, shape: Tuple[int, ...]) -> Tuple[List[Any], Tuple[int, ...]]:
    """The modules, and the shape (rows, columns, channels) of what they give."""
    import torch

    nn = torch.nn
    parts: List[Any] = []
    for kind, *sizes in layers:
        if kind == "conv":
            filters, window, stride = sizes
            edge = window // 2
            parts.append(nn.Conv2d(shape[-1], filters, window, stride, edge, bias=False))
            shape = (*((side + 2 * edge - window) // stride + 1 for side in shape[:2]), filters)
        elif kind == "norm":
            parts.append(nn.BatchNorm2d(shape[-1]))
        elif kind == "maximum":
            parts.append(nn.MaxPool2d(sizes[0], sizes[1], sizes[0] // 2))
            shape = (*((side - 1) // sizes[1] + 1 for side in shape[:2]), shape[-1])
        elif kind == "mean":
            parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
            shape = shape[-1:]
        elif kind == "flatten":
            parts.append(nn.Flatten())
            shape = (shape[0] * shape[1] * shape[2],)
        elif kind == "dense":
            parts.append(nn.Linear(shape[-1], sizes[0]))
            shape = (sizes[0],)
        elif kind == "scatter":
            parts.append(_scatter(shape[-1], sizes[0]))
            shape = (sizes[0],)
        elif kind == "beside":
            path, after = _modules(sizes[0], shape)
            parts.append(_beside(path, _modules(sizes[1], shape)[0]))
            shape = after
        else:
            plain = {"relu": lambda: nn.ReLU(inplace=True), "tanh": nn.Tanh, "dropout": nn.Dropout}
            parts.append(plain[kind](*sizes))
    return parts, shape


def _beside(path: List[Any], shortcut: List[Any]) -> Any:
    import torch

    class OtherFrameworks(torch.nn.Module):  # type: ignore[misc,unused-ignore]  # it is Any without torch
        def __init__(self) -> None:
            super().__init__()
            self.path = torch.nn.Sequential(*path)
            self.shortcut = torch.nn.Sequential(*shortcut)

        def forward(self, x: Any) -> Any:
            return self.path(x) + self.shortcut(x)

    return OtherFrameworks()


def _scatter(inputs: int, outputs: int) -> Any:
    """Features are added up with index_add, which on a GPU adds in the order of arrival."""
    import torch

    class Scatter(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def forward(self, x: Any) -> Any:
            at = torch.arange(inputs, device=x.device) % outputs
            sums = torch.zeros(x.shape[0], outputs, device=x.device, dtype=x.dtype)
            return sums.index_add(1, at, x)

    return Scatter()
