"""Results as tables: on the screen, and in the README."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from rich.table import Table
from roll import ARCHITECTURES
from run import Entry, Line, entries

README = Path(__file__).resolve().parent.parent.parent / "README.md"
MARKS = ("<!-- zoo:begin -->", "<!-- zoo:end -->")


def one_line(entry: Entry, line: Line) -> str:
    """What became of an entry."""
    if line["status"] != "passed":
        return f"{entry}: {line['status']}: {line['reason']}"
    seconds = f"built in {line['build_seconds']['total']:.1f} s, {line['front_end']} front end"
    return f"{entry}: passed, gradients to {line['errors']['gradients']:.1e}, {seconds}"


def screen(lines: Mapping[Entry, Line], chosen: Collection[Entry]) -> Table:
    """A row an entry."""
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


def markdown(lines: Mapping[Entry, Line]) -> str:
    """A row an architecture; the largest relative error of any gradient, or the number of a reason below the table."""
    reasons: list[str] = []
    rows = [
        "| model | parameters | random | front end | `portable` | `portable`, dynamic batch | `cpu` | `cpu` build | bundle |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for item in ARCHITECTURES.values():
        variants = [lines.get(Entry(item.name, *key)) for key in (("portable", False), ("portable", True), ("cpu", False))]
        known: Line = {key: value for line in variants[::-1] for key, value in (line or {}).items()}
        if not known:
            continue
        native = variants[2] or {}
        cells = [
            item.title,
            f"{known['parameters']:,}" if "parameters" in known else "",
            "yes" if known.get("draws") else "",
            known.get("front_end", ""),
            *(_error(item.title, line, reasons) for line in variants),
            f"{native['build_seconds']['total']:.0f} s" if "build_seconds" in native else "",
            _size(known),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, "", *_notes(lines), *(["", *_numbered(reasons)] if reasons else [])])


def _notes(lines: Mapping[Entry, Line]) -> list[str]:
    passed = [entry for entry, line in lines.items() if line["status"] == "passed"]
    names = {entry.name for entry in lines}
    whole = names - {entry.name for entry in lines if entry not in passed}
    torch = sorted({f"torch {line['torch']}" for line in lines.values() if "torch" in line})
    packages = sorted({line["package"] for line in lines.values() if "package" in line})
    earlier = ["`cpu` figures are of an earlier run, with dropout off."] * any("draws" not in line for line in lines.values())
    absent = sum(entry not in lines for entry in entries())
    return [
        f"{len(passed)} of {len(lines)} entries passed, {len(whole)} of {len(names)} architectures in all that was run of them"
        + (f"; {absent} entries (blank) were not run yet" if absent else "")
        + f". {', '.join(torch + packages)}.",
        "A figure is the largest relative error of any gradient; *random*: a training step draws random numbers.",
        *earlier,
    ]


def _numbered(reasons: list[str]) -> list[str]:
    return [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]


def _error(title: str, line: Line | None, reasons: list[str]) -> str:
    if line is None:
        return ""
    if line["status"] == "passed":
        return f"{line['errors']['gradients']:.0e}" if line["errors"]["gradients"] else "0"
    reason = f"{title}, {line['target']}: {line['reason']}"
    if reason not in reasons:
        reasons.append(reason)
    return f"failed ({reasons.index(reason) + 1})"


def update_readme(text: str) -> None:
    """Put ``text`` between the README's marks, if it has them."""
    readme = README.read_text() if README.exists() else ""
    begin, end = (readme.find(mark) for mark in MARKS)
    if 0 <= begin < end:
        README.write_text(f"{readme[:begin]}{MARKS[0]}\n{text}\n{readme[end:]}")
