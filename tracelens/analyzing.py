"""The one function: analyze(trace, plugins, config) -> Report.

Runs every rule whose evidence is there, and says of every other why not. A rule that raises is reported as failed and
leaves the others unharmed. Knows no root cause.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from tracelens import __version__
from tracelens.config import Config
from tracelens.finding import (
    SCHEMA,
    Finding,
    Health,
    Next,
    PluginInfo,
    Report,
    RuleStatus,
    fingerprinted,
    sort_key,
)
from tracelens.overview import overview
from tracelens.plugins import Plugins
from tracelens.rule import Abstain, Abstained, Detector, Options, Rule
from tracelens.trace import Trace


def analyze(trace: Trace, plugins: Plugins, config: Config) -> Report:
    """Judge a trace with every chosen rule and describe it. Same trace and configuration, same Report."""
    detectors = plugins.detectors()
    config.check(detector.rule for detector in detectors)
    blind = trace.blind()
    statuses: list[RuleStatus] = []
    findings: list[Finding] = []
    for detector in detectors:
        status, found = judge(blind, detector, config)
        statuses.append(status)
        findings.extend(found)
    findings.sort(key=sort_key)
    report = Report(
        schema=SCHEMA,
        tool=f"tracelens {__version__}",
        analysis_id="",
        **overview(trace),
        health=tuple(Health(**msgspec.structs.asdict(entry)) for entry in trace.health),
        plugins=tuple(PluginInfo(**vars(plugin)) for plugin in plugins.loaded),
        rules=tuple(statuses),
        findings=tuple(findings),
        next=_next_steps(statuses, findings, _fitting(trace, (detector.rule for detector in detectors))),
    )
    digest = hashlib.sha256(msgspec.json.encode(report, order="deterministic")).hexdigest()[:16]
    return msgspec.structs.replace(report, analysis_id=digest)


def judge(trace: Trace, detector: Detector, config: Config) -> tuple[RuleStatus, list[Finding]]:
    """One rule's status and findings on one trace."""
    rule = detector.rule
    if not config.enabled(rule):
        return _status(rule, "disabled"), []
    present = trace.evidence()
    usable = [need for need in rule.needs if present.issuperset(need.evidence)]
    if not usable:
        wanted = " or ".join(" + ".join(need.evidence) for need in rule.needs)
        return _status(rule, "skipped", why=f"the trace has no {wanted}", unlock=rule.needs[0].record), []
    doubts = [next(filter(None, map(trace.health.distrust, need.evidence)), None) for need in usable]
    if all(doubts):
        doubt = doubts[0]
        assert doubt is not None
        return _status(rule, "abstained", why=doubt.says, need=doubt.need, unlock=rule.needs[0].record), []
    try:
        judgements = list(detector.detect(trace, Options(rule, config.rules.get(rule.code))))
    except Abstain as abstained:
        return (
            _status(
                rule,
                "abstained",
                why=abstained.why,
                need=abstained.need,
                number=abstained.number,
                threshold=abstained.threshold,
                unlock=abstained.unlock or rule.needs[0].record,
            ),
            [],
        )
    except Exception as error:
        return _status(rule, "failed", why=f"{type(error).__name__}: {error}"), []
    findings = [fingerprinted(found) for found in judgements if isinstance(found, Finding)]
    kept = [found for found in findings if found.fingerprint not in config.suppress]
    return _status(rule, "ran", why=_partly(judgements, len(findings) - len(kept))), kept


def _partly(judgements: Iterable[Finding | Abstained], suppressed: int) -> str | None:
    """What a rule that ran could not judge or was told to suppress."""
    parts = [f"{part.where}: {part.why}" for part in judgements if isinstance(part, Abstained)]
    if suppressed:
        parts.append(f"{suppressed} suppressed by configuration")
    return "; ".join(parts) or None


def _status(rule: Rule, status: str, **details: object) -> RuleStatus:
    return msgspec.convert({"code": rule.code, "name": rule.name, "status": status, **details}, RuleStatus)


def _fitting(trace: Trace, rules: Iterable[Rule]) -> set[str]:
    """Codes of the rules that another recording of the same program may unlock: without a GPU, none about kernels."""
    no_gpu = bool(trace.slices.height) and not trace.facts.devices and "slices:kernel" not in trace.evidence()
    return {
        rule.code for rule in rules if not (no_gpu and all("slices:kernel" in need.evidence for need in rule.needs))
    }


def _next_steps(statuses: Iterable[RuleStatus], findings: Iterable[Finding], fitting: set[str]) -> tuple[Next, ...]:
    """Experiments for findings first, then recordings that would unlock the `fitting` rules, one entry a command."""
    steps = [
        Next(
            kind="experiment",
            command=f"tracelens explain {finding.rule}",
            why=f"{finding.verify.changes}: {finding.verify.predicts.metric} goes {finding.verify.predicts.direction}",
            unlocks=(finding.fingerprint,),
        )
        for finding in findings
    ]
    recordings: dict[str, list[RuleStatus]] = {}
    for status in statuses:
        if status.code in fitting and status.status in ("skipped", "abstained") and status.unlock:
            recordings.setdefault(status.unlock, []).append(status)

    def value(item: tuple[str, list[RuleStatus]]) -> tuple[int, int, str]:
        """What abstained had its evidence: it comes before what merely lacks some; then what unlocks most."""
        command, unlocked = item
        return -sum(status.status == "abstained" for status in unlocked), -len(unlocked), command

    for command, unlocked in sorted(recordings.items(), key=value):
        codes = tuple(status.code for status in unlocked)
        steps.append(Next(kind="record", command=command, why=unlocked[0].why or "", unlocks=codes))
    return tuple(steps)
