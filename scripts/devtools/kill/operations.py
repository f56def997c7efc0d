"""The operations that are killed, what must hold after a kill, and what must be left after the next run.

Each operation has a folder of its own, and runs in a forked process. ``check`` runs in the parent.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch

import aotpack_loader
from aotpack.pipeline.pipeline import build
from aotpack.registry.push import push
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.digest import PREFIX, sha256
from aotpack_loader.errors import BundleNotFoundError, RegistryNotFoundError
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference


class Model(torch.nn.Module):
    """A small model to train."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def model() -> Model:
    torch.manual_seed(0)
    return Model()


EXAMPLE = torch.ones(2, 4)


class Operation:
    """One kind of operation. ``prepare`` draws its next variant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.file_operations = 0
        """How many operations on files a run took that was not killed."""

    def prepare(self, draw: random.Random) -> None:
        """Draw a variant, and bring about what is there before it."""
        raise NotImplementedError

    def run(self) -> None:
        """Do it, in the process that may be killed. Raises if something is wrong."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise if something half-written is taken for whole. Runs after a kill."""
        raise NotImplementedError

    def expected(self) -> set[str]:
        """Return what the folder holds after a run that was not killed: all names below it."""
        raise NotImplementedError

    def left(self) -> set[str]:
        """Return what the folder holds."""
        return names(self.folder)


class Build(Operation):
    """Builds a bundle for ``portable``: a file or a directory, over an older bundle or not, with or without a self-test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._digests: set[str] = set()
        self._old = [_built(folder.parent / "old.aotpack", "old"), _built(folder.parent / "old", "old")]
        for self_test in (False, True):
            path = folder.parent / f"new{self_test}.aotpack"
            _built(path, "new", self_test=self_test)
        for path in (*self._old, *folder.parent.glob("new*.aotpack")):
            with Bundle.open(path) as bundle:
                self._digests.add(bundle.digest)

    def prepare(self, draw: random.Random) -> None:
        clear(self.folder)
        self._directory, self._self_test = draw.random() < 0.5, draw.random() < 0.3
        self._out = self.folder / "out"
        if draw.random() < 0.5:
            copy = shutil.copytree if self._directory else shutil.copyfile
            copy(self._old[self._directory], self._out)

    def run(self) -> None:
        _built(self._out, "new", self_test=self._self_test, directory=self._directory)

    def check(self) -> None:
        try:
            with Bundle.open(self._out) as bundle:
                bundle.verify()
                assert bundle.digest in self._digests
        except BundleNotFoundError:
            pass

    def expected(self) -> set[str]:
        return {name for name in names(self.folder) if name.partition("/")[0] == "out" and "tmp" not in name}


class Push(Operation):
    """Pushes a bundle to a new repository. The registry mounts nothing, so all blobs are sent."""

    def __init__(self, folder: Path, host: str, bundle: Path) -> None:
        super().__init__(folder)
        self._host, self._bundle = host, bundle
        self._turn = 0

    def prepare(self, draw: random.Random) -> None:
        self._turn += 1
        self._reference = Reference.parse(f"oci://{self._host}/push/{self._turn}-{draw.getrandbits(32):08x}:v1")

    def run(self) -> None:
        push(self._bundle, self._reference)

    def check(self) -> None:
        os.environ["AOTPACK_CACHE"] = str(self.folder / "cache")
        try:
            with Bundle.open(pull(self._reference, by_name(())).path) as bundle:
                bundle.verify()
        except RegistryNotFoundError:
            pass
        finally:
            shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def expected(self) -> set[str]:
        return set()


class Pull(Operation):
    """Pulls a bundle to the cache, and in two of three turns to a file or directory."""

    def __init__(self, folder: Path, reference: Reference, digest: str) -> None:
        super().__init__(folder)
        self._reference, self._digest = reference, digest
        self._cache, self._outputs = folder / "cache", folder / "out"
        self._out: str | None = None

    def prepare(self, draw: random.Random) -> None:
        if draw.random() < 0.9:
            clear(self.folder)
        self._outputs.mkdir(exist_ok=True)
        self._out = draw.choice([None, f"{self._outputs}/file", f"{self._outputs}/directory/"])

    def run(self) -> None:
        os.environ["AOTPACK_CACHE"] = str(self._cache)
        pull(self._reference, by_name(()), out=self._out)

    def check(self) -> None:
        for path in (self._cache / "registry" / "bundles" / self._digest[len(PREFIX) :], *self._outputs.glob("[!.]*")):
            if not (path / "index.json").exists() and not path.is_file():
                continue  # a pull that is not complete has no bundle in the cache
            with Bundle.open(path) as bundle:
                assert bundle.digest == self._digest
                for descriptor in filter(bundle.has, bundle.descriptors()):
                    bundle.read(descriptor)
                if path.parent == self._outputs:
                    bundle.verify()
        _check_named_by_digest(self._cache / "registry" / "blobs" / "sha256")

    def expected(self) -> set[str]:
        return {name for name in self.left() if not hidden(name) and "/partial/" not in name}


class Load(Operation):
    """Loads a bundle with native code, from a file or a registry, and runs one training step."""

    def __init__(self, folder: Path, sources: list[str]) -> None:
        super().__init__(folder)
        self._sources = sources
        self._expected = model()(EXAMPLE).sum().item()

    def prepare(self, draw: random.Random) -> None:
        if draw.random() < 0.8:
            clear(self.folder)
        self._source = draw.choice(self._sources)

    def run(self) -> None:
        os.environ["AOTPACK_CACHE"] = str(self.folder / "cache")
        loaded = aotpack_loader.load(self._source, trust="all")
        assert loaded.aotpack.backend.startswith("cpu")
        loss = loaded(EXAMPLE).sum()
        loss.backward()
        assert abs(loss.item() - self._expected) < 1e-5

    def check(self) -> None:
        _check_named_by_digest(self.folder / "cache" / "code" / "sha256")
        _check_named_by_digest(self.folder / "cache" / "registry" / "blobs" / "sha256")

    def expected(self) -> set[str]:
        return {name for name in self.left() if not hidden(name) and "/partial/" not in name}


class Train(Operation):
    """Trains to the end, from a checkpoint of an earlier run or from nothing. The checkpoints are written here or in a thread."""

    STEPS, EVERY = 40, 4

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._bundle, self._asynchronous = folder.parent / "trained.aotpack", False
        torch.manual_seed(0)
        options: dict[str, Any] = {"targets": ("portable",), "methods": ["train"], "optimizer": _optimizer}
        build(Noisy(), (torch.randn(8, 4),), out=self._bundle, **options)
        self._half, self._whole = folder.parent / "half", folder.parent / "whole"
        self._train(self._half, self.STEPS // 2)
        self._train(self._whole, self.STEPS)

    def prepare(self, draw: random.Random) -> None:
        clear(self.folder)
        self._asynchronous = draw.random() < 0.5
        if draw.random() < 0.5:
            shutil.copytree(self._half, self.folder / "run")

    def run(self) -> None:
        self._train(self.folder / "run", self.STEPS)

    def _train(self, folder: Path, steps: int) -> None:
        folder.mkdir(exist_ok=True)
        path = folder / "checkpoint"
        torch.manual_seed(0)
        random.seed(0)
        model = aotpack_loader.load(self._bundle)
        optimizer = model.aotpack.optimizer()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=self.STEPS + 1)
        objects: dict[str, Any] = {"optimizer": optimizer, "scheduler": scheduler}
        step = model.aotpack.load_checkpoint(path, **objects).step if path.exists() else 0
        while step < steps:
            model(torch.randn(8, 4) + random.random()).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            if step % self.EVERY == 0 and step < steps:
                model.aotpack.save_checkpoint(path, **objects, step=step, asynchronous=self._asynchronous)
        # Also where an earlier run was killed after its last save, and left a folder.
        model.aotpack.save_checkpoint(path, **objects, step=step, asynchronous=self._asynchronous).wait()

    def check(self) -> None:
        path = self.folder / "run" / "checkpoint"
        if not path.exists():
            return
        model = aotpack_loader.load(self._bundle)
        step = model.aotpack.load_checkpoint(path).step
        assert step % self.EVERY == 0
        if step == self.STEPS:
            whole = self._whole / "checkpoint"
            assert names(path) == names(whole)
            assert [name for name in names(path) if (path / name).read_bytes() != (whole / name).read_bytes()] == []

    def expected(self) -> set[str]:
        return {"run", "run/checkpoint"} | {f"run/checkpoint/{name}" for name in names(self._whole / "checkpoint")}


class Noisy(torch.nn.Module):
    """A model that draws numbers, and whose calls write to buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(self.norm(self.first(x)).relu(), 0.3)
        return (self.last(y) - x).square().mean()


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _built(path: Path, name: str, *, self_test: bool = False, directory: bool = False) -> Path:
    layout = "directory" if directory or (not path.suffix and path.name == "old") else "file"
    with torch.no_grad():  # one method, so that a build takes a fraction of a second
        options: dict[str, Any] = {"targets": ("portable",), "methods": ["infer"], "self_test": self_test, "layout": layout}
        build(model().eval(), (EXAMPLE,), out=path, name=name, **options)
    return path


def _check_named_by_digest(folder: Path) -> None:
    """Check that each file without a hidden name has the digest that its name says."""
    for path in folder.glob("[!.]*") if folder.is_dir() else ():
        if path.is_file():
            assert sha256(path.read_bytes()) == PREFIX + path.stem, path


def names(folder: Path) -> set[str]:
    """Return the relative names of all files and directories below ``folder``."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def clear(folder: Path) -> None:
    """Remove what is in ``folder``."""
    shutil.rmtree(folder)
    folder.mkdir()
