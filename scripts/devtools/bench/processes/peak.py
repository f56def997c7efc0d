"""Runs a Python command and says what it took: the memory of its largest process in bytes, the processor time of all in seconds.

    peak.py -m aotpack.cli build ...

prints ``{"peak_bytes": ..., "cpu_seconds": ..., "output": what the command printed}``.
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
