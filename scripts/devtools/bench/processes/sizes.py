"""The bytes of a bundle by kind of blob, each counted once. Graphs, code and HLO are also counted uncompressed.

sizes.py m.aotpack
"""

import json
import sys
from collections import Counter
from pathlib import Path

from aotpack_loader.archive.bundle import Bundle, raw_size
from aotpack_loader.format import media_types, subgraphs

KINDS = {media_types.WEIGHTS: "weights", media_types.GRAPH: "graphs", media_types.CODE_AOTI: "code", media_types.CODE_HLO: "HLO"}


def main() -> None:
    path = Path(sys.argv[1])
    sizes: Counter[str] = Counter(bundle=path.stat().st_size)
    with Bundle.open(path) as bundle:
        for descriptor in bundle.descriptors():
            kind = KINDS.get(descriptor.media_type, "documents")
            sizes[kind] += descriptor.size
            if kind in ("graphs", "code", "HLO"):
                sizes[f"{kind}, uncompressed"] += raw_size(descriptor)
        graphs = [found for found in bundle.descriptors() if found.media_type == media_types.GRAPH]
        sizes["nodes"] = sum(sum(1 for _ in subgraphs.all_nodes(bundle.graph(graph))) for graph in graphs)
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
