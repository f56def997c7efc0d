"""The memory of this process in bytes, as the kernel counts it."""

import re
from collections import Counter
from pathlib import Path

_FIELD = re.compile(r"(\w+): +(\d+) kB")
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")


def of_process() -> Counter[str]:
    """Fields of ``/proc/self/smaps_rollup``."""
    return _fields(Path("/proc/self/smaps_rollup").read_text().splitlines())


def of_file(path: str) -> Counter[str]:
    """Fields of ``/proc/self/smaps``, summed over the mappings of the file at ``path``."""
    wanted, name = [], str(Path(path).resolve())
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if _MAPPING.match(line):
            inside = line.endswith(name)
        elif inside:
            wanted.append(line)
    return _fields(wanted)


def status(key: str) -> int:
    """A field of ``/proc/self/status``: ``VmRSS``, ``VmHWM``."""
    found = dict(_FIELD.findall(re.sub(r":\s+", ": ", Path("/proc/self/status").read_text())))
    return int(found[key]) * 1024


def _fields(lines: list[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in lines:
        if match := _FIELD.match(line):
            found[match[1]] += int(match[2]) * 1024
    return found
