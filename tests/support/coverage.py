"""Finds which parts of the format's schema occur in documents: properties, arms of unions, words of enumerations.

Documents do not store defaults. An optional property therefore counts as present only with another
value than its default. A default word or arm counts as seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = Any

_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class SchemaCoverage:
    """Walks documents along their schema and records what occurs.

    Args:
        definitions: the ``$defs`` of the JSON Schema.
    """

    def __init__(self, definitions: Json) -> None:
        self._definitions = definitions
        self._unions: dict[frozenset[str], str] = {}
        self.seen: set[str] = set()
        self.everything = {item for name in definitions for item in self._of_node(definitions[name], name, None)}

    def see(self, name: str, document: Json) -> None:
        """Record the contents of a document of type ``name``."""
        self._see(self._definitions[name], document, name, None)

    def _of_node(self, node: Json, where: str, union: str | None) -> Iterator[str]:
        """Everything that can occur in ``node``. ``union``: the node is an array arm of this union."""
        for key, child in node.get("properties", {}).items():
            if not _is_tag(child):
                yield f"{where}.{key}"
                yield from self._of_node(child, f"{where}.{key}", None)
        for child in (node.get("items"), node.get("additionalProperties")):
            if isinstance(child, dict):
                yield from self._of_node(child, where, union)
        yield from (f"{_enumeration(node)}: {word}" for word in _words(node) if word != node.get("default"))
        arms = _arms(node)
        name = self._name(arms, where, union)
        for arm, content in arms.items():
            if len(arms) > 1 and not (arm == "null" and "default" in node):
                yield f"{name}: {arm}"
            if content is not node:
                yield from self._of_node(content, where, name)

    def _see(self, node: Json, value: Json, where: str, union: str | None) -> None:
        if "$ref" in node:
            where, union = node["$ref"].rpartition("/")[2], None
            node = self._definitions[where]
        if "anyOf" in node:
            arms = _arms(node)
            name = self._name(arms, where, union)
            arm = next(arm for arm, content in arms.items() if self._fits(content, value))
            self.seen |= {f"{name}: {arm}"} if len(arms) > 1 else set()
            self._see(arms[arm], value, where, name)
            return
        if len(_words(node)) > 1:
            self.seen.add(f"{_enumeration(node)}: {value}")
        for item in value if isinstance(value, list) else ():
            self._see(node["items"], item, where, union)
        if isinstance(value, dict):
            self._see_members(node, value, where, union)

    def _see_members(self, node: Json, value: Json, where: str, union: str | None) -> None:
        known, others = node.get("properties", {}), node.get("additionalProperties")
        for key, item in value.items():
            if key in known and not _is_tag(known[key]):
                self.seen.add(f"{where}.{key}")
                self._see(known[key], item, f"{where}.{key}", None)
            elif key not in known and isinstance(others, dict):
                self._see(others, item, where, union)

    def _name(self, arms: Json, where: str, union: str | None) -> str:
        """The name of a union: the first property that has it. Inside an array arm it is the enclosing union's name.

        A size or an expression has a meaning of its own in each place, so its union has the name of the place.
        """
        if not union and arms.keys() <= {"integer", "string", "null"}:
            return where
        return union or self._unions.setdefault(frozenset(arms), where)

    def _fits(self, arm: Json, value: Json) -> bool:
        if "$ref" in arm:
            properties = self._definitions[arm["$ref"].rpartition("/")[2]]["properties"]
            tag = properties.get("type", {})
            return isinstance(value, dict) and (not _is_tag(tag) or value.get("type") in tag["enum"])
        if "enum" in arm:
            return value in arm["enum"]
        kind = _KINDS[type(value)]
        return bool(arm.get("type") == kind) or (arm.get("type") == "number" and kind == "integer")


def _arms(node: Json) -> dict[str, Json]:
    """The arms of a union by name, including those of nested unions. A node that is not a union is its only arm."""
    if "anyOf" not in node:
        return {_arm_name(node): node}
    return {name: arm for child in node["anyOf"] for name, arm in _arms(child).items()}


def _arm_name(node: Json) -> str:
    if "$ref" in node:
        return str(node["$ref"].rpartition("/")[2])
    return "word" if "enum" in node else str(node.get("type", "anything"))


def _is_tag(node: Json) -> bool:
    return len(node.get("enum", ())) == 1


def _words(node: Json) -> list[Json]:
    return [] if _is_tag(node) else list(node.get("enum", ()))


def _enumeration(node: Json) -> str:
    words = list(map(str, node["enum"]))
    return "/".join(words) if len(words) < 6 else f"{'/'.join(words[:3])}/…"
