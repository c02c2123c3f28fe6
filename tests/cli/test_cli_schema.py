"""What --json prints is valid under the schemas in the package, which say all that records hold."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from agents_fakes import verdict
from cli_fakes import Workers
from referencing import Registry, Resource

import cuda_agent
from cuda_agent.cli import main
from cuda_agent.records import BASELINES, SCHEMA_VERSION, Finding, Mismatch, Status, Verdict

SCHEMAS = Path(cuda_agent.__file__).parent / "schemas"


def validator(name: str) -> Any:
    schemas = {p.name: json.loads(p.read_text()) for p in SCHEMAS.glob("*.json")}
    registry: Any = Registry().with_resources(
        [(schema["$id"], Resource.from_contents(schema)) for schema in schemas.values()]
    )
    kind = jsonschema.Draft202012Validator
    kind.check_schema(schemas[name])
    return kind(schemas[name], registry=registry)


def test_schema_follows_the_record() -> None:
    schema = json.loads((SCHEMAS / "verdict.schema.json").read_text())
    assert schema["properties"]["schema_version"] == {"const": SCHEMA_VERSION}
    assert set(schema["properties"]) == {f.name for f in dataclasses.fields(Verdict)}
    assert schema["properties"]["status"]["enum"] == list(get_args(Status))
    assert schema["properties"]["speedup"]["required"] == list(BASELINES)


def test_verdicts_are_valid_and_contradictions_are_not() -> None:
    check = validator("verdict.schema.json")
    good = verdict(0.5)
    check.validate(good.to_json())
    assert good.error is not None
    wrong = dataclasses.replace(
        verdict(0, "wrong"), findings=(Finding("A1", "x"),),
        error=dataclasses.replace(
            good.error, mismatch=Mismatch("out", (0, 3), "nan", 1.0, 5, 32, "every 4th")
        ),
    )
    check.validate(json.loads(json.dumps(wrong.to_json())))
    timed = {**wrong.to_json(), "timing": good.to_json()["timing"]}
    for bad in (timed, {**good.to_json(), "speedup": {}}, {**good.to_json(), "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            check.validate(bad)


@pytest.mark.parametrize("failing", [(), ("vector", "torch")])
def test_optimize_prints_what_the_schema_says(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str], failing: tuple[str, ...]
) -> None:
    workers.options["screen"] = {"failing": failing}
    main(["optimize", str(problem), "--target", "cpu", "--budget", "3", "--json"])
    validator("optimize.schema.json").validate(json.loads(capsys.readouterr().out))
