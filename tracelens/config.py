"""Configuration: `tracelens.toml`, or `[tool.tracelens]` of pyproject.toml, in the working directory.

select = ["GIL", "NUM001"]      # rules or families to run; default all
ignore = ["MEM"]
fail_on = "warning"             # never | error | warning | info
[rules.GIL001]
min_share = 0.03                # a rule's option, see `tracelens explain GIL001`
[roof]
copy_bytes_per_second = 4.28e12
[bytes]
"gemv_kernel*" = 536969216      # bytes moved a launch
[suppress]
"0123456789abcdef" = "why this finding is accepted"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from tracelens.errors import TracelensError
from tracelens.rule import OptionValue, Rule

FailOn = Literal["never", "error", "warning", "info"]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The user's choices; command line flags override them."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: FailOn = "never"
    rules: dict[str, dict[str, OptionValue]] = {}
    roof: dict[str, float] = {}
    bytes: dict[str, int] = {}
    suppress: dict[str, str] = {}

    def enabled(self, rule: Rule) -> bool:
        """Whether a rule is selected and not ignored; the most specific of code and family wins, ignore breaks ties."""
        wanted = not self.select or _matches(rule, self.select)
        if wanted and _matches(rule, self.ignore):
            return rule.code in self.select and rule.code not in self.ignore
        return wanted

    def check(self, rules: Iterable[Rule]) -> None:
        """Raise TracelensError for a rule, option or suppression that cannot mean anything."""
        known = {rule.code: rule for rule in rules}
        families = {rule.family for rule in known.values()}
        for code in (*self.select, *self.ignore, *self.rules):
            if code not in known and code not in families:
                raise TracelensError(f"configuration: no rule or family {code!r}", "`tracelens rules` lists them")
        for code, options in self.rules.items():
            for option in options:
                if code not in known or option not in known[code].options:
                    raise TracelensError(
                        f"configuration: {code} has no option {option!r}", f"see `tracelens explain {code}`"
                    )
        for fingerprint, reason in self.suppress.items():
            if not reason.strip():
                raise TracelensError(
                    f"configuration: suppressing {fingerprint} needs a reason", 'write suppress."…" = "why"'
                )


def _matches(rule: Rule, names: Iterable[str]) -> bool:
    return any(name in (rule.code, rule.family) for name in names)


def load(folder: Path) -> Config:
    """The configuration in `folder`: tracelens.toml, else pyproject.toml's [tool.tracelens], else defaults."""
    own, project = folder / "tracelens.toml", folder / "pyproject.toml"
    if own.is_file():
        return _convert(_parse(own), own.name)
    if project.is_file():
        section = _parse(project).get("tool", {})
        if isinstance(section, dict) and "tracelens" in section:
            return _convert(section["tracelens"], "pyproject.toml [tool.tracelens]")
    return Config()


def _parse(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TracelensError(f"{path.name}: {error}", "mend or remove the file") from error


def _convert(values: object, where: str) -> Config:
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise TracelensError(f"{where}: {error}", "see the example in tracelens/config.py") from error


def merged(config: Config, **changes: object) -> Config:
    """The configuration with some fields replaced, checked as if they stood in the file."""
    return _convert({**msgspec.structs.asdict(config), **changes}, "options")
