"""The verbs of the command line, one file each, imported when used.

Each file has `configure(parser)`, which adds its flags, and `run(args) -> int`, which returns the exit code.
"""

VERBS = {
    "demo": "record the bundled stack with a fault on, analyse, show: the tour",
    "view": "look at findings in the terminal user interface",
    "analyze": "judge traces and print what was found",
    "record": "run a command and record it as a capture",
    "convert": "write a trace as one file for Perfetto, or as tables",
    "explain": "print a rule's manual, a table's columns or one finding in full",
    "rules": "list the rules",
    "doctor": "versions, recorders and plugins: what works here, and why not",
}
