"""The precision of matrix products and convolutions, and the settings of torch's compiler."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]
KernelPrecision = Literal["fp32", "tf32"]
ADVICE = (  # warnings of the compiler that are not for users
    r"\s*TensorFloat32 tensor cores", r"\s*Online softmax is disabled",
)  # fmt: skip


def prepare_compiler() -> None:
    """Set the directory that keeps compiled code between runs, and hide the compiler's warnings in ADVICE."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tightrope" / "inductor"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    for words in ADVICE:
        warnings.filterwarnings("ignore", words)


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Inside, `device` is current and torch computes in this precision. fp32: 24-bit mantissas. tf32: on CUDA, factors of
    products have 11 bits, sums 24. bf16: networks have 8 bits (autocast); parameters, losses and the optimizer stay fp32."""
    one_of_several = device.type == "cuda" and device.index is not None
    current = torch.cuda.device(device) if one_of_several else nullcontext()
    with current, on_cuda(precision == "tf32") if device.type == "cuda" else nullcontext():
        if precision == "bf16":
            with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
                yield
        else:
            yield


@contextmanager
def on_cuda(fast: bool) -> Iterator[None]:
    """Inside, convolutions on CUDA are deterministic, so that a repeated or resumed run has the same bits."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with products(fast):
            yield
    finally:
        torch.backends.cudnn.deterministic = before


def uses_tf32() -> bool:
    """Whether CUDA multiplies float32 as tf32 now."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # the newer interface was used
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


@contextmanager
def products(fast: bool) -> Iterator[None]:
    """Inside, CUDA multiplies float32 as tf32 (`fast`) or exactly, in the whole process. torch has an older and a newer
    interface for this, and raises RuntimeError if the older one is used after the newer one."""
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
