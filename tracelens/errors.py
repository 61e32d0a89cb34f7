"""The one exception that ends a command in a clear line instead of a traceback."""


class TracelensError(Exception):
    """Something the user can act on.

    `message` says what and where, `hint` says what to do next. `exit_code` follows the command line contract:
    2 "could not", 1 "findings at or above --fail-on".
    """

    def __init__(self, message: str, hint: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
