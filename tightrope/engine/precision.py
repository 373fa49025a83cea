"""How torch computes: the precision of matrix products and convolutions, and how its compiler is set up."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]
KernelPrecision = Literal["fp32", "tf32"]
ADVICE = (  # of the compiler's, which is not for users: precision is a setting, and the other is about itself
    r"\s*TensorFloat32 tensor cores", r"\s*Online softmax is disabled",
)  # fmt: skip


def prepare_compiler() -> None:
    """Where compiled code is kept between runs, and which of the compiler's warnings are not shown."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tightrope" / "inductor"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    for words in ADVICE:
        warnings.filterwarnings("ignore", words)


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """The device is current. fp32: 24-bit mantissas throughout. tf32: 11 bits inside products on CUDA, sums in 24. bf16:
    networks in 8 bits (autocast), parameters, losses, advantages and the optimiser in fp32."""
    one_of_several = device.type == "cuda" and device.index is not None
    current = torch.cuda.device(device) if one_of_several else nullcontext()  # whose streams are used
    with current, on_cuda(precision == "tf32") if device.type == "cuda" else nullcontext():
        if precision == "bf16":
            with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
                yield
        else:
            yield


@contextmanager
def on_cuda(fast: bool) -> Iterator[None]:
    """How CUDA computes. Convolutions take algorithms that always add in the same order: a run can then be run again, or
    resumed, to the last digit."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with products(fast):
            yield
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def products(fast: bool) -> Iterator[None]:
    """How CUDA multiplies float32, for the whole process while this lasts. torch has an older and a newer way to say so,
    and does not let the older one be used once the newer one has been."""
    try:
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
        kept = [setting.fp32_precision for setting in settings]
        try:
            for setting in settings:
                setting.fp32_precision = "tf32" if fast else "ieee"
            yield
        finally:
            for setting, value in zip(settings, kept, strict=True):
                setting.fp32_precision = value
        return
    try:
        torch.set_float32_matmul_precision("high" if fast else "highest")
        torch.backends.cudnn.allow_tf32 = fast
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
