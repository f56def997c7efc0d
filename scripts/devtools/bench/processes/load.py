"""Loads a bundle and calls it once without gradients. Measures seconds, and the increase of the resident set in bytes.

load.py m.aotpack inputs.pt
"""

import json
import sys
import time

import torch

from aotpack_loader import load
from devtools.bench.processes.mapped import status


def main() -> None:
    path, inputs = sys.argv[1:]
    args, kwargs = torch.load(inputs, weights_only=True)
    before = status("VmRSS")
    begin = time.perf_counter()
    model = load(path, backend="portable")
    loaded, resident = time.perf_counter(), status("VmRSS")
    model.eval()
    called_from = time.perf_counter()
    with torch.no_grad():
        model(*args, **kwargs)
    called = time.perf_counter()
    print(
        json.dumps(
            {
                "load_seconds": loaded - begin,
                "first_call_seconds": called - called_from,
                "resident_bytes": resident - before,
                "resident_after_call_bytes": status("VmRSS") - before,
            }
        )
    )


if __name__ == "__main__":
    main()
