"""``aotpack verify``: checks that a bundle is complete and computes the same values as when it was built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from rich.table import Table

from aotpack_loader.errors import AotpackError, BundleNotFoundError, SubclassError, TargetError, TrustError

from .console import device_option, json_option, plain, print_json, stdout, trust_option
from .importing import import_modules, import_option
from .paths import BundlePath

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "yellow"}


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    status: Literal["ok", "warning", "failed", "skipped"]
    detail: str = ""


@dataclass(frozen=True)
class Asked:
    """What the command line asked for. ``source`` is the name that policies match."""

    trust: str | tuple[str, ...] | None
    modules: tuple[str, ...]
    keys: tuple[str, ...]
    detached: Path | None
    policy: Path | None
    source: str
    keyless: Keyless | None
    device: str | None


@dataclass(frozen=True)
class Keyless:
    """Whose keyless signature is required. ``root`` is the trusted root of a private Sigstore."""

    identity: str
    issuer: str
    root: Path | None
    offline: bool


@click.command("verify", short_help="Check a bundle's digests, documents and results.")
@click.argument("bundle", type=BundlePath())
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Require a signature of this key (file in PEM, or name).")
@click.option(
    "--model-signing",
    "detached",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check the signature of OpenSSF Model Signing in FILE against --key, instead of one in the bundle.",
)
@click.option("--identity", metavar="NAME", help="Require a keyless signature of Sigstore by this e-mail address or URI.")
@click.option("--issuer", metavar="URL", help="The identity provider that vouches for --identity.")
@click.option(
    "--trusted-root",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The trusted root of a private Sigstore. Default: Sigstore's own.",
)
@click.option("--offline", is_flag=True, help="Do not refresh Sigstore's own trusted root.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Require what this policy demands. The one that $AOTPACK_POLICY names is asked too.",
)
@click.option(
    "--as",
    "source",
    metavar="NAME",
    help="The reference or path that policies match. Default: the path of BUNDLE.",
)
@device_option
@import_option
@trust_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    bundle: Path,
    keys: tuple[str, ...],
    detached: Path | None,
    identity: str | None,
    issuer: str | None,
    trusted_root: Path | None,
    offline: bool,
    policy: Path | None,
    source: str | None,
    device: str | None,
    modules: tuple[str, ...],
    trust: str | tuple[str, ...] | None,
    as_json: bool,
) -> None:
    """Check every digest and document of BUNDLE and run its self-test, where it has one, on every target that may run.

    With --key it must be signed: several keys are alternatives. With --identity and --issuer it must have a keyless
    signature. With --policy a policy must allow it.
    The exit code is 1 if a check fails; a check that could not be made here is skipped and says why.
    """
    if detached is not None and len(keys) != 1:
        raise click.UsageError("--model-signing needs one --key.", ctx)
    if bool(identity) != bool(issuer):
        raise click.UsageError("--identity and --issuer go together.", ctx)
    keyless = Keyless(identity, issuer, trusted_root, offline) if identity and issuer else None
    checks = list(_checks(bundle, Asked(trust, modules, keys, detached, policy, _source(source), keyless, device)))
    failed = any(check.status == "failed" for check in checks)
    if as_json:
        print_json({"bundle": str(bundle), "ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        stdout().print(_table(checks))
    if failed:
        ctx.exit(1)


def _source(named: str | None) -> str:
    """Return the name that policies match, if one was named. Otherwise it is the path of what is opened."""
    from aotpack_loader.policy import source_of
    from aotpack_loader.registry.reference import Reference, is_reference

    return "" if not named else Reference.parse(named).repository_url if is_reference(named) else source_of(named)


def _checks(path: Path, asked: Asked) -> Iterator[Check]:
    from aotpack_loader.archive.bundle import Bundle

    try:
        bundle = Bundle.open(path)
    except BundleNotFoundError:
        raise
    except AotpackError as error:
        yield Check("documents", "failed", str(error))
        return
    with bundle:
        yield Check("documents", "ok", f"format {bundle.program.format.major}.{bundle.program.format.minor}")
        digests = _digests(bundle)
        yield digests
        detached = asked.detached
        signature = _signature(bundle, asked.keys) if detached is None else _detached(path, detached, asked.keys[0])
        yield signature
        identities = [_identity(bundle, asked.keyless)] if asked.keyless is not None else []
        policies = list(_policies(bundle, asked))
        yield from identities + policies
    if signature.status == "failed" or any(identity.status == "failed" for identity in identities):
        yield Check("self-test", "skipped", "nothing of a bundle without the required signature is run")
    elif any(policy.status == "failed" for policy in policies):
        yield Check("self-test", "skipped", "nothing of a bundle that a policy refuses is run")
    elif digests.status == "failed":
        yield Check("self-test", "skipped", "nothing of a damaged bundle is run")
    elif bundle.program.self_test is None:
        yield Check("self-test", "skipped", "none is recorded (build with --self-test)")
    else:
        subclasses = import_modules(asked.modules)
        for target in bundle.targets:
            yield _self_test(path, bundle.digest, target, asked, subclasses)


def _signature(bundle: Bundle, names: tuple[str, ...]) -> Check:
    """Check who signed the bundle: one of the keys ``names``, or any trusted key where none is required."""
    if not bundle.has_attachments and not names:
        return Check("signature", "skipped", "the bundle is not signed")
    from aotpack_loader.signing import key_store
    from aotpack_loader.signing.verify import signer

    keys = [key_store.named_key(name) for name in names] if names else key_store.trusted_keys()
    verdict = signer(bundle, keys)
    if verdict.key is not None:
        return Check("signature", "ok", f"{verdict.key.name}  {verdict.key.id}")
    detail = "\n".join([verdict.reason, *map(str, verdict.problems)])
    return Check("signature", "failed" if names else "skipped", detail)


def _identity(bundle: Bundle, keyless: Keyless) -> Check:
    """Check that an identity signed the bundle."""
    from aotpack_loader.signing.keyless import identity_signed, read_root

    verdict = identity_signed(bundle, keyless.identity, keyless.issuer, read_root(keyless.root, offline=keyless.offline))
    detail = "\n".join([verdict.reason, *map(str, verdict.problems)])
    return Check("identity", "ok", verdict.reason) if verdict.verified else Check("identity", "failed", detail)


def _policies(bundle: Bundle, asked: Asked) -> Iterator[Check]:
    """Ask the policies, if there are any. What breaks a rule in the mode ``warn`` does not fail."""
    from aotpack_loader.policy import judge, rules_for

    try:
        rules = rules_for(asked.source or bundle.real_path(), asked.policy)
        found = judge(bundle, rules, asked.trust)
    except AotpackError as error:
        yield Check("policy", "failed", str(error))
        return
    for each in found:
        mode = each.rule.rule.mode
        detail = [f"{each.rule} ({mode})", *map(str, each.problems)]
        status: Literal["ok", "warning", "failed"] = "ok"
        if each.problems:
            status = "failed" if mode == "enforce" else "warning"
        yield Check("policy", status, "\n".join(detail) if each.problems else f"{each.accepted or detail[0]}")


def _detached(path: Path, signature: Path, name: str) -> Check:
    """Check a signature of OpenSSF Model Signing."""
    from aotpack.signing.model_signing import verify_detached
    from aotpack_loader.signing import key_store

    key = key_store.named_key(name)
    try:
        verify_detached(path, signature, key)
    except AotpackError as error:
        return Check("signature", "failed", str(error))
    return Check("signature", "ok", f"{key.name}  {key.id}")


def _digests(bundle: Bundle) -> Check:
    try:
        bundle.verify()
    except AotpackError as error:
        return Check("digests", "failed", str(error))
    return Check("digests", "ok", bundle.digest)


def _self_test(path: Path, digest: str, target: str, asked: Asked, subclasses: Sequence[type]) -> Check:
    from aotpack_loader.selftest import run_self_test

    name = f"self-test {target}"
    try:
        report = run_self_test(
            path,
            target,
            asked.trust,
            subclasses=subclasses,
            policy=asked.policy,
            source=asked.source,
            digest=digest,
            device=asked.device,
        )
    except SubclassError as error:
        return Check(name, "skipped", f"{error} On the command line: --import MODULE, which has them.")
    except (TargetError, TrustError) as error:
        return Check(name, "skipped", str(error))
    except AotpackError as error:
        return Check(name, "failed", str(error))
    if not report.ran:
        return Check(name, "skipped", "none is recorded")
    wrong = [f"{row}: error {error:.2e}, tolerance {limit:.2e}" for row, error, limit, ok in report.rows if not ok]
    worst = max((error for _, error, _, _ in report.rows), default=0.0)
    return (
        Check(name, "ok", f"{len(report.rows)} tensors, largest error {worst:.2e}")
        if report.ok
        else Check(name, "failed", "\n".join(wrong))
    )


def _table(checks: list[Check]) -> Table:
    table = Table("check", "result", "detail", box=None, pad_edge=False)
    for check in checks:
        table.add_row(plain(check.name), plain(check.status, STYLES[check.status]), plain(check.detail, lines=True))
    return table
