"""Faults of numerics: wrong, rough and missing results; compilers that compile nothing."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Tuple

from tests.mutations import rows

CUT = ~0x1FFF  # the bits of an fp32 number that TF32 has not


def as_tf32(numbers: Any) -> Any:
    """fp32 numbers rounded to the 11 bits of TF32; the gradient goes through as it is."""
    import torch

    bits = (numbers.detach().contiguous().view(torch.int32) + 0x1000) & CUT
    return numbers + (bits.view(torch.float32) - numbers.detach())


def spoil_products(spoil: Callable[[Any, Any, Any], Any], dtype: str) -> None:
    """Put another result in the place of each product of one dtype."""
    import torch

    true = torch.Tensor.__matmul__

    def product(left: Any, right: Any) -> Any:
        result = true(left, right)
        return spoil(left, right, result) if left.dtype is getattr(torch, dtype) else result

    torch.Tensor.__matmul__ = product


def lose_a_tile() -> None:
    """16 x 16 answers were never written."""

    def spoil(_left: Any, _right: Any, result: Any) -> Any:
        result[:16, -16:] = 0
        return result

    spoil_products(spoil, "float32")


def spoil_one_element() -> None:
    """One answer of bf16 among many has the wrong sign."""

    def spoil(_left: Any, _right: Any, result: Any) -> Any:
        result[3, 5] = -result[3, 5]
        return result

    spoil_products(spoil, "bfloat16")


def round_factors() -> None:
    """fp32 products by TF32's few bits."""
    from torch import matmul

    spoil_products(lambda left, right, _: matmul(as_tf32(left), as_tf32(right)), "float32")


def round_factors_to_bf16() -> None:
    """fp32 products of bf16 numbers."""
    from torch import matmul

    spoil_products(
        lambda left, right, _: matmul(left.bfloat16().float(), right.bfloat16().float()), "float32"
    )


def sum_in_fp16() -> None:
    """Partial sums are rounded to fp16, eight terms at a time."""
    import torch

    def spoil(left: Any, right: Any, result: Any) -> Any:
        left, right = left.float(), right.float()
        found = torch.zeros_like(result)
        for at in range(0, left.shape[1], 8):
            part = torch.matmul(left[:, at : at + 8], right[at : at + 8])
            found = (found.float() + part).half()
        return found

    spoil_products(spoil, "float16")


def make_a_nan() -> None:
    """One answer of fp16 is not a number."""

    def spoil(_left: Any, _right: Any, result: Any) -> Any:
        result[0, 0] = float("nan")
        return result

    spoil_products(spoil, "float16")


def compute_the_reference_in_fp32() -> None:
    """The CPU's float64 is none."""
    from torch import matmul

    spoil_products(lambda left, right, _: matmul(left.float(), right.float()).double(), "float64")


def break_bf16() -> None:
    """The library's bf16 product ends in an error."""

    def spoil(*_: Any) -> Any:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx")

    spoil_products(spoil, "bfloat16")


def gpus(count: int, capability: Tuple[int, int]) -> Any:
    """Places that say they are GPUs, and compute on the CPU."""
    import torch

    from verify.backends.pytorch import Place

    class StandIn(Place):
        """A GPU in all but its device."""

        @property
        def device(self) -> Any:
            return torch.device("cpu")

        @property
        def capability(self) -> Tuple[int, int]:
            return capability

    return tuple(StandIn("cuda", index) for index in range(count))


def two_gpus_with_tf32() -> None:
    """Two GPUs that round the factors of fp32 products where TF32 is allowed."""
    import torch

    from verify.backends import pytorch

    vars(pytorch.BACKEND)["every"] = lambda _: (None, gpus(2, (8, 0)))

    def spoil(left: Any, right: Any, result: Any) -> Any:
        if not torch.backends.cuda.matmul.allow_tf32:
            return result
        return torch.matmul(as_tf32(left), as_tf32(right))

    spoil_products(spoil, "float32")


def two_gpus_that_convolve() -> None:
    """Two GPUs whose convolutions run on the CPU."""
    from verify.backends import pytorch

    vars(pytorch.BACKEND)["every"] = lambda _: (None, gpus(2, (7, 5)))


def refuse_tf32() -> None:
    """The switch for TF32 does nothing, and it stays off."""
    from verify.backends import pytorch, pytorch_numbers

    real = pytorch_numbers.set_tf32
    vars(pytorch)["set_tf32"] = lambda **_: real(on=False)


def force_tf32() -> None:
    """The switch for TF32 does nothing, and it stays on."""
    from verify.backends import pytorch, pytorch_numbers

    real = pytorch_numbers.set_tf32
    vars(pytorch)["set_tf32"] = lambda **_: real(on=True)


def spoil_gradient(which: int, factor: float, dtype: str = "float32") -> None:
    """One of the gradients is wrong by a factor."""
    import torch

    true = torch.autograd.grad

    def grad(*given: Any, **more: Any) -> Any:
        found = list(true(*given, **more))
        if found[which].dtype is getattr(torch, dtype):
            found[which] = found[which] * factor
        return tuple(found)

    torch.autograd.grad = grad


def spoil_the_weight_gradient() -> None:
    """It is off by a thousandth."""
    spoil_gradient(1, 1.001)


def spoil_the_image_gradient() -> None:
    """It is off by a tenth."""
    spoil_gradient(0, 1.1, "bfloat16")


def round_convolved() -> None:
    """fp32 convolutions by TF32's few bits."""
    import torch

    true = torch.nn.functional.conv2d

    def conv2d(image: Any, weight: Any, **more: Any) -> Any:
        rough = image.dtype is torch.float32
        pair = (as_tf32(image), as_tf32(weight)) if rough else (image, weight)
        return true(*pair, **more)

    torch.nn.functional.conv2d = conv2d


def shift_in_channels_last() -> None:
    """One layout's last column comes out as zeros."""
    import torch

    true = torch.nn.functional.conv2d

    def conv2d(image: Any, weight: Any, **more: Any) -> Any:
        result = true(image, weight, **more)
        if not image.is_contiguous() and image.dtype is torch.float32:
            result = result * (torch.arange(result.shape[-1]) < result.shape[-1] - 1)
        return result

    torch.nn.functional.conv2d = conv2d


def forget_the_mask() -> None:
    """Attention looks ahead."""
    import torch

    true = torch.nn.functional.scaled_dot_product_attention

    def attend(*given: Any, **_: Any) -> Any:
        return true(*given)

    torch.nn.functional.scaled_dot_product_attention = attend


def spoil_the_key_gradient() -> None:
    """It is off by a tenth."""
    spoil_gradient(1, 1.1)


def let_any_backend_run() -> None:
    """The choice of a backend is not heeded."""
    import torch.nn.attention

    torch.nn.attention.sdpa_kernel = lambda *_: contextlib.nullcontext()


def take_every_backend() -> None:
    """No backend will do it, not even the plain one."""
    import torch

    def attend(*_: Any, **__: Any) -> Any:
        raise RuntimeError("No available kernel. Aborting execution.")

    torch.nn.functional.scaled_dot_product_attention = attend


def turn_dynamo_off() -> None:
    """A variable of the image turns torch.compile into nothing."""
    import torch._dynamo.config

    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    torch._dynamo.config.disable = True  # it has read the variable already


def compile_nothing() -> None:
    """torch.compile hands back what it was given."""
    import torch

    torch.compile = lambda work, **_: work


def compile_as(make: Callable[[Any], Any], kernels: int) -> None:
    """Put another compiler in inductor's place."""
    from torch._inductor import compile_fx as module
    from torch._inductor import metrics

    def compile_fx(graph: Any, _inputs: Any) -> Any:
        metrics.generated_kernel_count = kernels
        return make(graph)

    module.compile_fx = compile_fx


def fall_back_to_python() -> None:
    """inductor runs the graph as it is, without a kernel."""
    compile_as(lambda graph: graph, 0)


def compile_other_numbers() -> None:
    """What is compiled is off by a thousandth."""
    compile_as(lambda graph: lambda *given: [one * 1.001 for one in graph(*given)], 1)


def fail_to_compile() -> None:
    """The compiler cannot compile what inductor wrote."""

    def make(_: Any) -> Any:
        raise RuntimeError("CppCompileError: C++ compile error\n\ng++: fatal error: no input files")

    compile_as(make, 1)


def run_the_original() -> None:
    """The compiled function is left aside after its first call."""
    import torch

    true = torch.compile

    def compile_once(work: Any, **more: Any) -> Any:
        left = [true(work, **more)]

        def run(*given: Any) -> Any:
            now = left.pop() if left else work
            return now(*given)

        return run

    torch.compile = compile_once


def a_gpu_that_compiles() -> None:
    """A GPU with a stand-in for FlexAttention, which has no gradients on a CPU; the other compilers
    have passed.
    """
    import torch
    from torch.nn.attention import flex_attention as module

    from verify.backends import pytorch
    from verify.checks.numerics import compiled
    from verify.checks.numerics.accuracy import AccuracyReading

    vars(pytorch.BACKEND)["every"] = lambda _: (None, gpus(1, (8, 0)))
    vars(torch.cuda).update(device=lambda _: contextlib.nullcontext())
    reading = AccuracyReading("result", "fp32", 1, 0.0, 0.0, gpu=0)
    vars(compiled).update(
        why_not=lambda *_: None,
        _inductor=lambda _: compiled.CompiledRun("inductor", (reading,), 1, compiled.CALLS, 1),
        _triton=lambda *_: compiled.CompiledRun("Triton", ()),
    )
    vars(torch).update(compile=lambda work, **_: work)
    vars(module).update(flex_attention=attend_with_scores)


def attend_with_scores(query: Any, key: Any, value: Any, score_mod: Any = None) -> Any:
    """FlexAttention in plain operations."""
    import torch

    scores = query.float() @ key.float().transpose(-2, -1) * query.shape[-1] ** -0.5
    at = torch.arange(query.shape[-2])
    if score_mod:
        scores = score_mod(scores, None, None, at[:, None], at[None, :])
    return (scores.softmax(-1) @ value.float()).to(query.dtype)


def forget_the_score() -> None:
    """FlexAttention does not apply the function of the score."""
    from torch.nn.attention import flex_attention as module

    true = module.flex_attention
    module.flex_attention = lambda *given, **_: true(*given)


def fail_to_compile_attention() -> None:
    """The compiler cannot compile FlexAttention."""
    import torch

    def compile_it(*_: Any, **__: Any) -> Any:
        raise RuntimeError("InductorError: LoweringException: no choices for flex_attention")

    torch.compile = compile_it


def a_gpu_that_replays() -> None:
    """A GPU on which a captured function is called again."""
    import torch

    from verify.backends import pytorch

    vars(pytorch.BACKEND)["every"] = lambda _: (None, gpus(1, (8, 0)))
    vars(torch.cuda).update(
        make_graphed_callables=lambda work, _: work, device=lambda _: contextlib.nullcontext()
    )


def replay_the_old_numbers() -> None:
    """Replays do not read their inputs."""
    import torch

    vars(torch.cuda).update(
        make_graphed_callables=lambda work, given: lambda *now: work(*given) + 0 * work(*now)
    )


def fail_to_capture() -> None:
    """Something in the function cannot be captured."""
    import torch

    def capture(*_: Any) -> Any:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    vars(torch.cuda).update(make_graphed_callables=capture)


def spoil_the_loss(spoil: Callable[[Any], Any]) -> None:
    """Put another loss in the place of the mean of squares."""
    import torch

    true = torch.nn.functional.mse_loss
    torch.nn.functional.mse_loss = lambda *given: spoil(true(*given))


def add_noise() -> None:
    """Each run adds to the loss what no seed fixes."""
    steps = [0]

    def spoil(loss: Any) -> Any:
        steps[0] += 1
        return loss * (1 + 1e-6 * steps[0])

    spoil_the_loss(spoil)


def train_into_nan() -> None:
    """The loss is not a number."""
    spoil_the_loss(lambda loss: loss * float("nan"))


def lose_the_optimiser() -> None:
    """The optimiser's memory does not come back."""
    import torch

    torch.optim.Adam.load_state_dict = lambda *_: None


def lose_the_random_state() -> None:
    """The random numbers do not go on where they were."""
    import torch

    torch.set_rng_state = lambda *_: None


def lose_the_statistics() -> None:
    """The file keeps the numbers of the model with fewer bits."""
    import torch

    true = torch.save

    def save(state: Any, path: str) -> None:
        model = {
            name: numbers.half().float() if numbers.is_floating_point() else numbers
            for name, numbers in state["model"].items()
        }
        true({**state, "model": model}, path)

    torch.save = save


def freeze_the_optimiser() -> None:
    """Steps that change nothing."""
    import torch

    torch.optim.Adam.step = lambda *_: None


PYTORCH = (
    *rows(
        "numerics.matmul",
        ("a tile of an fp32 product is not written", lose_a_tile, "a kernel ran and its"),
        ("one element of a bf16 product is wrong", spoil_one_element, "single elements"),
        ("fp32 products are rounded as TF32 does", round_factors, "fewer bits"),
        ("fp32 products are made of bf16", round_factors_to_bf16, "rounded to bf16"),
        ("fp16 sums are kept in fp16", sum_in_fp16, "sums were kept in fp16"),
        ("an fp16 product holds a NaN", make_a_nan, "NaN or infinity"),
        ("float64 on the CPU is fp32", compute_the_reference_in_fp32, "reference"),
        ("bf16 products end in an error", break_bf16, "CUBLAS_STATUS"),
        level="quick",
    ),
    *rows(
        "numerics.matmul",
        ("TF32 is asked for and not used", refuse_tf32, "requested but not used"),
        ("TF32 is used though it is turned off", force_tf32,
         "as large as TF32's, which was turned off"),
        sound=two_gpus_with_tf32,
        level="quick",
    ),
    *rows(
        "numerics.convolution",
        ("the weight's gradient is off by a thousandth", spoil_the_weight_gradient,
         "gradient by weight"),
        ("the image's gradient is off by a tenth in bf16", spoil_the_image_gradient,
         "gradient by image"),
        ("fp32 is rounded as TF32 does", round_convolved, "fewer bits"),
        ("channels_last loses a column", shift_in_channels_last, "channels_last"),
        level="quick",
    ),
    *rows(
        "numerics.convolution",
        ("the weight's gradient is wrong on a GPU", spoil_the_weight_gradient, "GPU 0, fp32"),
        sound=two_gpus_that_convolve,
        level="quick",
    ),
    *rows(
        "numerics.attention",
        ("the causal mask is ignored", forget_the_mask, "causal"),
        ("a gradient is off by a tenth", spoil_the_key_gradient, "gradient by key"),
        ("the choice of a backend is not heeded", let_any_backend_run, "only the"),
        ("no backend can do it", take_every_backend, "as torch chooses"),
        level="quick",
    ),
    *rows(
        "numerics.compile",
        ("TORCHDYNAMO_DISABLE is set", turn_dynamo_off, "unset TORCHDYNAMO_DISABLE"),
        ("torch.compile does nothing", compile_nothing, "nothing was compiled"),
        ("the graph runs as plain Python", fall_back_to_python, "no kernel"),
        ("compiled code gives other numbers", compile_other_numbers, "error 0.001"),
        ("generated code does not compile", fail_to_compile, "could not compile"),
        ("compiled code runs once only", run_the_original, "ran 1 of 2 times"),
        level="quick",
    ),
    *rows(
        "numerics.compile",
        ("FlexAttention leaves the score as it is", forget_the_score, "bf16 causal"),
        ("FlexAttention does not compile", fail_to_compile_attention,
         "FlexAttention could not compile"),
        sound=a_gpu_that_compiles,
        level="full",
    ),
    *rows(
        "numerics.graphs",
        ("a replay uses the captured numbers", replay_the_old_numbers, "when it is replayed"),
        ("nothing can be captured", fail_to_capture, "choose another build"),
        sound=a_gpu_that_replays,
        level="quick",
    ),
    *rows(
        "numerics.determinism",
        ("each run adds noise", add_noise, "from one seed differ"),
        ("training ends in NaN", train_into_nan, "NaN or infinity"),
        level="quick",
    ),
    *rows(
        "numerics.checkpoint",
        ("the optimiser's state is lost", lose_the_optimiser, "optimizer"),
        ("the random state is not restored", lose_the_random_state, "random state"),
        ("the file keeps fewer bits", lose_the_statistics, "model"),
        ("the optimiser's steps have no effect", freeze_the_optimiser, "not change any"),
        ("the same steps go elsewhere", add_noise, "from a checkpoint differs"),
        level="quick",
    ),
)  # fmt: skip
ROWS = {"pytorch": PYTORCH}
