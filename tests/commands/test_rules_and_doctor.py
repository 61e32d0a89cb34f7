import json

from tests.commands.conftest import RULE
from tracelens import plugins
from tracelens.contracts import Availability, Recorder


def test_rules_are_one_line_each(cli):
    assert cli("rules").out == "TOY001  toy-is-broken  the toy does not work\n"


def test_rules_as_json_are_their_identity_cards(cli):
    assert json.loads(cli("rules", "--json").out) == [
        {
            "code": "TOY001",
            "name": "toy-is-broken",
            "summary": RULE.summary,
            "needs": [{"evidence": ["measurements"], "earns": "observed", "record": "toy record -- COMMAND"}],
            "options": {"most": {"default": 3, "says": "three toys are enough"}},
        }
    ]


def test_without_rules_it_says_so(cli, monkeypatch):
    monkeypatch.setattr(plugins.Plugins, "detectors", lambda self: [])
    ended = cli("rules")
    assert (ended.code, ended.out) == (0, "")
    assert "no rule is installed" in ended.err


def asks(monkeypatch, *recorders):
    monkeypatch.setattr(plugins.Plugins, "recorders", lambda self: list(recorders))


def broken():
    raise OSError("no such device")


def test_doctor_tells_versions_recorders_and_plugins(cli, monkeypatch):
    asks(
        monkeypatch,
        Recorder("good", "records well", lambda: Availability(True)),
        Recorder("bad", "records", lambda: Availability(False, "no driver", "install one")),
        Recorder("ugly", "records", broken),
    )
    ended = cli("doctor")
    assert ended.code == 0
    assert "  good        yes: records well\n" in ended.out
    assert "  bad         no: records\n              no driver → install one\n" in ended.out
    assert "it failed when asked: OSError: no such device → report it to its plugin" in ended.out
    told = dict(line.split(maxsplit=1) for line in ended.out.splitlines() if line.startswith("  "))
    assert told["toys"] == "loaded from given"
    assert told["polars"][0].isdigit()
    assert ended.out.endswith("\nno problem found\n")


def test_doctor_as_json_holds_the_same(cli, monkeypatch):
    asks(monkeypatch, Recorder("bad", "records", lambda: Availability(False, "no driver", "install one")))
    state = json.loads(cli("doctor", "--json").out)
    assert state["recorders"] == [
        {"name": "bad", "says": "records", "available": False, "why": "no driver", "cure": "install one"}
    ]
    assert state["problems"] == []
    assert {plugin["name"] for plugin in state["plugins"]} == {"core", "toys"}


def test_a_plugin_that_fails_is_a_problem(cli, monkeypatch):
    load = plugins.load

    class Broken:
        @plugins.hookspecs.hookimpl
        def detectors(self):
            raise ImportError("no module named toys")

    def loaded():
        made = load()
        made.manager.register(Broken(), name="broken")
        made.loaded.append(plugins.LoadedPlugin("broken", None, None))
        return made

    monkeypatch.setattr(plugins, "load", loaded)
    ended = cli("doctor")
    assert ended.code == 2
    assert "problem: plugin broken is not used: detectors(): ImportError: no module named toys" in ended.out
