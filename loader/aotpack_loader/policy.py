"""Policies: files that say which bundles a machine loads, by where they come from and which keys signed them.

``AOTPACK_POLICY`` and the argument ``policy`` of a load name one each; both apply. A policy is asked
before anything of a bundle runs, also before its portable graphs. It permits native code of what an
accepted key signed. It does not replace what the caller said with ``trust``.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from .archive.digest import is_digest
from .errors import PolicyError, Problem
from .options import LoadOptions
from .trust import why_untrusted

if TYPE_CHECKING:
    from .archive.bundle import Bundle
    from .signing.keys import PublicKey

VARIABLE: Final = "AOTPACK_POLICY"
_MAX_BYTES: Final = 1 << 20
_PEM: Final = "-----BEGIN"
_PATTERN: Final = re.compile(r"\*\*.*|/.*|[a-z][a-z0-9+.-]*://.*", re.DOTALL)


class PolicyWarning(UserWarning):
    """A bundle breaks a rule of a policy whose mode is ``warn``."""


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """What a policy demands of some bundles. Of the rules that match a bundle, the first one counts."""

    match: Annotated[
        list[str],
        Meta(
            min_length=1,
            description="Patterns of registry and repository (oci://host/repository, without tag and digest), of URLs, or of "
            "absolute paths. * matches any text without /, and ** any text.",
        ),
    ]
    mode: Annotated[
        Literal["off", "warn", "enforce"],
        Meta(description="off: the rule demands nothing. warn: what breaks it is loaded with a warning. enforce: it is refused."),
    ]
    keys: Annotated[
        list[str],
        Meta(
            description="The accepted keys: one of them must have signed the bundle, where there are keys or digests. A file in "
            "PEM, relative to the policy's directory, or the text of a public key in PEM."
        ),
    ] = []
    digests: Annotated[
        list[str], Meta(description="Bundle digests that are accepted without a signature, each named by itself.")
    ] = []
    operators: Annotated[
        list[str] | None,
        Meta(
            description="Namespaces of operators beyond torch's own that an untrusted bundle may require, where the caller also "
            "allows them. Null: any."
        ),
    ] = None
    subclasses: Annotated[
        list[str] | None,
        Meta(
            description="Tensor subclasses (module.Class) that an untrusted bundle may require, where the caller also passes "
            "them. Null: any."
        ),
    ] = None


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy file. A bundle that no rule matches is refused."""

    version: Annotated[Literal[1], Meta(description="The version of this format.")]
    rules: Annotated[list[Rule], Meta(min_length=1, description="The rules, in the order in which they are tried.")]


@dataclass(frozen=True)
class BoundRule:
    """The rule of a policy file that counts for a bundle. ``number`` starts at 1."""

    path: Path
    number: int
    rule: Rule

    def __str__(self) -> str:
        return f"rule {self.number} of {self.path}"

    @cached_property
    def keys(self) -> list[PublicKey]:
        """The accepted keys.

        Raises:
            AotpackError: one cannot be read, or others may write to its file.
        """
        return [_key(text, self.path, f"key {number} of {self}") for number, text in enumerate(self.rule.keys, 1)]


@dataclass(frozen=True)
class PolicyDecision:
    """What a rule says about a bundle: why its native code may run (or nothing), and what breaks the rule."""

    rule: BoundRule
    accepted: str
    problems: tuple[Problem, ...]


def read_policy(path: Path) -> Policy:
    """Read a policy file in TOML.

    Raises:
        PolicyError: it is no policy; names each field that is wrong.
        DirectoryError: others may write to it.
        AotpackError: it cannot be read.
    """
    import tomllib  # rarely needed

    from .signing.key_store import read_private

    data = read_private(path, VARIABLE, _MAX_BYTES)
    try:
        policy = msgspec.convert(tomllib.loads(data.decode()), Policy)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise PolicyError(f"{path} is no policy: {error}.", hint=_HINT) from error
    problems = [problem for number, rule in enumerate(policy.rules) for problem in _problems(f"$.rules[{number}]", rule)]
    if problems:
        raise PolicyError(f"{path} is no policy.", problems, hint=_HINT)
    return policy


def source_of(bundle: str | os.PathLike[str]) -> str:
    """Return the name of a bundle that rules are matched with: a URL, or the real path."""
    text = os.fspath(bundle)
    return text if "://" in text else os.path.realpath(text)


def rules_for(source: str, argument: str | os.PathLike[str] | None = None) -> list[BoundRule]:
    """Return the rules that count for the bundle called ``source``: one of each policy that applies.

    Raises:
        PolicyError: a policy has no rule for it, or is no policy.
    """
    named = [Path(os.path.abspath(path)) for path in (os.environ.get(VARIABLE), argument) if path]
    return [_bind(path, read_policy(path), source) for path in dict.fromkeys(named)]


def judge(bundle: Bundle, rules: Sequence[BoundRule], trust: str | Collection[str] | None = None) -> list[PolicyDecision]:
    """Return what each rule says about an open bundle. Nothing of the bundle but documents is read."""
    accepted = {str(rule): _accepted(bundle, rule) for rule in rules}
    vouched = next((reason for reason, _ in accepted.values() if reason), "")
    untrusted = why_untrusted(bundle.digest, trust, bundle, vouched)
    found = []
    for rule in rules:
        reason, problems = accepted[str(rule)]
        limits = _beyond_limits(bundle, rule.rule) if untrusted and rule.rule.mode != "off" else []
        found.append(PolicyDecision(rule, reason, (*problems, *limits)))
    return found


def apply_policies(bundle: Bundle, options: LoadOptions, *, warn: bool = True) -> LoadOptions:
    """Return the options of a load that the policies permit, with the reason why native code may run.

    A bundle without a name in ``options.source`` is known by the path of the file that is open.

    Raises:
        PolicyError: a rule whose mode is ``enforce`` is broken, or no rule matches.
    """
    source = options.source or bundle.real_path()
    found = judge(bundle, rules_for(source, options.policy), options.trust)
    broken = [each for each in found if each.problems and each.rule.rule.mode == "enforce"]
    if broken:
        raise PolicyError(
            f"A policy does not allow the bundle {source}.",
            [problem for each in broken for problem in _labelled(each)],
            hint="Sign it with an accepted key (`aotpack sign`), or have the policy changed: a rule before this one, whose "
            "`match` names this bundle alone, or its digest in `digests`.",
        )
    for each in found if warn else ():
        if each.problems and each.rule.rule.mode == "warn":
            from .text import visible_lines  # only for warnings

            lines = "".join(f"\n  {problem}" for problem in _labelled(each))
            warnings.warn(visible_lines(f"The bundle {source} breaks a policy:{lines}"), PolicyWarning, stacklevel=4)
    return options._replace(vouched=next((each.accepted for each in found if each.accepted), ""))


_HINT: Final = "docs/guide/trust.md describes policies; spec/schema/policy.v1.schema.json is their JSON Schema."


def _bind(path: Path, policy: Policy, source: str) -> BoundRule:
    name = _without_case(source)
    for number, rule in enumerate(policy.rules, 1):
        if any(_regex(pattern).fullmatch(name) for pattern in rule.match):
            return BoundRule(path, number, rule)
    raise PolicyError(
        f"The policy {path} has no rule for {source}.", hint='Add one. A last rule with match = ["**"] is for all others.'
    )


def _regex(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*)", _without_case(pattern))
    return re.compile("".join({"**": ".*", "*": "[^/]*"}.get(part) or re.escape(part) for part in parts), re.DOTALL)


def _without_case(text: str) -> str:
    """Return a reference with its host in lower case. Other names stay as they are."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    host, slash, repository = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{repository}"


def _accepted(bundle: Bundle, bound: BoundRule) -> tuple[str, list[Problem]]:
    """Why the rule accepts the bundle, or an empty string and what is missing."""
    rule = bound.rule
    if rule.mode == "off" or not (rule.keys or rule.digests):
        return "", []
    if bundle.digest in rule.digests:
        return f"{bound} lists its digest", []
    if not rule.keys:
        return "", [Problem("digests", f"{bundle.digest} is not listed")]
    from .signing.verify import signer

    verdict = signer(bundle, bound.keys)
    if verdict.key is not None:
        return f"{bound} accepts the key {verdict.key.name!r}, which signed it", []
    return "", [Problem("keys", verdict.reason.replace("trusted", "accepted")), *verdict.problems]


def _beyond_limits(bundle: Bundle, rule: Rule) -> list[Problem]:
    needs = [found.program.requirements for found in bundle.manifests.values()]
    reason = "an untrusted bundle may not require"
    found = []
    for field, allowed, required in (
        ("operators", rule.operators, [name for one in needs for name in one.operators]),
        ("subclasses", rule.subclasses, needs[0].subclasses),
    ):
        if allowed is not None:
            found += [Problem(field, f"{reason} {name}") for name in sorted(set(required) - set(allowed))]
    return found


def _labelled(judgement: PolicyDecision) -> list[Problem]:
    return [Problem(str(judgement.rule), str(problem)) for problem in judgement.problems]


def _key(text: str, policy: Path, name: str) -> PublicKey:
    if text.lstrip().startswith(_PEM):
        from .signing.keys import public_key

        return public_key(text.encode(), name)
    from .signing.key_store import read_key

    return read_key(policy.parent / text, name=text)


def _problems(where: str, rule: Rule) -> list[Problem]:
    """What is wrong with a rule beyond its types."""
    found = []
    for number, pattern in enumerate(rule.match):
        if not _PATTERN.fullmatch(pattern):
            found.append(
                Problem(f"{where}.match[{number}]", f"{pattern!r} begins neither with a scheme (oci://) nor with / or **")
            )
        elif pattern.lower().startswith("oci://") and re.search(r"@|:[^/]*$", pattern[6:].partition("/")[2]):
            found.append(Problem(f"{where}.match[{number}]", f"{pattern!r} has a tag or a digest; name the repository"))
    found += [
        Problem(f"{where}.digests[{number}]", f"{digest!r} is no digest sha256:<64 hex digits>")
        for number, digest in enumerate(rule.digests)
        if not is_digest(digest)
    ]
    demands = rule.keys or rule.digests or rule.operators is not None or rule.subclasses is not None
    if rule.mode != "off" and not demands:
        found.append(Problem(where, f'it demands nothing, and its mode is {rule.mode!r}: name keys, or use mode = "off"'))
    return found
