"""Kills pushes and pulls (SIGKILL) at random points, and checks that nothing half-written is taken for whole.

    python -m devtools.registry.kill [--times 1000] [--out scripts/bench/results/registry_kill.json]

After each kill of a pull the cached bundle is opened and hashed if it is there. After each kill of a push the tag is
either absent or names a whole bundle. Every tenth time the next run must succeed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aotpack.registry.push import push
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError, RegistryNotFoundError
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.store import BlobCache

from ..paths import ROOT
from .bench import write_sparse
from .server import serve

CHILD = {
    "push": """
import sys
from aotpack.registry.push import push
from aotpack_loader.registry.reference import Reference
print(flush=True)
push(sys.argv[1], Reference.parse(sys.argv[2]))
""",
    "pull": """
import sys
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference
print(flush=True)
pull(Reference.parse(sys.argv[2]), by_name(()))
""",
}


def killed(kind: str, bundle: Path, name: str, longest: float) -> bool:
    """Run a push or pull and kill it within ``longest`` seconds. Returns whether it was still at work."""
    words = [sys.executable, "-c", CHILD[kind], str(bundle), name]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # imports are over
        time.sleep(random.uniform(0, longest))
        alive = process.poll() is None
        process.kill()
    return alive


def whole(path: Path) -> bool:
    """Whether a bundle is there. One that opens must be whole, or lack layers, but have no wrong one."""
    try:
        with Bundle.open(path) as bundle:
            present = [descriptor for descriptor in bundle.descriptors() if bundle.has(descriptor)]
            for descriptor in present:
                bundle.read(descriptor)
            return len(present) == len(bundle.descriptors())
    except FileNotFoundError:
        return False


def run(folder: Path, times: int, seed: int) -> dict[str, int]:
    random.seed(seed)
    bundle = folder / "bundle"
    write_sparse(bundle, 0.064)
    found = {"pulls killed": 0, "pushes killed": 0, "whole after a killed pull": 0, "tagged after a killed push": 0, "wrong": 0}
    os.environ["AOTPACK_CACHE"] = str(folder / "cache")
    with serve(folder / "registry") as host:
        ready = Reference.parse(f"oci://{host}/kill/ready:v1")
        digest = push(bundle, ready).digest
        cached = BlobCache().bundle(digest)
        for turn in range(times):
            found["pulls killed"] += killed("pull", bundle, str(ready), 0.5)
            try:
                found["whole after a killed pull"] += whole(cached)
            except AotpackError as error:
                print(error)
                found["wrong"] += 1
            target = Reference.parse(f"oci://{host}/kill/push{turn}:v1")
            found["pushes killed"] += killed("push", bundle, str(target), 0.5)
            os.environ["AOTPACK_CACHE"] = str(folder / f"other{turn}")
            try:
                with Bundle.open(pull(target, by_name(())).path) as other:
                    other.verify()
                found["tagged after a killed push"] += 1
            except RegistryNotFoundError:
                if turn % 10 == 9:
                    assert push(bundle, target).digest == digest
            finally:
                subprocess.run(["rm", "-rf", str(folder / f"other{turn}")], check=True)
                os.environ["AOTPACK_CACHE"] = str(folder / "cache")
            if turn % 10 == 9:
                with Bundle.open(pull(ready, by_name(())).path) as opened:
                    opened.verify()
                subprocess.run(["rm", "-rf", str(folder / "cache")], check=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "scripts" / "bench" / "results" / "registry_kill.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), options.times, options.seed)
    result = {"times": options.times, "seed": options.seed, **found}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()
