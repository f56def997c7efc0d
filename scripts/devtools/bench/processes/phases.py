"""Measures the parts of the time of a bundle's start.

They are process start, import, open, verify, map, dlopen, the rest of load, and first call.

    phases.py --kind bundle --bundle m.aotpack --backend cpu --inputs inputs.pt --spawned SECONDS      (contender.py's options)

Prints seconds by phase. Functions of the loader are wrapped for it. If one calls another, the time
of the inner call counts only for the inner function.
"""

import json
import time

from aotpack.tools.measure import contender
from devtools.bench.processes.clock import Clock

PHASES = {
    "open": [("aotpack_loader.opening.from_record", "open_layout"), ("aotpack_loader.opening.record_files", "read")],
    "verify": [("aotpack_loader.archive.cache", "extracted")],
    "map": [("aotpack_loader.opening.from_record", "_tensors")],
    "dlopen": [("aotpack_loader.opening.from_record", "import_library"), ("aotpack_loader.opening.from_record", "_executable")],
}
"""Of a start from a record, as all but the first are."""


def main() -> None:
    options = contender.parse()
    begin = time.perf_counter()
    import torch

    torch_imported = time.perf_counter()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    args, kwargs = torch.load(options.inputs, weights_only=True)
    ready = time.perf_counter()
    from aotpack_loader import load

    import_loader = time.perf_counter() - ready
    clock = Clock(PHASES)
    start = time.perf_counter()
    model = load(options.bundle, backend=options.backend, trust=options.trust)
    loaded = time.perf_counter()
    loss = contender.loss_of(model(*args, **kwargs))
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    times = {
        "process start": begin - options.spawned,
        "import torch": torch_imported - begin,
        "import": import_loader,
        **clock.seconds,
        "rest of load": loaded - start - sum(clock.seconds.values()),
        "first forward": forward - loaded,
        "first backward": backward - forward,
    }
    print(json.dumps(times))


if __name__ == "__main__":
    main()
