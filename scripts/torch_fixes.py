"""The register of torch fixes from the command line. It needs torch alone: the register's entries are data."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
FIXES = ROOT / "aotpack" / "_torch" / "fixes"


def load_register() -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules ``register``, ``sources`` and ``entries``, without the package around them, which needs a torch that fits."""
    spec = importlib.util.spec_from_file_location(
        "torch_fixes_register", FIXES / "__init__.py", submodule_search_locations=[str(FIXES)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)
    register, sources, entries = (importlib.import_module(f"{spec.name}.{name}") for name in ("register", "sources", "entries"))
    return register, sources, entries


REGISTER, SOURCES, ENTRIES = load_register()
MINOR = REGISTER.name_of(REGISTER.minor(str(torch.__version__)))


def names() -> list[str]:
    """Every patched name."""
    return sorted({name for entry in (*ENTRIES.FIXES, *ENTRIES.HOOKS) for name in entry.patches})


def record() -> None:
    """Write down what the patched names look like in this torch; names that nothing patches any more go."""
    known = json.loads(SOURCES.RECORD.read_text()) if SOURCES.RECORD.exists() else {}
    found = {name: {**known.get(name, {}), MINOR: SOURCES.fingerprint(name)} for name in names()}
    ordered = {name: dict(sorted(hashes.items(), key=lambda item: REGISTER.minor(item[0]))) for name, hashes in found.items()}
    SOURCES.RECORD.write_text(json.dumps(ordered, indent=1) + "\n")
    lacking = [name for name, hashes in found.items() if hashes[MINOR] is None]
    print(f"{len(found)} names recorded for torch {MINOR}; it lacks {len(lacking)}", *lacking, sep="\n  ")


def check() -> int:
    """Print the entries that do not fit this torch: against its own record, or the newest."""
    recorded, wrong = SOURCES.recorded(), 0
    for entry in (*ENTRIES.FIXES, *ENTRIES.HOOKS):
        for name in entry.patches:
            hashes = recorded.get(name, {})
            newest = MINOR if MINOR in hashes else max(hashes, key=REGISTER.minor, default="")
            if (found := SOURCES.fingerprint(name)) != hashes.get(newest):
                wrong += 1
                print(
                    f"{entry.id}: {name} {'has changed since' if found else 'is gone; it was there in'} {newest or 'no record'}"
                )
    print(f"torch {torch.__version__}: {wrong} names do not fit")
    return int(wrong > 0)


SEEN = ROOT / "docs" / "torch-fixes" / "seen.json"
PAGES = SEEN.parent
TAIL = """\
expected = run(f, args)
torch._dynamo.reset()
seen = run(torch.compile(f, backend="{backend}"{dynamic}), args)
print("expected", expected, "seen    ", seen, sep="\\n")
"""
RUN = {
    "infer": "def run(function, args):\n    with torch.no_grad():\n        return function(*args())\n",
    "train": """\
def run(function, args):
    given = args()
    results = [x for x in torch.utils._pytree.tree_leaves(function(*given)) if x.requires_grad]
    torch.autograd.backward(results, [torch.linspace(1, 2, x.numel()).view(x.shape).to(x) for x in results])
    return results, [x.grad for x in given if x.requires_grad]
""",
}


def snippet(fix: Any) -> str:
    """The program of a fix's upstream report: its case, and a comparison of ``torch.compile`` with eager."""
    text = (ROOT / fix.case).read_text()
    head = {line[2:].partition(":")[0]: line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("# ")}
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# ")).strip()
    backend = "inductor" if head.get("target") == "cpu" else "aot_eager"
    dynamic = ", dynamic=True" if "dynamic" in head else ""
    tail = TAIL.format(backend=backend, dynamic=dynamic)
    return f"{body}\n\n\n{RUN[head.get('method', 'infer')]}\n\n{tail}"


def run() -> None:
    """Run the snippets of all reports on this torch, and write down what they show."""
    known = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    for fix in ENTRIES.FIXES:
        if not (ROOT / fix.case).exists():
            continue
        source = "import torch\ntorch.set_printoptions(threshold=12, edgeitems=3)\n" + snippet(fix)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "snippet.py"
            file.write_text(source)
            done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=300, check=False)
        expected, _, seen = done.stdout.partition("seen    \n")
        error = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        found = {"expected": expected.removeprefix("expected\n").strip(), "seen": seen.strip() or error}
        known.setdefault(fix.id, {})[MINOR] = found
        print(f"{fix.id}: {'shows' if found['seen'] != found['expected'] else 'does not show'}", flush=True)
        SEEN.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def pages() -> dict[Path, str]:
    """The pages of docs about the fixes, by file: a table of all, and a report for each that has a case."""
    seen = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    found = {fix.id: _report(fix, seen.get(fix.id, {})) for fix in ENTRIES.FIXES if (ROOT / fix.case).exists()}
    made = {PAGES / f"{name}.md": text for name, text in found.items()}
    made[ROOT / "docs" / "torch-fixes.md"] = _table(seen)
    return made


def _report(fix: Any, seen: Mapping[str, Mapping[str, str]]) -> str:
    lines = [f"# {fix.id}", "", fix.summary, "", f"Severity: {fix.severity}. Upstream: {fix.upstream}.", ""]
    lines += ["```python", snippet(fix).rstrip(), "```", ""]
    for version, result in sorted(seen.items(), key=lambda item: REGISTER.minor(item[0])):
        if result["seen"] == result["expected"]:
            lines += [f"torch {version}: this program does not show the fault: {_WHY}", ""]
            continue
        lines += [f"torch {version}, expected:", "", "```text", _short(result["expected"]), "```", ""]
        lines += ["Seen:", "", "```text", _short(result["seen"]), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


_WHY = "it needs AOTInductor, other sizes, or looks at strides and memory."


def _short(text: str) -> str:
    lines = [line[:110].rstrip() for line in text.splitlines()]
    return "\n".join(lines[:12])


def _table(seen: Mapping[str, Any]) -> str:
    open_debt = sum(fix.upstream == "unreported" for fix in ENTRIES.FIXES)
    lines = [
        "# Fixes of torch",
        "",
        "A build corrects these faults of torch. The page is made by `scripts/torch-fixes docs` from the register in",
        "`aotpack/_torch/fixes`. Each fix has a case in `tests/torch_fixes`, which fails without it.",
        "",
        f"Entries: {len(ENTRIES.FIXES)}. Not reported to PyTorch yet: {open_debt}.",
        "Private names of torch that are used without a fault are hooks: " + f"{len(ENTRIES.HOOKS)}.",
        "",
        "| fix | what is wrong without it | severity | broken | fixed in | upstream | test |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fix in ENTRIES.FIXES:
        has_case = (ROOT / fix.case).exists()
        name = f"[{fix.id}](torch-fixes/{fix.id}.md)" if has_case else fix.id
        test = f"`{Path(fix.case).name}`" if has_case else "elsewhere"
        cells = (
            name,
            fix.summary.replace("|", "\\|"),
            fix.severity,
            ", ".join(fix.broken),
            fix.fixed_in or "",
            fix.upstream,
            test,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def docs() -> None:
    """Write the pages."""
    for file, text in pages().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for file in PAGES.glob("*.md"):
        if file not in pages():
            file.unlink()


COMMANDS = {"record": record, "check": check, "run": run, "docs": docs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    return COMMANDS[parser.parse_args().command]() or 0


if __name__ == "__main__":
    sys.exit(main())
