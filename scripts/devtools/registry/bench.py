"""Push and pull of a bundle of sparse weights, against ``skopeo copy`` and a copy on the disk.

    python -m devtools.registry.bench [--gigabytes 4] [--out scripts/bench/results/registry.json]

Each program copies to and from a fresh registry on loopback. Ratios are ours over the other's; below 1 is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from aotpack.writer.bundle import BlobStore, TargetEntry, write_bundle
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import (
    DictNode,
    FreshResult,
    Graph,
    InputPrimal,
    LeafNode,
    Method,
    Mode,
    Node,
    Producer,
    Program,
    Requirements,
    Target,
    TensorLeaf,
    TensorValue,
    TupleNode,
    ValueRef,
    Version,
)

from ..paths import ROOT
from .server import serve

SHARDS = 4


def write_sparse(out: Path, gigabytes: float, shards: int = SHARDS) -> None:
    """Write an unpacked bundle of one method and weights that are holes."""
    value = TensorValue("float32", [4], [1])
    graph = Graph(["x"], [value], [Node("y", "aten.neg.default", [ValueRef("x")], value)], [ValueRef("y")])
    with BlobStore(f"{out}/") as store, tempfile.TemporaryDirectory(dir=out.parent) as folder:
        weights = []
        for shard in range(shards):
            size = int(gigabytes * 1e9 / shards) // 64 * 64
            header = json.dumps({f"w{shard}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
            header += b" " * (-(8 + len(header)) % 64)
            path = Path(folder) / f"{shard}"
            with open(path, "wb") as file:
                file.write(len(header).to_bytes(8, "little") + header)
                file.truncate(8 + len(header) + size)
            weights.append(store.add_file(path, media_types.WEIGHTS))
        blob = store.add_compressed(encode(graph), media_types.GRAPH)
        method = Method(
            serves=[Mode(training=False, grad=False)],
            inputs=TupleNode([TupleNode([LeafNode()]), DictNode([], [])]),
            leaves=[TensorLeaf("args[0]", "float32", [4])],
            outputs=LeafNode(),
            results=[FreshResult(0)],
            primals=[InputPrimal(0)],
            forward=blob,
            num_outputs=1,
        )
        program = Program(
            format=Version(1, 0),
            name="sparse",
            producer=Producer("bench", torch.__version__.partition("+")[0]),
            requirements=Requirements(">=2.9"),
            state=[],
            methods={"infer": method},
            weights=weights,
            training=False,
        )
        target = TargetEntry(Target("portable", "portable", "cpu"), None, [blob, *weights])
        write_bundle(f"{out}/", store, program, [target])


def seconds(words: list[str], **variables: str) -> float:
    """Run a command and return the time that it took."""
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **variables})
    return time.perf_counter() - start


def measure(folder: Path, gigabytes: float) -> dict[str, float]:
    """Return the times of all copies, in seconds."""
    bundle = folder / "bundle"
    write_sparse(bundle, gigabytes)
    aotpack = [sys.executable, "-m", "aotpack"]
    plain = ["--src-tls-verify=false", "--dest-tls-verify=false"]
    found = {}
    with serve(folder / "theirs") as host:
        name = f"docker://{host}/bench/sparse:v1"
        found["push, skopeo"] = seconds(["skopeo", "copy", "--all", *plain, f"oci:{bundle}", name])
        found["pull, skopeo"] = seconds(["skopeo", "copy", "--all", *plain, name, f"oci:{folder}/skopeo"])
    shutil.rmtree(folder / "theirs")
    shutil.rmtree(folder / "skopeo")
    with serve(folder / "ours") as host:
        name = f"oci://{host}/bench/sparse:v1"
        found["push, aotpack"] = seconds([*aotpack, "push", str(bundle), name])
        found["pull, aotpack"] = seconds([*aotpack, "pull", name], AOTPACK_CACHE=str(folder / "cache"))
        found["pull again, aotpack"] = seconds([*aotpack, "pull", name], AOTPACK_CACHE=str(folder / "cache"))
    shutil.rmtree(folder / "cache")
    shutil.rmtree(folder / "ours")
    copy = f"cp -r --sparse=never {bundle} {folder}/copy && sync {folder}/copy/blobs/sha256/*"
    found["copy on the disk"] = seconds(["sh", "-c", copy])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "scripts" / "bench" / "results" / "registry.json")
    parser.add_argument("--folder", type=Path, help="where to work; needs five times the size")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        times = measure(Path(folder), options.gigabytes)
    ratios = {
        "push / skopeo": times["push, aotpack"] / times["push, skopeo"],
        "pull / skopeo": times["pull, aotpack"] / times["pull, skopeo"],
        "pull / copy on the disk": times["pull, aotpack"] / times["copy on the disk"],
    }
    result = {
        "gigabytes": options.gigabytes,
        "cores": os.cpu_count(),
        "load before": os.getloadavg()[2],
        "seconds": {name: round(value, 2) for name, value in times.items()},
        "ratios": {name: round(value, 2) for name, value in ratios.items()},
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
