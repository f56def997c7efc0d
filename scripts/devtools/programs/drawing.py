"""Random programs as source text: drawn with a seed, joined, run as cases, and reduced if they fail.

Every line runs in eager as it is drawn, so that all lines are valid. Values are small and have few
elements. A program looks like hand-written code, and can be pasted into a table of cases.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from devtools import harness
from devtools.files import import_file
from devtools.harness import INFER, TRAIN, Case, works_in_eager

from .operators import DRAWS, KINDS, PARTS

SHAPES = [(6, 36), (5, 7), (1, 33), (17, 3), (16, 32), (3, 8, 5), (2, 4, 6), (2, 2, 4, 8), (4, 1, 9), (33, 2, 2), (40,), (1,)]
"""Of the arguments: odd ones, of one element along a dimension, and some that fill vectors and tiles."""

ELEMENTS = 4096
"""At most, of a value."""

LARGEST = 100.0
"""Values are no larger: rounding stays small beside what a fault changes."""

EMPHASES = (0.2, 1, 1, 4)
"""Of kinds of operators in a program: what differs is often of many writes, or of many views."""

_HALF = re.compile(r"\.(half|bfloat16)\(\)")
_NAME = re.compile(r"\b[xv]\d+\b")
_WORDS = {"torch": torch, "F": F, **{word: getattr(harness, word) for word in ("g", "ints", "laid_out", "n", "t")}}
_HEADER = "import torch\nimport torch.nn.functional as F\nfrom devtools.harness import g, inputs, ints, laid_out, n, t\n"


@dataclass(frozen=True)
class Program:
    """A function in source text.

    Args:
        arguments: specs of the inputs ``x0``, ``x1`` and so on, as in the harness (``g(2, 3)``).
        lines: ``v0 = …``, or a write into an earlier value.
        results: names of the returned values.
        training: whether it is trained, rather than called without gradients.
        exact_random: whether it draws eager's random numbers.
        dynamic: whether its sizes vary. It is then also called with larger sizes, if eager accepts
            those.
    """

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    training: bool = True
    exact_random: bool = False
    dynamic: bool = False

    @property
    def source(self) -> str:
        """The function and its inputs."""
        names = ", ".join(f"x{number}" for number in range(len(self.arguments)))
        body = [*self.lines, f"return {', '.join(self.results)}"]
        given = [f"given = inputs({', '.join(self.arguments)})"]
        if self.dynamic:
            given.append(f"larger = inputs({', '.join(map(_larger, self.arguments))})")
        return "\n".join([f"def program({names}):", *(f"    {line}" for line in body), "", *given, ""])

    def case(self, name: str, target: str, folder: Path) -> Case:
        """The program as a row of a table. ``folder`` keeps the source, for messages that name lines."""
        file = folder / "program.py"
        file.write_text(f"{_HEADER}\n\n{self.source}")
        made = import_file(file, "drawn_program")
        call = TRAIN if self.training else INFER
        case = Case(
            name,
            lambda: (made.program, made.given),
            calls=(call,),
            targets=(target,),
            methods=("train" if self.training else "infer",),
            rng="eager" if self.exact_random else "default",
        )
        if not self.dynamic:
            return case
        case = replace(case, dynamic_shapes=tuple(map(_varying, made.given(harness.EXAMPLE_SEED)[0])))
        if not (self.grows() and works_in_eager(replace(case, make=lambda: (made.program, made.larger)))):
            return case
        return replace(case, calls=(call, replace(call, seed=2, inputs=made.larger)))

    def grows(self) -> bool:
        """Whether sizes vary, and eager also accepts larger ones."""
        try:
            return self.dynamic and bool(_Eager(tuple(map(_larger, self.arguments)), self.lines))
        except Exception:  # any error of an operator for sizes that it does not accept
            return False

    def in_double(self) -> Program:
        """The same program in float64, where rounding does not matter. Half precision becomes float64, too."""
        arguments = tuple(argument.replace("float32", "float64") for argument in self.arguments)
        return replace(self, arguments=arguments, lines=tuple(_HALF.sub(".double()", line) for line in self.lines))

    def without_unread(self) -> Program:
        """The program without lines and arguments that no result needs. Writes and their targets are kept."""
        lines: list[str] = []
        needed = set(self.results)
        for line in reversed(self.lines):
            target, _, _ = line.partition(" = ")
            if _NAME.fullmatch(target) and target not in needed:
                continue
            lines.append(line)
            needed.update(_NAME.findall(line))
        return replace(self, lines=tuple(reversed(lines)))._with_read_arguments()

    def smaller(self) -> Iterator[Program]:
        """Smaller programs, the smallest first.

        They have one result, lack one write, or have an argument instead of a value.
        """
        if len(self.results) > 1:
            for result in self.results:
                yield replace(self, results=(result,)).without_unread()
        values = self._values()
        for number in reversed(range(len(self.lines))):
            before, line, after = self.lines[:number], self.lines[number], self.lines[number + 1 :]
            target, _, _ = line.partition(" = ")
            if not _NAME.fullmatch(target):
                yield replace(self, lines=before + after).without_unread()
            elif (target,) != self.results and values[target].numel():
                given = f"x{len(self.arguments)}"
                renamed = [re.sub(rf"\b{target}\b", given, text) for text in (*after, *self.results)]
                less = replace(self, lines=before + tuple(renamed[: len(after)]), results=tuple(renamed[len(after) :]))
                yield replace(less, arguments=(*self.arguments, _argument_like(values[target]))).without_unread()

    def _with_read_arguments(self) -> Program:
        """The program without unused arguments."""
        read = {name for text in (*self.lines, *self.results) for name in _NAME.findall(text)}
        kept = [number for number in range(len(self.arguments)) if f"x{number}" in read]
        names = {f"x{old}": f"x{new}" for new, old in enumerate(kept)}
        less = replace(self, arguments=tuple(self.arguments[number] for number in kept))
        return less._renamed(lambda name: names.get(name, name))

    def _numbered(self, first_argument: int, first_line: int) -> Program:
        """The program with other numbers in its names, so that it can follow other programs."""
        first = {"x": first_argument, "v": first_line}
        return self._renamed(lambda name: f"{name[0]}{int(name[1:]) + first[name[0]]}")

    def _renamed(self, rule: Callable[[str], str]) -> Program:
        def rename(text: str) -> str:
            return _NAME.sub(lambda found: rule(found[0]), text)

        return replace(self, lines=tuple(map(rename, self.lines)), results=tuple(map(rename, self.results)))

    def _values(self) -> dict[str, Tensor]:
        """The value of every line in eager, for the example inputs."""
        return _Eager(self.arguments, self.lines).values


def _larger(argument: str) -> str:
    """An argument spec with larger sizes. Equal sizes stay equal, and size 1 is kept."""
    spec, laid_out, strides = argument.removeprefix("laid_out(").partition("), (")
    word, _, rest = spec.rstrip(")").partition("(")
    given = rest.split(", ")
    sizes = [int(text) for text in given if text.isdigit()]
    larger = [size + 2 if size > 1 else size for size in sizes]
    spec = f"{word}({', '.join([*map(str, larger), *given[len(sizes) :]])})"
    if not laid_out:
        return spec
    stride = _transposed(larger) if f"({strides}" == f"{_transposed(sizes)})" else _spaced(larger)
    return f"laid_out({spec}, {stride})"


def _transposed(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose dimensions are stored in reverse order."""
    return torch.empty(*reversed(shape)).permute(*reversed(range(len(shape)))).stride()


def _spaced(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of every second element."""
    return torch.empty([2 * size for size in shape])[(slice(None, None, 2),) * len(shape)].stride()


def _varying(value: Tensor) -> dict[int, Any]:
    """The sizes of an argument that may vary, for ``dynamic_shapes``."""
    return {dim: torch.export.Dim.AUTO for dim, size in enumerate(value.shape) if size > 1}


def _argument_like(value: Tensor) -> str:
    """The spec of an argument with a value's shape and type."""
    sizes = "".join(f"{size}, " for size in value.shape)
    if not value.is_floating_point() and not value.is_complex():
        return f"ints({sizes}high={int(value.max()) + 1}, dtype={value.dtype})"
    return f"{'g' if value.requires_grad else 't'}({sizes}dtype={value.dtype})"


def joined(programs: Sequence[Program]) -> Program:
    """One program that does what several do, each on its own arguments. One compilation then tests all of them."""
    parts = []
    arguments = lines = 0
    for program in programs:
        parts.append(program._numbered(arguments, lines))
        arguments, lines = arguments + len(program.arguments), lines + len(program.lines)
    whole = {field: sum((getattr(part, field) for part in parts), ()) for field in ("arguments", "lines", "results")}
    return replace(programs[0], **whole)


class _Eager:
    """Runs a program's lines one by one on its example inputs. ``values`` are the results by name."""

    def __init__(self, arguments: tuple[str, ...], lines: tuple[str, ...] = ()) -> None:
        specs = [eval(argument, dict(_WORDS)) for argument in arguments]
        given = harness.inputs(*specs)(harness.EXAMPLE_SEED)[0]
        self.values: dict[str, Tensor] = {f"x{number}": value for number, value in enumerate(given)}
        for line in lines:
            self.run(line)

    def run(self, line: str) -> None:
        """Run one more line."""
        target, _, expression = line.partition(" = ")
        if _NAME.fullmatch(target):
            self.values[target] = eval(expression, {**_WORDS, **self.values})
        else:
            exec(line, {**_WORDS, **self.values})


# ---------------------------------------------------------------- drawing


def drawn(seed: str, lines: int) -> Program:
    """A program of about ``lines`` lines, the same for the same seed."""
    return _Drawing(random.Random(seed), lines).program()


class _Drawing:
    def __init__(self, draw: random.Random, lines: int) -> None:
        self.draw = draw
        self.training = draw.random() < 0.7
        self.exact_random = draw.random() < 0.1
        self.dtype = draw.choice(["torch.float64", "torch.float64", "torch.float32"])
        self.often = [often * draw.choice(EMPHASES) for _, often in KINDS.values()]
        self.arguments = tuple(self._arguments())
        self.lines: list[str] = []
        self.eager = _Eager(self.arguments)
        for _ in range(lines):
            self._add()

    def _arguments(self) -> Iterator[str]:
        shapes = self.draw.choices(SHAPES, k=self.draw.randint(1, 3))
        for shape in [*shapes, self.draw.choice(shapes)]:
            word = self.draw.choice("ttgggn" if self.training else "t")
            spec = f"{word}({', '.join(map(str, shape))}, dtype={self.dtype})"
            if len(shape) > 1 and self.draw.random() < 0.3:
                spec = f"laid_out({spec}, {self.draw.choice([_transposed, _spaced])(shape)})"
            yield spec
        size = self.draw.choice([4, 7, 11])
        yield f"ints({size}, high={min(size for shape in shapes for size in shape)})"

    def program(self) -> Program:
        """The program. Its results are the values that no line reads, and some others."""
        read = {name for line in self.lines for name in _NAME.findall(line.partition(" = ")[2] or line)}
        made = [name for name in self.eager.values if name.startswith("v")]
        last = [name for name in made if name not in read]
        others = [name for name in made if name in read]
        results = last[-10:] + self.draw.sample(others, min(2, len(others)))
        distinct = {id(self.eager.values[name]): name for name in results or ["x0"]}  # another test covers repeated results
        return Program(self.arguments, tuple(self.lines), tuple(distinct.values()), self.training, self.exact_random)

    def _add(self) -> None:
        """Add one line, if one of several attempts is valid."""
        for _ in range(20):
            line = self._line()
            if line and self._takes(line):
                self.lines.append(line)
                return

    def _takes(self, line: str) -> bool:
        """Whether eager accepts a line and its value is usable."""
        target, _, _ = line.partition(" = ")
        makes = bool(_NAME.fullmatch(target))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.eager.run(line)
                values = [self.eager.values[target]] if makes else self.eager.values.values()
                if all(map(_is_plain, values)) and (makes or self._can_train(line)):
                    return True
        except Exception:  # any error of an operator for arguments that it does not accept
            makes = False
        if makes:
            del self.eager.values[target]
        else:  # the line may have written to a value
            self.eager = _Eager(self.arguments, tuple(self.lines))
        return False

    def _can_train(self, line: str) -> bool:
        """Whether the backward works, so that no write overwrites a value that a gradient needs."""
        values = _Eager(self.arguments, (*self.lines, line)).values.values()
        roots = [value for value in values if value.requires_grad and value.grad_fn is not None]
        try:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        except RuntimeError:
            return False
        return True

    def _line(self) -> str:
        """An operator with its slots filled; empty if no value fits a slot."""
        kind = self.draw.choices(list(KINDS), self.often)[0]
        template = self.draw.choice(KINDS[kind][0])
        if self.exact_random and self.draw.random() < 0.15:
            kind, template = "random", self.draw.choice(DRAWS)
        real, whole, complex_ = self._by_type()
        a = self._one_of(real)
        value = self.eager.values[a]
        size = value.dim()
        if not size or ("{k}" in template and not whole) or ("{w}" in template and not complex_):
            return ""
        d = self.draw.randrange(size)
        alike = [name for name in real if self.eager.values[name].shape == value.shape]
        n = value.shape[d]
        slots = {
            "a": a,
            "b": self._one_of(alike if self.draw.random() < 0.9 else real),
            "c": self._one_of(real),
            "k": self._one_of(whole) if whole else "",
            "w": self._one_of(complex_) if complex_ else "",
            "d": d if self.draw.random() < 0.7 else d - size,
            "e": (d + 1) % size,
            "n": n,
            "z": value.shape[-1],
            "i": self._indices(n),
            "j": f"(torch.arange({value.numel()}) * 7 % {n}).reshape({tuple(value.shape)})",
        }
        slots["v"] = self.draw.choice(PARTS).format(**slots)
        text = template.format(**slots)
        return text if kind == "write" else f"v{len(self.lines)} = {text}"

    def _by_type(self) -> tuple[list[str], list[str], list[str]]:
        """Names of real values, of integer or boolean values, and of complex values."""
        found: tuple[list[str], list[str], list[str]] = [], [], []
        for name, value in self.eager.values.items():
            found[0 if value.is_floating_point() else 2 if value.is_complex() else 1].append(name)
        return found

    def _indices(self, size: int) -> str:
        """Indices along a dimension: constants, or an argument of small integers.

        Its integers are below every size of the arguments.
        """
        given = f"x{len(self.arguments) - 1}"
        count = self.draw.choice([1, 2, size, size + 2])
        return self.draw.choice(
            [
                given,
                f"torch.arange({count}) % {size}",
                f"(torch.arange({count}) * 3 + 1) % {size}",
                f"torch.arange({count}) // 2 % {size}",
            ]
        )

    def _one_of(self, names: list[str]) -> str:
        """A random name. Later ones are more likely."""
        return self.draw.choice(names[-6:] if self.draw.random() < 0.5 else names)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor with few elements, all of them small."""
    if not isinstance(value, Tensor) or value.numel() > ELEMENTS:
        return False
    if value.dtype == torch.bool or not value.numel():
        return True
    return bool(value.isfinite().all()) and float(value.detach().abs().max()) <= LARGEST * (
        1 if value.is_floating_point() or value.is_complex() else 100
    )


# ---------------------------------------------------------------- making smaller


def reduced(program: Program, fails: Callable[[Program], bool], attempts: int) -> Program:
    """The smallest program found within ``attempts`` that still ``fails``."""
    while attempts > 0:
        for smaller in program.smaller():
            attempts -= 1
            if attempts < 0 or fails(smaller):
                break
        else:
            return program
        if attempts >= 0:
            program = smaller
    return program
