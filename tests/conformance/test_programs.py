"""Random programs of scripts/programs: drawn the same each time, agree with eager, and are made smaller where they fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotpack_loader.errors import BuildError
from devtools.harness import run, works_in_eager
from devtools.programs.drawing import Program, drawn, joined, reduced
from devtools.programs.operators import DRAWS, KINDS


def test_a_seed_draws_the_same_program() -> None:
    assert drawn("1/0", 20) == drawn("1/0", 20)
    assert drawn("1/0", 20) != drawn("1/1", 20)


def test_operators_are_templates_and_all_kinds_are_drawn() -> None:
    """A line without slots would be no operator on what was made before."""
    lines = [line for known, _ in KINDS.values() for line in known] + DRAWS
    assert [line for line in lines if not any(slot in line for slot in ("{a}", "{k}", "{v}", "{w}"))] == []
    assert len(set(lines)) == len(lines)
    text = " ".join(line for number in range(20) for line in drawn(f"2/{number}", 20).lines)
    for word in ("sum(", "unfold(", "scatter", "conv", "norm(", "@", "[..., "):
        assert word in text


def test_every_front_end_traces_a_program(tmp_path: Path) -> None:
    case = PROGRAM.case("front ends", "portable", tmp_path)
    for front_end in case.front_ends:
        run(replace(case, front_ends=(front_end,)), tmp_path / f"{front_end}.aotpack")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(4))
def test_programs_agree_with_eager(number: int, tmp_path: Path) -> None:
    program = drawn(f"3/{number}", 12)
    case = program.case(str(number), "portable", tmp_path)
    assert works_in_eager(case)
    try:
        run(case, tmp_path / "program.aotpack")
    except BuildError as error:
        pytest.skip(f"refused: {error}")


PROGRAM = Program(
    arguments=("g(3, 4)", "t(3, 4)", "ints(4, high=3)"),
    lines=("v0 = x0.sin()", "v1 = x1.t()", "v1.mul_(2)", "v2 = v0.cumsum(0)", "v3 = v2 * x1", "v4 = v0.amax(1)"),
    results=("v3", "v4", "v1"),
)


def test_a_program_is_made_smaller_while_it_fails(tmp_path: Path) -> None:
    """What is left is the line at fault, of a value that is now an argument."""
    smaller = reduced(PROGRAM, lambda program: "cumsum" in program.source and "return v3" in program.source, 50)
    assert smaller.lines == ("v2 = x1.cumsum(0)", "v3 = v2 * x0")
    assert smaller.arguments == ("t(3, 4)", "g(3, 4, dtype=torch.float32)")
    assert works_in_eager(smaller.case("smaller", "portable", tmp_path))


def test_attempts_to_make_a_program_smaller_are_limited() -> None:
    tried: list[Program] = []
    assert reduced(PROGRAM, lambda program: bool(tried.append(program)), 3) == PROGRAM
    assert len(tried) == 3


def test_the_source_runs_and_names_its_lines(tmp_path: Path) -> None:
    """A case is made of the text that is printed."""
    case = PROGRAM.case("source", "portable", tmp_path)
    assert PROGRAM.source in (tmp_path / "program.py").read_text()
    assert works_in_eager(case)
    assert case.make()[0].__code__.co_filename == str(tmp_path / "program.py")
    assert PROGRAM.in_double() == PROGRAM  # of the harness's own type


def test_programs_are_joined_side_by_side(tmp_path: Path) -> None:
    """Each on its own arguments; the whole gives what all give."""
    programs = [drawn(f"4/{number}", 4) for number in range(12)]
    alike = [program for program in programs if program.training and not program.exact_random]
    whole = joined([PROGRAM, *alike, PROGRAM])
    assert whole.source.count("x0.sin()") == 1
    assert len(whole.lines) == sum(len(program.lines) for program in alike) + 2 * len(PROGRAM.lines)
    assert whole.results[-3:] == tuple(f"v{len(whole.lines) - count}" for count in (3, 2, 5))
    assert works_in_eager(whole.case("joined", "portable", tmp_path))


@pytest.mark.filterwarnings("ignore")
def test_programs_of_sizes_that_vary_are_called_with_larger_ones(tmp_path: Path) -> None:
    arguments = ("laid_out(t(3, 4), (1, 3))", "laid_out(g(3, 4, dtype=torch.float64), (16, 2))", "ints(1, high=3)")
    program = Program(arguments, ("v0 = x1[x2] * x0",), ("v0",), dynamic=True)
    assert (
        "larger = inputs(laid_out(t(5, 6), (1, 5)), laid_out(g(5, 6, dtype=torch.float64), (24, 2)), ints(1, high=3))"
        in program.source
    )
    case = program.case("dynamic", "portable", tmp_path)
    assert len(case.calls) == 2
    run(case, tmp_path / "program.aotpack")
    fixed = replace(program, lines=("v0 = x1 * torch.ones(3, 4)",))
    assert program.grows()
    assert not fixed.grows()
    assert len(fixed.case("fixed", "portable", tmp_path).calls) == 1


def test_a_number_that_becomes_an_argument_is_one_of_no_dimensions() -> None:
    program = Program(("t(3, dtype=torch.float32)",), ("v0 = x0.sum()", "v1 = v0 * 2"), ("v1",))
    smaller = [less.source for less in program.smaller()]
    assert any("inputs(t(dtype=torch.float32))" in source for source in smaller), smaller
