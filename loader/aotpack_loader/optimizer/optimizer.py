"""The optimizer of a loaded bundle: an instance of ``torch.optim.Optimizer`` whose step is in the bundle.

torch marks some methods of ``Optimizer`` so that Dynamo leaves them alone, and the mark imports Dynamo at the first call.
This class takes the functions under the marks: a start imports no compiler.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, NoReturn

import torch
from torch.optim import Optimizer  # noqa: TID251 - what imports Dynamo is not called here

from ..devices.call_library import Row
from ..errors import AotpackError, EditError, InputError, Problem, StateError
from ..format import schema
from .gradients import Gradients
from .loss import loss_of
from .updates import OpenUpdate, Update, values_of


@dataclass
class Training:
    """What steps of a training need: the module, how many calls make one, and how many were made since the last."""

    module: Callable[[], torch.nn.Module]
    accumulate: int
    calls: int = 0

    def __post_init__(self) -> None:
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise InputError(f"accumulate is {self.accumulate!r}, and no whole number of at least 1.")


KERNELS: Final = frozenset({"foreach", "fused", "capturable", "differentiable", "params", "initial_lr"})
"""Keys of a group that change nothing: which kernels eager would take, and what schedulers note."""
_MOST: Final = 50
_NO_STATE: Final = (KeyError, ValueError, TypeError, AttributeError, RuntimeError)
"""What torch raises for a state dict that is none."""


def _unmarked(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


class LoadedOptimizer(Optimizer):
    """An optimizer of a bundle, over parameters of a module that was loaded from it.

    ``state`` and ``param_groups`` are those of ``torch.optim``: checkpoints of the same class of ``torch.optim`` are read
    and written. The numbers of a group (``lr``, ``betas``) can be set between steps. Other options are compiled in.
    """

    zero_grad = _unmarked(Optimizer.zero_grad)
    state_dict = _unmarked(Optimizer.state_dict)

    def __init__(
        self,
        described: schema.Optimizer,
        methods: OpenUpdate,
        parameters: Mapping[str, torch.nn.Parameter],
        given: Mapping[str, Any],
        gradients: Gradients,
        training: Training,
    ) -> None:
        self.gradients, self.skipped, self._aotpack_training = gradients, 0, training
        opened = {name: methods(name) for name in dict.fromkeys(update.method for update in described.updates)}
        self._aotpack_updates = [Update(update, opened[update.method]) for update in described.updates]
        self._aotpack_kind = described.name
        self._aotpack_groups = [_Group(group) for group in described.groups]
        self._aotpack_update_of: dict[torch.Tensor, tuple[str, Update]] = {}
        problems = [Problem(name, "is no number of this optimizer") for name in given if not self._has(name)]
        for update in self._aotpack_updates:
            for name in update.names:
                parameter = parameters.get(name)
                if not isinstance(parameter, torch.nn.Parameter) or type(parameter.data) is not torch.Tensor:
                    problems.append(Problem(name, "is no parameter of the module any more"))
                    continue
                problems += (Problem(name, text) for text in update.problems(parameter))
                update.parameters.append(parameter)
                self._aotpack_update_of[parameter] = name, update
        if problems:
            raise EditError("The bundle has no optimizer for these parameters or options.", problems[:_MOST], hint=self._known())
        groups = [
            {**group.options, **{k: v for k, v in given.items() if group.has(k)}, "params": [parameters[n] for n in group.names]}
            for group in self._aotpack_groups
        ]
        self._aotpack_parameters = [[*group["params"]] for group in groups]
        self._aotpack_open = True
        super().__init__(groups, {name: value for name, value in groups[0].items() if name != "params"})
        self._aotpack_open = False
        self._aotpack_check_options()

    def _has(self, option: str) -> bool:
        return any(group.has(option) for group in self._aotpack_groups)

    def _known(self) -> str:
        names = dict.fromkeys(path.partition(".")[0] for group in self._aotpack_groups for path in group.conditions)
        return f"Its numbers are {', '.join(names)}. For other options build the bundle with another optimizer."

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the step is compiled for the groups of the build."""
        if not self._aotpack_open:
            raise EditError(
                "A parameter group cannot be added to the optimizer of a bundle: its step is compiled.",
                hint="Build the bundle with this group, or make an optimizer of torch.optim for these parameters.",
            )
        _unmarked(Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update each parameter that has a gradient.

        Args:
            closure: reevaluates the model and returns the loss.

        Returns:
            What the closure returns; None without one.

        Raises:
            InputError: gradients, state or options do not fit; nothing was updated.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        numbers = self._aotpack_check_options()
        problems: list[Problem] = []
        work = [(update, *self._aotpack_rows(update, problems)) for update in self._aotpack_updates]
        if not any(rows or unbound for _, rows, unbound in work):
            problems.append(Problem("", "no parameter has a gradient: call backward() before step()"))
        if problems:
            raise InputError("The optimizer cannot step.", problems[:_MOST])
        begun = {
            parameter: update.new_state(parameter, numbers[update.group])
            for update, _, unbound in work
            for parameter in (update.parameters[i] for i in unbound)
            if not self.state.get(parameter)
        }
        if self.gradients.asked and not self.gradients.ready(self._aotpack_gradients()):
            self.skipped += 1
            return loss
        for update, rows, unbound in work:
            group, values = self._aotpack_groups[update.group], numbers[update.group]
            tensors = group.tensors(values, update.scalars)
            first: list[Row] = []
            for i in unbound:
                parameter = update.parameters[i]
                state = self.state[parameter]
                state.update(begun.get(parameter, {}))
                if update.takes_rows(parameter):
                    update.run_rows(parameter, state, [tensors[path] for path in update.numbers])
                    continue
                row = update.rows[i] = update.row(parameter, state)
                (first if parameter in begun and group.first else rows).append(row)
            if first:
                given = {**tensors, **_tensors(group.first, update.scalars)}
                update.run(first, [given[path] for path in update.numbers])
            if rows:
                update.run(rows, [tensors[path] for path in update.numbers])
        return loss

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with these arguments, compute the gradients of its loss, update, and drop the gradients.

        The loss is the result called ``loss``, or the only scalar with a gradient. With ``accumulate=n``, gradients
        are the mean over n calls, and the nth updates.

        Returns:
            What the module returns.

        Raises:
            AotpackError: it is not clear which result is the loss, or :meth:`step` refuses.
        """
        training = self._aotpack_training
        if training.calls == 0:
            self.zero_grad()
        with torch.enable_grad():
            result = training.module()(*args, **kwargs)
            loss = loss_of(result)
            (loss / training.accumulate if training.accumulate > 1 else loss).backward()
        training.calls = (training.calls + 1) % training.accumulate
        if training.calls == 0:
            self.step()
            self.zero_grad()
        return result

    @property
    def calls(self) -> int:
        """How many calls of :meth:`train_step` were made since the last update; with ``accumulate=n`` up to n - 1."""
        return self._aotpack_training.calls

    def _aotpack_gradients(self) -> dict[str, torch.Tensor]:
        """The gradients that a step takes, by the names of their parameters; of sparse ones the values."""
        found = self._aotpack_update_of.items()
        return {name: values_of(parameter) for parameter, (name, _) in found if parameter.grad is not None}

    def _aotpack_rows(self, update: Update, problems: list[Problem]) -> tuple[list[Row], list[int]]:
        """The rows of parameters that have a gradient, and the indices of those that have none yet. Adds to ``problems``."""
        rows: list[Row] = []
        unbound: list[int] = []
        for i, (parameter, row) in enumerate(zip(update.parameters, update.rows, strict=True)):
            if parameter.grad is None:
                continue
            if row is not None and row.fits(self.state[parameter]):
                rows.append(row)
            else:
                problems += self._aotpack_problems(parameter)
                unbound.append(i)
        return rows, unbound

    def _aotpack_problems(self, parameter: torch.Tensor) -> Iterator[Problem]:
        """What does not fit of a parameter, its gradient and its state."""
        name, update = self._aotpack_update_of[parameter]
        yield from (Problem(name, text) for text in update.problems(parameter))
        state = self.state.get(parameter)
        if text := update.gradient_problem(parameter, state or {}):
            yield Problem(f"{name}.grad", text)
        if state:
            yield from (Problem(name, text) for text in update.state_problems(parameter, state))

    def _aotpack_check_options(self) -> list[dict[str, float]]:
        """The numbers of each group, by path.

        Raises:
            InputError: lists options that are compiled in and have changed.
        """
        if len(self.param_groups) != len(self._aotpack_groups):
            raise EditError(
                f"The optimizer has {len(self._aotpack_groups)} groups in the bundle, and now {len(self.param_groups)}."
            )
        for i, (held, group) in enumerate(zip(self._aotpack_parameters, self.param_groups, strict=True)):
            if len(held) != len(group.get("params", ())) or not all(map(operator.is_, held, group["params"])):
                raise EditError(f"The parameters of param_groups[{i}] have changed: the step is compiled for those of the build.")
        problems: list[Problem] = []
        found = [
            built.numbers(group, f"param_groups[{i}]", problems)
            for i, (built, group) in enumerate(zip(self._aotpack_groups, self.param_groups, strict=True))
        ]
        if problems:
            raise InputError("Options of the optimizer are compiled into the bundle.", problems[:_MOST], hint=self._known())
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of an optimizer of the same class with the same groups; all or nothing.

        Raises:
            StateError: lists what does not fit; nothing was changed.
        """
        before = dict(self.state), [dict(group) for group in self.param_groups]
        read = [state_dict]
        # The last hook sees what is loaded: others may have returned another dictionary.
        hook = _unmarked(Optimizer.register_load_state_dict_pre_hook)(self, lambda _, last: read.append(last))
        try:
            _unmarked(Optimizer.load_state_dict)(self, state_dict)
            numbers = [number for group in read[-1]["param_groups"] for number in group["params"]]
            given = dict(
                zip((p for held in self._aotpack_parameters for p in held), map(read[-1]["state"].get, numbers), strict=True)
            )
            problems = [
                Problem(self._aotpack_update_of[p][0], text) for p in self.state for text in self._aotpack_fitted(p, given[p])
            ]
            if problems:
                raise StateError("The state is of another optimizer.", problems[:_MOST])
            self._aotpack_check_options()
        except BaseException as error:
            self.state.clear()
            self.state.update(before[0])
            self.param_groups[:] = before[1]
            if isinstance(error, _NO_STATE) and not isinstance(error, AotpackError):
                raise StateError(f"This is no state of the optimizer: {type(error).__name__}: {error}") from error
            raise
        finally:
            hook.remove()

    def _aotpack_fitted(self, parameter: torch.Tensor, given: Mapping[str, Any]) -> Iterator[str]:
        """Give a state that was read the strides and types that the code takes. Yields what else does not fit.

        ``given`` is the state before torch has converted it to the type of the parameter.
        """
        update, state = self._aotpack_update_of[parameter][1], self.state[parameter]
        # torch writes None for some that it does not use.
        kept = update.in_order({name: value for name, value in state.items() if value is not None})
        self.state[parameter] = {name: update.laid_out(name, kept[name], given[name], parameter) for name in kept}
        if kept:
            yield from update.state_problems(parameter, self.state[parameter])

    def __reduce__(self) -> NoReturn:
        raise AotpackError(
            "The optimizer of a bundle cannot be pickled or copied.",
            hint="Save its state_dict(), and make another: model.aotpack.optimizer().",
        )


class _Group:
    """A group of the bundle: its names, its options as Python's values, and which of them are numbers."""

    def __init__(self, described: schema.OptimizerGroup) -> None:
        self.names, self.conditions = described.parameters, described.numbers
        self.options = {name: _value(data) for name, data in described.options.items()}
        self._built = {name: _items(name, value) for name, value in self.options.items() if name not in KERNELS}
        self.first = {path: float(number.value) for path, number in described.first.items()}
        self._last: tuple[Any, dict[str, torch.Tensor]] = None, {}

    def has(self, option: str) -> bool:
        """Whether an option holds numbers."""
        return any(path.partition(".")[0] == option for path in self.conditions)

    def numbers(self, group: Mapping[str, Any], where: str, problems: list[Problem]) -> dict[str, float]:
        """The numbers of a group, by path. Adds to ``problems`` what has changed and is compiled in."""
        found: dict[str, float] = {}
        for name, built in self._built.items():
            value, at = group.get(name), f"{where}[{name!r}]"
            items = _items(name, value)
            differs = items.keys() != built.keys()
            for path, item in () if differs else items.items():
                condition, number = self.conditions.get(path), _as_number(item)
                if condition is None:
                    differs |= _differs(item, built[path])
                elif number is None:
                    problems.append(Problem(at, f"is {_shown(value)}, and no number"))
                else:
                    found[path] = number
                    if not condition.takes(number):
                        problems.append(Problem(at, f"is {value!r}; the step was compiled for {_range(condition)}"))
            if differs:
                problems.append(Problem(at, f"is {value!r}, the bundle was built for {self.options[name]!r}"))
        return found

    def tensors(self, numbers: dict[str, float], device: torch.device) -> dict[str, torch.Tensor]:
        """The numbers as the graphs take them."""
        if self._last[0] != (numbers, device):
            self._last = (numbers, device), _tensors(numbers, device)
        return self._last[1]


def _items(name: str, value: Any) -> dict[str, Any]:
    """An option by path: itself, or the items of a sequence."""
    return {f"{name}.{i}": item for i, item in enumerate(value)} if isinstance(value, (list, tuple)) else {name: value}


def _tensors(numbers: Mapping[str, float], device: torch.device) -> dict[str, torch.Tensor]:
    return {path: torch.tensor(value, dtype=torch.float64, device=device) for path, value in numbers.items()}


def _range(number: schema.OptimizerNumber) -> str:
    """The values of a number, for messages."""
    if number.minimum is not None and number.minimum == number.maximum:
        return f"{number.minimum:g} alone"
    limits = [f"values other than {', '.join(f'{value:g}' for value in number.excluded)}"] if number.excluded else []
    limits += [] if number.minimum is None else [f"at least {number.minimum:g}"]
    return " and ".join(limits + ([] if number.maximum is None else [f"at most {number.maximum:g}"]))


def _as_number(value: Any) -> float | None:
    """An option as a number; None if it is none."""
    if isinstance(value, torch.Tensor):
        return float(value.detach()) if value.numel() == 1 and not value.is_complex() and not value.is_meta else None
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _shown(value: Any) -> str:
    """A value for messages. Python does not write very large integers."""
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} that is too large"


def _differs(value: Any, built: Any) -> bool:
    """Whether an option is another than that of the build."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        value = value.item()
    return not isinstance(value, (bool, int, float, str, list, tuple, type(None))) or bool(value != built)


def _value(data: schema.Data) -> Any:
    """Plain data as Python's values."""
    if isinstance(data, schema.DataSequence):
        items: Sequence[Any] = [_value(item) for item in data.items]
        return tuple(items) if data.kind == "tuple" else items
    return float(data.value) if isinstance(data, schema.FloatArg) else data
