"""The arithmetic of matrix products and convolutions: fp32 unless something faster is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]
KernelPrecision = Literal["fp32", "tf32"]


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """fp32: 24-bit mantissas throughout. tf32: 11 bits inside products on CUDA, sums in 24. bf16: networks in 8 bits
    (autocast), parameters, losses, advantages and the optimiser in fp32."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    fast = precision == "tf32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    try:
        if precision != "bf16":
            yield
            return
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
