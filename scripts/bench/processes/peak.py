"""Runs a Python command and says how much memory it took: the most of any of its processes, in bytes.

peak.py -m aotpack.cli build ...        prints {"peak_bytes": ..., "output": what the command printed}
"""

import json
import resource
import subprocess
import sys


def main() -> None:
    done = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    print(json.dumps({"peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, "output": done.stdout}))


if __name__ == "__main__":
    main()
