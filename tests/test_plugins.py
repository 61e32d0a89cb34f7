"""Plugins load through entry points; conflicts and failures are said, never silent."""

from types import SimpleNamespace

import pytest

from tracelens import plugins
from tracelens.contracts import Reader
from tracelens.errors import TracelensError
from tracelens.hookspecs import hookimpl
from tracelens.rule import MANUAL_HEADINGS


def plugin(**hooks):
    return SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})


def reader(name):
    return Reader(name, name, lambda head, path: 0, lambda source, health: None)


def test_every_bundled_rule_has_its_manual_needs_and_options():
    found = plugins.load().detectors()
    assert {detector.rule.code for detector in found} >= {"GIL001"}
    for detector in found:
        rule = detector.rule
        places = [rule.manual.find(f"\n{heading}\n") for heading in MANUAL_HEADINGS]
        assert -1 not in places, f"{rule.code}: manual lacks {MANUAL_HEADINGS[places.index(-1)]}"
        assert places == sorted(places)
        assert rule.needs
        assert all(need.record for need in rule.needs)
        assert all(option.says for option in rule.options.values())


def test_two_plugins_with_one_reader_are_a_conflict_naming_both():
    loaded = plugins.load(
        extra=[("one", plugin(readers=lambda: [reader("x")])), ("two", plugin(readers=lambda: [reader("x")]))]
    )
    with pytest.raises(TracelensError, match=r"reader x comes from two plugins: (one and two|two and one)"):
        loaded.readers()


def test_a_hook_that_raises_is_one_line_and_leaves_the_rest(capsys):
    def broken():
        raise RuntimeError("no\nluck")

    loaded = plugins.load(extra=[("bad", plugin(readers=broken)), ("good", plugin(readers=lambda: [reader("x")]))])
    assert "x" in {one.name for one in loaded.readers()}
    lines = [line for line in capsys.readouterr().err.splitlines() if "bad" in line]
    assert lines == ["tracelens: plugin bad is not used: readers(): RuntimeError: no luck"]
    assert [one.error for one in loaded.loaded if one.name == "bad"] == ["readers(): RuntimeError: no\nluck"]


def test_an_unknown_hook_is_an_error():
    with pytest.raises(TracelensError, match="detectives"):
        plugins.load(extra=[("odd", plugin(detectives=lambda: ()))])


def test_the_environment_chooses_plugins(monkeypatch):
    monkeypatch.setenv("TRACELENS_PLUGINS", "numerics")
    assert {one.name for one in plugins.load().loaded} == {"core", "numerics"}
    monkeypatch.setenv("TRACELENS_PLUGINS", "nosuch")
    with pytest.raises(TracelensError, match="nosuch"):
        plugins.load()
