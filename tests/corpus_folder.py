"""Where the shared trace corpus lies: TRACELENS_CORPUS, else ../shared/traces beside the repository."""

import os
from pathlib import Path

import pytest

CORPUS = Path(os.environ.get("TRACELENS_CORPUS") or Path(__file__).parents[2] / "shared" / "traces")


def corpus(*names):
    """Paths in the corpus as text. Without the corpus a test is skipped, and fails in CI."""
    if not (CORPUS / "public" / "expected.json").exists():
        message = f"the trace corpus is not at {CORPUS}: set TRACELENS_CORPUS"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return [str(CORPUS / name) for name in names]
