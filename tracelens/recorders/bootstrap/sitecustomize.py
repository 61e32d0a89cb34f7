"""Put first on PYTHONPATH by `tracelens record`: starts the recorder in every Python process of the child tree.

Knows nothing of recording: it loads the folder `inside` by path (tracelens need not be installed for this
interpreter), then runs the `sitecustomize` that it hides. Standard library only; whatever fails here, the program runs.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    settings = os.environ.get("TRACELENS_RECORD")
    if not settings:
        return
    try:
        folder = os.path.join(os.path.dirname(_HERE), "inside")
        spec = importlib.util.spec_from_file_location(
            "_tracelens_inside", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            raise ImportError(folder)
        module = importlib.util.module_from_spec(spec)
        sys.modules["_tracelens_inside"] = module
        spec.loader.exec_module(module)
        module.start(settings)
    except Exception as error:
        _confess(settings, error)


def _confess(settings: str, error: Exception) -> None:
    """Leave the reason in the process's sidecar: the settings lie in `CAPTURE/.control/`."""
    try:
        import json

        sidecar = {"pid": os.getpid(), "state": "failed", "errors": [f"bootstrap: {type(error).__name__}: {error}"]}
        folder = os.path.dirname(os.path.dirname(settings))
        with open(os.path.join(folder, f"process.{os.getpid()}.json"), "w", encoding="utf-8") as file:
            json.dump(sidecar, file)
    except Exception:
        return


def _chain() -> None:
    """Run the next `sitecustomize` on sys.path in our place; its errors are its own, as they would be without us."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start()
_chain()
