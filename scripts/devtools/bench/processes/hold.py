"""Loads a bundle, runs an inference and reports its memory, while other processes do the same.

The inference reads the weights.

    hold.py m.aotpack inputs.pt

It prints answers as lines of JSON. Each answer but the first waits for a line on standard input.
"""

import json
import sys
import time

import torch

from aotpack_loader import load
from devtools.bench.processes.mapped import of_file, of_process


def main() -> None:
    path, inputs = sys.argv[1:]
    torch.set_num_threads(1)
    args, kwargs = torch.load(inputs, weights_only=True)
    begin = time.perf_counter()
    model = load(path, backend="cpu")
    loaded = time.perf_counter() - begin
    model.eval()
    with torch.no_grad():
        model(*args, **kwargs)
    weights = sum({id(value): value.nbytes for value in model.state_dict(keep_vars=True).values()}.values())
    print(json.dumps({"load_seconds": loaded, "weights_bytes": weights}), flush=True)
    sys.stdin.readline()
    ours, whole = of_file(path), of_process()
    answer = {f"weights_{key.lower()}_bytes": ours[key] for key in ("Pss", "Rss", "Private_Dirty")}
    answer |= {f"process_{key.lower()}_bytes": whole[key] for key in ("Pss", "Rss", "Private_Dirty")}
    print(json.dumps(answer), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
