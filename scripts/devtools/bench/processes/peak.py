"""Runs a Python command and measures it: its largest process's memory in bytes, all processor time in seconds.

    peak.py -m aotpack.tools.cli build ...

prints ``{"peak_bytes": ..., "cpu_seconds": ..., "output": the command's output}``.
"""

import json
import resource
import subprocess
import sys


def main() -> None:
    done = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = {"peak_bytes": used.ru_maxrss * 1024, "cpu_seconds": used.ru_utime + used.ru_stime}
    print(json.dumps({**took, "output": done.stdout}))


if __name__ == "__main__":
    main()
