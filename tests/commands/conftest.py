"""A reader and a rule of our own, so that the commands are tested without any real format or opinion."""

import types

import pytest

from tests import reports
from tracelens import hookimpl, plugins
from tracelens.__main__ import main
from tracelens.contracts import Reader
from tracelens.rule import MANUAL_HEADINGS, Abstain, Need, Option, Rule, detector
from tracelens.trace import Trace

MAGIC = b"TOY"


def _read(source, health):
    content = source.open(health).read()
    if b"lost" in content:
        health.add("toy.lost", "warning", "three rows could not be read", lost_bytes=3, where=source.name)
    if b"crash" in content:
        raise ZeroDivisionError("in the reader")
    samples = content.count(b"x")
    if not samples:
        return Trace()
    columns = {"name": ["toy"] * samples, "metric": ["m"] * samples, "value": [1.0] * samples}
    from tracelens import schema

    rows = schema.MEASUREMENTS.build({**columns, "unit": ["s"] * samples, "params": ["{}"] * samples})
    return Trace(measurements=rows)


READER = Reader("toy", "toy trace", lambda head, name: 100 if head.startswith(MAGIC) else 0, _read)
RULE = Rule(
    code="TOY001",
    name="toy-is-broken",
    summary="the toy does not work",
    needs=(Need(("measurements",), "observed", "toy record -- COMMAND"),),
    manual="\n\n".join(["About toys.", *(f"{heading}\n    Something." for heading in MANUAL_HEADINGS)]),
    options={"most": Option(3, "three toys are enough")},
)


@detector(RULE)
def _detect(trace, options):
    if trace.measurements.height > options.number("most"):
        raise Abstain("too many toys", number=float(trace.measurements.height), threshold=options.number("most"))
    yield reports.gil_finding(rule="TOY001", name="toy-is-broken")


class _Toys:
    @hookimpl
    def readers(self):
        return [READER]

    @hookimpl
    def detectors(self):
        return [_detect]


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    """Every command knows the toy format; only the core and the toy rule are loaded."""
    load = plugins.load

    def with_toys():
        with monkeypatch.context() as only:
            only.setenv("TRACELENS_PLUGINS", "core")
            return load(extra=[("toys", _Toys())])

    monkeypatch.setattr(plugins, "load", with_toys)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(capsys):
    """Run a command line; its exit code, stdout and stderr."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return types.SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def toy(tmp_path):
    """A toy trace that the toy rule finds broken."""
    path = tmp_path / "toy.trace"
    path.write_bytes(MAGIC + b" x")
    return path
