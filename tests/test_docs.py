"""What the documents promise is what the code has."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from tracelens import hookspecs, plugins

ROOT = Path(__file__).parent.parent
HOOKS = ("readers", "detectors", "presenters", "recorders", "experiments")


def test_the_plugin_guide_shows_every_hook_with_its_signature():
    guide = (ROOT / "plugins/README.md").read_text()
    for name in HOOKS:
        hook = getattr(hookspecs, name)
        signature = str(inspect.signature(hook, eval_str=False)).replace("'", "")
        assert f"def {name}{signature}:" in guide
        assert inspect.getdoc(hook) in guide


def test_the_hookspecs_are_exactly_these():
    made = {name for name, value in vars(hookspecs).items() if hasattr(value, "tracelens_spec")}
    assert made == set(HOOKS)


def test_the_readme_names_every_rule_and_command_and_links_what_exists():
    readme = (ROOT / "README.md").read_text()
    for detector in plugins.load().detectors():
        if detector.rule.code.startswith("EXA"):
            continue
        assert detector.rule.code in readme
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", readme):
        assert (ROOT / target).exists(), f"README links to {target}, which is not there"


def test_the_changelog_has_an_entry_for_the_version_or_unreleased():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in changelog or f"## {version}" in changelog


@pytest.mark.parametrize("path", sorted(ROOT.glob("tracelens/**/*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_short_and_say_what_they_are(path):
    text = path.read_text()
    assert text.count("\n") <= 500
    if text.strip():
        assert text.startswith(('"""', "#!")), "a module opens with what it does and does not know"
