"""Names of the functions that calls have, for languages into which recordings are translated."""

from __future__ import annotations

import numpy as np
import torch

ELEMENT: dict[object, str] = {  # of each element
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.true_divide: "div", np.floor_divide: "floordiv",
    np.minimum: "min", np.maximum: "max", np.arctan2: "atan2", np.hypot: "hypot", np.remainder: "remainder",
    np.fmod: "fmod", np.power: "pow", np.negative: "neg", np.absolute: "abs", np.sign: "sign", np.floor: "floor",
    np.ceil: "ceil", np.rint: "round", np.trunc: "trunc", np.sin: "sin", np.cos: "cos", np.tan: "tan",
    np.arcsin: "asin", np.arccos: "acos", np.arctan: "atan", np.sinh: "sinh", np.cosh: "cosh", np.tanh: "tanh",
    np.exp: "exp", np.expm1: "expm1", np.log: "log", np.log1p: "log1p", np.log2: "log2", np.log10: "log10",
    np.sqrt: "sqrt", torch.erf: "erf", np.isnan: "isnan", np.isinf: "isinf", np.equal: "eq", np.not_equal: "ne",
    np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge", np.logical_and: "and",
    np.logical_or: "or", np.logical_not: "not",
}  # fmt: skip
BITS: dict[object, str] = {
    np.bitwise_and: "and",
    np.bitwise_or: "or",
    np.bitwise_xor: "ne",
    np.bitwise_not: "not",
}  # of truth values
REDUCED: dict[object, str] = {
    np.add.reduce: "sum", np.multiply.reduce: "prod", np.maximum.reduce: "amax", np.minimum.reduce: "amin",
    np.logical_or.reduce: "any", np.logical_and.reduce: "all", np.argmax: "argmax", np.argmin: "argmin",
}  # fmt: skip
PRODUCTS = (np.dot, np.matmul, torch.mm)
