"""``holdfast doctor --upgrade``: the steps of an upgrade to this version."""

from __future__ import annotations

from collections.abc import Iterable

import holdfast
from holdfast.assembly.products import operator_parts
from holdfast.cli import exits
from holdfast.cli.findings import Finding, foreign_distribution, look_at, unknown_variables, unsound
from holdfast.cli.options import Options
from holdfast.cli.products import OperatorPart
from holdfast.common.migrations import SchemaSteps, blocked_text
from holdfast.common.protocol_versions import OUR_VERSIONS, no_common_version
from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError, HoldfastError, UnsupportedStore
from holdfast.operate.versions import OLDEST, VersionStanding, standing, version_text
from holdfast.ports.coordinator import Member
from holdfast.wiring.services import Services


async def examine_upgrade(options: Options) -> list[Finding]:
    """Run all checks, and end with the next step. Nothing is changed."""
    text = f"this is Holdfast {holdfast.__version__}; nodes of {OLDEST} and newer run beside it"
    try:
        config = options.load()
    except ConfigError as error:
        return [Finding("version", "ok", text), unsound(error)]
    findings = [Finding("version", "ok", text), *unknown_variables(), *foreign_distribution()]
    async with Services(config, reads_only=True, expands=False) as services:
        schemas: dict[str, SchemaSteps | None] = {}
        for url in services.kept_at():
            findings += await _database(services, url, schemas)
        members: list[Member] = []

        async def nodes() -> str:
            members.extend(await services.coordinator().members())
            return f"answers; {len(members)} nodes live"

        url = config.coordinator_url
        if url in schemas and ((steps := schemas[url]) is None or steps.version):
            findings.append(await look_at("coordinator", url, nodes))
        findings += [_node(member) for member in members if not member.foreign]
        for _, part in operator_parts(OperatorPart):
            findings += await part.examine_upgrade(services)
    findings.append(_next(findings, [steps for steps in schemas.values() if steps], members))
    return findings


async def _database(
    services: Services, url: str, schemas: dict[str, SchemaSteps | None]
) -> Iterable[Finding]:
    """Return the findings about the tables of a service, if it has any. ``schemas`` gets their version and
    migrations, unless this version can't use them."""
    check = "tables"
    shown = redact_url(url)
    try:
        steps = await services.schema_steps(url)
    except UnsupportedStore as error:
        fix = "run a version that knows these tables"
        return [Finding(check, "failed", f"{shown}: {error}", fix, exits.FAILED)]
    except HoldfastError as error:
        fix = f"check that {shown} is up and can be reached"
        return [Finding(check, "failed", f"{shown}: {error}", fix, exits.code(error))]
    if steps is not None and steps.blocked:
        fix = "contract with the version before this one, as it says"
        return [Finding(check, "failed", f"{shown}: {blocked_text(steps)}", fix, exits.FAILED)]
    schemas[url] = steps
    if steps is None:
        return []
    if not steps.version:
        return [Finding(check, "ok", f"{shown}: none yet; they are made at the first use")]
    found = []
    if steps.expand:
        text = f"{shown}: version {steps.version}, without {_numbers(steps.expand)}, which only add"
        fix = (
            "`holdfast migrate`, as a user with the right to change tables; nodes of this version do it at"
            " their start"
            " if their user may"
        )
        found.append(Finding(check, "warning", text, fix))
    if steps.contract:
        text = f"{shown}: {_numbers(steps.contract)} removes parts that only the version before uses"
        fix = "`holdfast migrate --contract`, once all nodes run this version and none is to go back"
        found.append(Finding(check, "warning", text, fix))
    return found or [Finding(check, "ok", f"{shown}: version {steps.version}, up to date")]


def _node(member: Member) -> Finding:
    check, version, speaks = f"node {member.name}", version_text(member.load.version), member.load.speaks
    if OUR_VERSIONS.common(speaks) is None:
        text = f"runs {version}; {no_common_version(speaks, OUR_VERSIONS)}"
        fix = "upgrade it to a release in between first; nodes of this version wait until it is gone"
        return Finding(check, "failed", text, fix, exits.FAILED)
    match standing(member.load.version):
        case VersionStanding.SAME:
            return Finding(check, "ok", f"runs {version}")
        case VersionStanding.BEFORE:
            text = f"runs {version}, which goes on beside this version"
            return Finding(check, "warning", text, "replace it by a node of this version")
        case VersionStanding.TOO_OLD:
            text = f"runs {version}, which can't run beside {holdfast.__version__}"
            fix = f"upgrade it to {OLDEST} first: only a version and the one before it run in one cluster"
            return Finding(check, "failed", text, fix, exits.FAILED)
        case VersionStanding.NEWER:
            text = f"runs {version}, which is newer than this one"
            return Finding(check, "failed", text, "run this command in that version", exits.FAILED)


def _next(findings: Iterable[Finding], schemas: Iterable[SchemaSteps], members: Iterable[Member]) -> Finding:
    """Return the next step: expand, replace the nodes, or contract."""
    if any(finding.verdict == "failed" for finding in findings):
        text = "correct what failed; start no node of this version before that"
        return Finding("next", "failed", text, "", exits.FAILED)
    if any(steps.version and steps.expand for steps in schemas):
        return Finding("next", "warning", "expand the tables: `holdfast migrate`; then replace the nodes")
    older = [member.name for member in members if standing(member.load.version) is VersionStanding.BEFORE]
    if older:
        return Finding("next", "warning", f"replace the nodes, one after the other: {', '.join(older)}")
    if any(steps.contract for steps in schemas):
        return Finding("next", "warning", "once nothing is to go back: `holdfast migrate --contract`")
    return Finding("next", "ok", "nothing is left to do")


def _numbers(numbers: list[int]) -> str:
    return f"migration{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
