"""The groups of tests that show what works with a release of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Group:
    """Tests that run in one process.

    Args:
        name: as on the command line and in the results.
        part: the heading on the page.
        title: the row on the page.
        paths: files of tests.
        code: which of their tests run: those with a compiled case, those without, or all.
        keyword: pytest's ``-k``.
        slow: whether the group compiles native code; such groups run with ``--native`` only.
    """

    name: str
    part: Literal["loader", "builder", "fixes"]
    title: str
    paths: Sequence[str]
    code: Literal["portable", "native", "all"] = "all"
    keyword: str = ""
    slow: bool = False


_TABLE = ("tests/conformance/test_conformance.py",)
_FRONT_ENDS = ("tests/conformance/test_front_ends.py",)
_LOWERED = ("tests/torch_fixes/test_lowered.py", "tests/test_second_trace.py")
_TOOLS = (
    "distributed",
    "lightning",
    "module_tools",
    "optimizers_in_tools",
    "peft",
    "recipes",
    "records",
    "trainer",
    "transformers_models",
)
_FIXES = ("tests/torch_fixes/test_fixes.py",)


def _files(names: str) -> Sequence[str]:
    """Files of ``tests`` by their subjects."""
    return tuple(f"tests/test_{name}.py" for name in names.split())


GROUPS = (
    Group("vectors", "loader", "Frozen vectors of the format", _files("vectors earlier_readers")),
    Group(
        "loading",
        "loader",
        "Portable bundles: load, call, train",
        _files("load call modes modules archive identity purity traits"),
    ),
    Group(
        "callers",
        "loader",
        "Loaded bundles: autocast, containers, control flow, subclasses, `torch.compile` around them",
        _files(
            "autocast compiled_callers containers control_flow integer_weights named_sizes notebook profiler_events "
            "shared_weights sparse_gradients subclasses"
        ),
        slow=True,
    ),
    Group(
        "starts",
        "loader",
        'Recorded starts, the cache of code, `check="full"`, trust',
        _files("builds_to_one_path check checks code_cache collector faults recorded_start trust"),
        slow=True,
    ),
    Group(
        "tools",
        "loader",
        "Trainer, Lightning, accelerate, DDP and FSDP with a loaded bundle",
        tuple(f"tests/tools/test_{name}.py" for name in _TOOLS),
        slow=True,
    ),
    Group("devices", "loader", "Portable bundles on a device that is not the CPU", _files("devices"), slow=True),
    Group(
        "hostile",
        "loader",
        "Hostile bundles and the rules of the format",
        _files("hardening hostile_archive hostile_bundles vector_rules"),
    ),
    Group(
        "native",
        "loader",
        "Native code",
        ("tests/test_cpu_target.py", "tests/conformance/test_compiled_later.py"),
        slow=True,
    ),
    Group(
        "call-library", "loader", "Call library", _files("native_call native_document native_reader result_sources"), slow=True
    ),
    Group("front-end-dynamo", "builder", "Front end `dynamo`", _FRONT_ENDS, keyword="dynamo"),
    Group("front-end-export", "builder", "Front end `export`", _FRONT_ENDS, keyword="export"),
    Group("front-end-trace", "builder", "Front end `trace`", _FRONT_ENDS, keyword="trace"),
    Group("table", "builder", "Conformance table, target `portable`", _TABLE, code="portable"),
    Group("table-native", "builder", "Conformance table, target `cpu`", _TABLE, code="native", slow=True),
    Group(
        "programs",
        "builder",
        "Random programs, and bundles in fresh processes",
        tuple(f"tests/conformance/test_{name}.py" for name in ("fresh_process", "programs", "properties")),
        slow=True,
    ),
    Group(
        "building",
        "builder",
        "Builds: options, sizes, random numbers, recomputation, refusals",
        _files(
            "assigned_state backward_writes build branches capture checkpoints gpus methods optimizers overlaps packed"
            " process_copy random recompute refusals regional rolled_loops size_caches sizes_of_one threads"
            " unchanged vmapped_sizes whole_numbers"
        ),
        code="portable",
    ),
    Group(
        "models",
        "builder",
        "Builds: entry files, origins, named sizes, strides on fake tensors",
        _files("entry fake_kernels messages origins specializations stacked_parts"),
    ),
    Group(
        "native-building",
        "builder",
        "Native code: later targets, donated buffers, generated kernels, tuning, other releases",
        _files(
            "compile donation depthwise eager_kernels generated_code generated_loops halves large_pages"
            " instruction_sets layouts lstm_kernel one_hot own_graphs preprocessed_headers rewrites"
            " spectra step_memory stub_library toolchain torch_releases tune"
        ),
        slow=True,
    ),
    Group(
        "commands",
        "builder",
        "Commands and their reports",
        _files("bench cli diff inspect_page preflight profile provenance terminal train_command viewers"),
        slow=True,
    ),
    Group("fixes", "fixes", "Cases of fixes below Inductor", _FIXES, code="portable"),
    Group("gate", "fixes", "The gate", ("tests/torch_fixes/test_gate.py", "tests/torch_fixes/test_fail_closed.py")),
    Group("fixes-lowered", "fixes", "Generated code", _LOWERED, slow=True),
    Group("fixes-native", "fixes", "Cases of fixes of Inductor", _FIXES, code="native", slow=True),
)

_CHECKOUT = "reads files of the checkout; torch computes nothing that the test looks at"
_STATEMENTS = "digests, signatures and policies: bytes, which no torch changes"

WITHOUT_GROUP = {
    "tests/test_bench_check.py": _CHECKOUT,
    "tests/test_cuda_target.py": "what the cuda target asks of a machine; scripts/test-cuda has the release of Triton",
    "tests/test_docs.py": "runs the snippets of the pages, which show the release of CI",
    "tests/test_hostile_signatures.py": _STATEMENTS,
    "tests/test_keyless.py": _STATEMENTS,
    "tests/test_model_signing.py": _STATEMENTS,
    "tests/test_options.py": _CHECKOUT,
    "tests/test_packaging.py": _CHECKOUT,
    "tests/test_pages.py": _CHECKOUT,
    "tests/test_policy.py": _STATEMENTS,
    "tests/test_private.py": "directories and their rights",
    "tests/test_selection.py": _CHECKOUT,
    "tests/test_signing.py": _STATEMENTS,
    "tests/test_spec.py": _CHECKOUT,
    "tests/test_sweep.py": "scripts/conformance, which runs with the release of CI",
    "tests/test_torch_matrix.py": _CHECKOUT,
    "tests/test_torch_page.py": _CHECKOUT,
    "tests/test_tree.py": _CHECKOUT,
    "tests/test_varying_sizes.py": _CHECKOUT,
    "tests/test_vector_coverage.py": _CHECKOUT,
    "tests/test_xla_elsewhere.py": "scripts/test-xla has the release of torch_xla",
    "tests/torch_fixes/test_docs.py": _CHECKOUT,
}
"""Files of tests that need no run with another torch, and why.

``tests/registry`` moves files, tests/test_devices.py runs ``tests/second_device``, ``tests/cuda`` runs beside Triton, and
``tests/xla`` with the torch of torch_xla.
"""
