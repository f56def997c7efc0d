"""The loops of compiled kernels: which of them start threads, and what they compute more than once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_fixes.lowering import sources_of

from aotpack._torch.inductor.toolchain.hoisted_numbers import with_hoisted_numbers

Function = Callable[[Tensor, Tensor], Tensor]


def _code(function: Function, given: tuple[Tensor, Tensor], folder: Path) -> str:
    """The C++ of a function's forward."""
    (code,) = sources_of(function, given, folder, "infer")
    return code


@pytest.mark.parametrize(
    ("rows", "length", "width", "shared"), [(2000, 16, 8, False), (2000, 16, 40, False), (2, 50_000, 1, True)]
)
def test_threads_share_rows_or_sums(rows: int, length: int, width: int, shared: bool, tmp_path: Path) -> None:
    """Each thread has some of 2,000 short sums, also of rows that are shorter than a vector. Two long sums are shared."""
    code = _code(lambda x, y: (x * y).sum(1), (torch.randn(rows, length, width), torch.randn(rows, length, 1)), tmp_path)
    assert "#pragma omp parallel" in code
    assert shared is ("max_threads" in code)  # each thread has a sum of its own


@pytest.mark.parametrize(("costly", "rows", "stored"), [(True, 200, True), (True, 4, False), (False, 200, False)])
def test_costly_operands_of_a_product_are_computed_once(costly: bool, rows: int, stored: bool, tmp_path: Path) -> None:
    """The operand has 16 by 32 elements. The product has so many for each of its rows."""

    def product(x: Tensor, y: Tensor) -> Tensor:
        return ((x.sqrt() if costly else x.abs()) * y).sum(-1)

    code = _code(product, (torch.rand(16, 1, 32), torch.randn(16, rows, 32)), tmp_path)
    (operand,) = re.findall(r"auto (tmp\d+) = [^\n]*(?:sqrt|abs)\(", code)
    assert stored is bool(re.search(rf"\b{operand}\.store\(", code))


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "averages of volumes, with short rows": lambda x: F.avg_pool3d(x.reshape(2, 2, 12, 16, 16), 2),
    "averages of vectors, by a view": lambda x: F.avg_pool1d(x.reshape(64, 8, 24), 2),
    "maxima, with positions": lambda x: F.max_pool2d(x.reshape(4, 3, 32, 32), 3, 2),
}


@pytest.mark.parametrize("name", POOLS)
def test_costly_images_of_a_pool_are_vectorized(name: str, tmp_path: Path) -> None:
    """The loop of such a pool is not. The image has a loop of its own."""
    code = _code(lambda x, y: POOLS[name](x.tanh()).sum() + y, (torch.randn(4 * 3 * 32 * 32), torch.randn(8)), tmp_path)
    assert re.search(r"tmp\d+\.tanh\(\)", code)
    assert "std::tanh" not in code


def test_loops_of_sizes_that_vary_start_threads_if_they_are_long(tmp_path: Path) -> None:
    sizes = ({0: torch.export.Dim("n", min=2)}, {0: torch.export.Dim("n", min=2)})
    (code,) = sources_of(lambda x, y: x.sin() * y, (torch.randn(9), torch.randn(9)), tmp_path, "infer", dynamic_shapes=sizes)
    assert re.search(r"#pragma omp parallel if\(.*ks0.* > 4096\)", code)


def test_what_depends_on_numbers_alone_is_computed_before_the_loops() -> None:
    head = 'extern "C"  void  kernel(const float* in_ptr0,\n    const int64_t ks0,\n    const double ks1)\n{\n'
    loop = "    for(int64_t x0=0; x0<ks0; x0+=1)\n    {\n"
    inside = [
        ("auto tmp1 = 1.0 + std::pow(ks1, 2.0);", "auto tmp1 = number0;"),
        ("auto tmp2 = c10::convert<float>(tmp1);", "auto tmp2 = number1;"),
        ("auto tmp3 = at::vec::Vectorized<float>(tmp2);",) * 2,
        ("auto tmp4 = static_cast<float>(0.5);",) * 2,
        ("auto tmp1 = in_ptr0[x0];",) * 2,
        ("auto tmp2 = std::pow(tmp1, ks1);",) * 2,
    ]
    before, after = ("".join(f"        {line}\n" for line in lines) for lines in zip(*inside, strict=True))
    found = with_hoisted_numbers(f"{head}{loop}{before}    }}\n}}\n")
    numbers = "    const auto number0 = 1.0 + std::pow(ks1, 2.0);\n    const auto number1 = c10::convert<float>(number0);\n"
    assert found == f"{head}{numbers}{loop}{after}    }}\n}}\n"
