"""The weights of a frozen part: one copy in memory for all processes that train with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import aotpack

PROCESSES = 4
WIDTH = 512
STEP = """
import json, re, sys
import torch
import aotpack_loader

torch.set_num_threads(1)
model = aotpack_loader.load(sys.argv[1])
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for _ in range(2):
    model(torch.ones(4, int(sys.argv[2]))).square().sum().backward()
    optimizer.step()
print(flush=True)
sys.stdin.readline()  # until all have made their steps
found, inside = {}, False
for line in open("/proc/self/smaps"):
    if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
        inside = line.rstrip().endswith(sys.argv[1])
    elif inside and (field := re.match(r"(\\w+): +(\\d+) kB", line)):
        found[field[1]] = found.get(field[1], 0) + int(field[2]) * 1024
print(json.dumps(found), flush=True)
sys.stdin.readline()
"""


class Tuned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)]).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).relu())
        return out


def test_processes_share_the_weights_of_a_frozen_part(tmp_path: Path) -> None:
    model, out = Tuned(), tmp_path.resolve() / "tuned.aotpack"
    aotpack.build(model, (torch.ones(4, WIDTH),), out=out, targets=("portable",), methods=("train",))
    frozen, tuned = (sum(p.nbytes for p in part.parameters()) for part in (model.body, model.head))
    words = [sys.executable, "-I", "-c", STEP, str(out), str(WIDTH)]
    running = [
        subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
        answers = []
        for process in running:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline()))
    finally:
        for process in running:
            process.kill()
            process.communicate()
    page = 4096
    for found in answers:
        assert found["Rss"] >= frozen
        assert found["Private_Dirty"] <= tuned + 4 * page  # what the optimizer wrote
        assert found["Shared_Dirty"] == 0
    assert sum(found["Pss"] for found in answers) < 1.25 * frozen + PROCESSES * (tuned + 4 * page)
