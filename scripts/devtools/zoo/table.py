"""Formats results as tables, for the screen and for the page of the documentation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from rich.table import Table

from devtools.pages import replace
from devtools.paths import ROOT
from devtools.zoo.roll import ARCHITECTURES
from devtools.zoo.run import VARIANTS, Entry, Line

PAGE = ROOT / "docs" / "model-zoo.md"


def one_line(entry: Entry, line: Line) -> str:
    """The result of an entry in one line."""
    if line["status"] != "passed":
        return f"{entry}: {line['status']}: {line['reason']}"
    seconds = f"built in {line['build_seconds']['total']:.1f} s, {line['front_end']} front end"
    return f"{entry}: passed, gradients to {line['errors']['gradients']:.1e}, {seconds}"


def screen(lines: Mapping[Entry, Line], chosen: Collection[Entry]) -> Table:
    """A table with a row for each entry."""
    table = Table("entry", "status", "front end", box=None, pad_edge=False)
    for name in ("build", "bundle", "load", "first step", "loss", "gradients", "buffers"):
        table.add_column(name, justify="right")
    for entry in chosen:
        line = lines[entry]
        failed = line["status"] != "passed"
        table.add_row(str(entry), line["status"], line.get("front_end", ""), *_figures(line), style="red" * failed)
    return table


def _figures(line: Line) -> list[str]:
    errors = line.get("errors", {})
    seconds = line.get("build_seconds", {}).get("total")
    times = [line.get("load_seconds"), line.get("first_step_seconds")]
    return [
        "" if seconds is None else f"{seconds:.1f} s",
        _size(line),
        *("" if value is None else f"{value * 1e3:.1f} ms" for value in times),
        *("" if not errors else "differs" if errors[k] is None else f"{errors[k]:.1e}" for k in ("loss", "gradients", "buffers")),
    ]


def _size(line: Line) -> str:
    return f"{line['bundle_bytes'] / 1e6:.2f} MB" if "bundle_bytes" in line else ""


class Notes:
    """Numbered notes below a table, each text once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        """The mark for ``text`` in a cell; empty without a text."""
        if text and text not in self.texts:
            self.texts.append(text)
        return f" ({self.texts.index(text) + 1})" if text else ""

    def lines(self) -> list[str]:
        return [f"{number}. {text}" for number, text in enumerate(self.texts, 1)]


def markdown(lines: Mapping[Entry, Line]) -> str:
    """A row for each architecture, with the largest relative error of its gradients. Notes are below the table."""
    notes = Notes()
    rows = [
        f"| model | parameters | random | front end | {' | '.join(VARIANTS)} | `cpu` build | bundle |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for item in ARCHITECTURES.values():
        variants = [lines.get(Entry(item.name, *key)) for key in VARIANTS.values()]
        known: Line = {key: value for line in variants[::-1] for key, value in (line or {}).items()}
        if not known:
            continue
        native = variants[-1] or {}
        cells = [
            item.title + notes.mark(item.note),
            f"{known['parameters']:,}" if "parameters" in known else "",
            "yes" if known.get("draws") else "",
            _front_ends(item.title, [line for line in variants if line], notes),
            *(_error(item.title, line, notes) for line in variants),
            f"{native['build_seconds']['total']:.0f} s" if "build_seconds" in native else "",
            _size(known),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, "", *_legend(lines), "", *notes.lines()])


def summary(lines: Mapping[Entry, Line]) -> str:
    """A row for each variant, with the number of architectures that pass, fail and were not run."""
    rows = ["| | passed | failed | not run |", "| --- | ---: | ---: | ---: |"]
    for name, key in VARIANTS.items():
        statuses = Counter(lines.get(Entry(item, *key), {}).get("status", "not run") for item in ARCHITECTURES)
        rows.append(f"| {name} | {statuses['passed']} | {statuses['failed']} | {statuses['not run']} |")
    return "\n".join([*rows, *_earlier(lines)])


def _legend(lines: Mapping[Entry, Line]) -> list[str]:
    versions = {f"torch {line['torch']}" for line in lines.values() if "torch" in line}
    versions |= {line["package"] for line in lines.values() if "package" in line}
    return [
        f"{', '.join(sorted(versions))}. A figure is the largest relative error of any gradient; blank: not run. *random*: a "
        "training step draws random numbers. *build*: seconds on a machine busy with other work, as an indication only.",
        _measured(lines),
        *_earlier(lines),
    ]


def _measured(lines: Mapping[Entry, Line]) -> str:
    days = sorted(line["date"].split()[0] for line in lines.values() if "date" in line)
    trees = sorted({line["tree"] for line in lines.values() if line.get("tree")})
    named = f", tree {trees[0]}" if len(trees) == 1 else f", on {len(trees)} trees that zoo.json names" * bool(trees)
    return f"Measured {days[0]} to {days[-1]}{named}." if days else ""


def _earlier(lines: Mapping[Entry, Line]) -> list[str]:
    """A paragraph on results from runs with dropout off, if there are any."""
    earlier = [str(entry) for entry, line in lines.items() if line["status"] == "passed" and "draws" not in line]
    return ["", f"Of an earlier run, with dropout off: {', '.join(earlier)}."] if earlier else []


def _front_ends(title: str, lines: Collection[Line], notes: Notes) -> str:
    """The front ends that traced it, and why Dynamo's refused if another was used."""
    found = {line["front_end"]: line["warnings"] for line in lines if "front_end" in line}
    refused = [
        text for warnings in found.values() for text in warnings if text.startswith("the dynamo front end refused 'train'")
    ]
    return ", ".join(found) + notes.mark(f"{title}: {_shortened(refused[0])}" if refused else "")


def _shortened(warning: str) -> str:
    """A refusal's first line, and the source line of the model that it names."""
    message, _, line = warning.partition(" [at ")
    line = line.removesuffix("]").partition(", called from ")[0].rpartition("site-packages/")[2].removeprefix(f"{ROOT}/")
    return message.splitlines()[0] + f" (`{line}`)" * bool(line)


def _error(title: str, line: Line | None, notes: Notes) -> str:
    if line is None:
        return ""
    if line["status"] != "passed":
        return "failed" + notes.mark(f"{title}, {line['target']}{', dynamic batch' * line['dynamic']}: {line['reason']}")
    found = f"{line['errors']['gradients']:.0e}" if line["errors"]["gradients"] else "0"
    return found + notes.mark(_in_double(line["moved_by_rounding"]) if "moved_by_rounding" in line else "")


def _in_double(moved: float) -> str:
    bound = 10 ** math.floor(math.log10(moved))
    return (
        "In float64. In float32 eager is no measure: when its inputs move by a rounding, its gradients move by more than "
        f"{bound:g} of the largest."
    )


def update_pages(lines: Mapping[Entry, Line]) -> None:
    """Write the table and the counts to their page."""
    replace(PAGE, "zoo", markdown(lines))
    replace(PAGE, "zoo-counts", summary(lines))
