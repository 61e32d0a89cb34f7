"""The one error that the stack raises on purpose; it knows nothing of where it is shown."""


class ServingError(Exception):
    """Something that the user can act on: one line, and a hint."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
