"""Sends manifests and indexes to a repository."""

from __future__ import annotations

from dataclasses import replace

from aotpack_loader.errors import RegistryError
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.registry.client import Repository


def put_manifest(repository: Repository, descriptor: Descriptor, data: bytes, tag: str = "") -> str:
    """Send a manifest or index, under its digest or a tag. Returns the ``OCI-Subject`` of the answer, where it has one.

    Raises:
        RegistryError: the registry refused it, or stored it under another digest.
    """
    transport = repository.transport
    headers = {"Content-Type": descriptor.media_type, "Content-Length": str(len(data))}
    path = f"manifests/{tag or descriptor.digest}"
    request = replace(
        repository.request("PUT", path, what=f"the manifest {descriptor.digest}", headers=headers), body=lambda: [data]
    )
    answer = transport.fetch(request)
    if answer.status not in (201, 202):
        raise transport.failure(request, answer)
    named = answer.headers.get("Docker-Content-Digest", descriptor.digest)
    if named != descriptor.digest:
        raise RegistryError(f"{repository.host} stored the manifest {descriptor.digest} under {named}.")
    return answer.headers.get("OCI-Subject", "")
