import json

import pytest
from tracelens_serving.errors import ServingError
from tracelens_serving.settings import FAULTS, Settings, flatten, from_command_line, resolve


def test_the_default_is_healthy_and_survives_flattening():
    assert Settings().ep.release_gil is True
    assert Settings().ep.wait == "futex"
    assert resolve(flatten(Settings())) == Settings()
    assert resolve(json.loads(json.dumps(flatten(Settings())))) == Settings()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_only_a_value_of_ordinary_settings(fault):
    assert resolve(FAULTS[fault]) == from_command_line(None, fault, [])
    assert set(FAULTS[fault]) <= set(flatten(Settings()))


def test_hold_differs_from_the_default_in_one_setting():
    default, hold = flatten(Settings()), flatten(from_command_line(None, "ep_hold_gil", []))
    assert {key for key in default if default[key] != hold[key]} == {"ep.release_gil"}


def test_file_then_fault_then_assignments(tmp_path):
    file = tmp_path / "settings.json"
    file.write_text('{"ep.release_gil": true, "ep.wait": "spin", "kv.slots": 3}')
    settings = from_command_line(file, "ep_hold_gil", ["kv.slots = 4", "model.router_skew=0"])
    assert (settings.ep.release_gil, settings.ep.wait, settings.kv.slots) == (False, "spin", 4)
    assert settings.model.router_skew == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ep.relase_gil": "false"}, "unknown setting 'ep.relase_gil'"),
        ({"ep": "x"}, "unknown setting 'ep'"),
        ({"ep.release_gil": "maybe"}, "ep.release_gil: 'maybe' is not true or false"),
        ({"ep.wait": "sleep"}, "ep.wait: 'sleep' is not one of futex, spin"),
        ({"kv.block_bytes": "many"}, "kv.block_bytes: 'many' is not an integer"),
        ({"kv.block_bytes": 1.5}, "kv.block_bytes: '1.5' is not an integer"),
        ({"kv.block_bytes": True}, "kv.block_bytes: 'True' is not an integer"),
        ({"kv.block_bytes": 0}, "kv.block_bytes: 0 is not positive"),
        ({"kv.link_bytes_per_s": -1}, "kv.link_bytes_per_s: -1 is negative"),
        ({"ep.timeout_s": "soon"}, "ep.timeout_s: 'soon' is not a number"),
        ({"ep.timeout_s": "nan"}, "ep.timeout_s: 'nan' is not a number"),
        ({"model.heads": 3}, "model.hidden: 128 is not a multiple of model.heads"),
        ({"model.experts": 7}, "model.experts: 7 cannot be shared by 2 ranks"),
        ({"model.top_k": 9}, "model.top_k: 9 is more than model.experts"),
        ({"decode.slots": 4}, "decode.slots: must be more than 4"),
    ],
)
def test_a_bad_value_is_named(values, message):
    with pytest.raises(ServingError) as error:
        resolve(values)
    assert message in error.value.message


def test_a_bad_command_line_is_named(tmp_path):
    with pytest.raises(ServingError, match="unknown fault 'gremlins'"):
        from_command_line(None, "gremlins", [])
    with pytest.raises(ServingError, match=r"'ep\.wait' is not KEY=VALUE"):
        from_command_line(None, "none", ["ep.wait"])
    with pytest.raises(ServingError, match="No such file"):
        from_command_line(tmp_path / "absent.json", "none", [])
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ServingError, match="not JSON"):
        from_command_line(tmp_path / "bad.json", "none", [])
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ServingError, match="not a JSON object"):
        from_command_line(tmp_path / "list.json", "none", [])


def test_the_command_says_what_is_wrong_in_one_line_and_a_hint(python):
    done = python("-m", "tracelens_serving", "run", "--set", "ep.x=1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == "tracelens_serving: error: unknown setting 'ep.x'"
    assert done.stderr.splitlines()[1].startswith("hint: known settings: ")
    assert len(done.stderr.splitlines()) == 2


def test_settings_prints_what_run_takes(python, tmp_path):
    done = python("-m", "tracelens_serving", "settings", "--fault", "ep_hold_gil", "--set", "kv.slots=9")
    file = tmp_path / "settings.json"
    file.write_text(done.stdout)
    assert from_command_line(file, "none", []) == from_command_line(None, "ep_hold_gil", ["kv.slots=9"])


def test_the_launcher_imports_no_torch(python):
    done = python("-c", "import sys, tracelens_serving.__main__; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr
