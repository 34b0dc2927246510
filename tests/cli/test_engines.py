"""`show --engine` describes the engine that other commands use."""

import json
from pathlib import Path

import click

from translume.cli import main
from translume.engine import build_engine
from translume.kernels.cpu import cache_folder
from translume.translator import load


def test_shown_engine_choices_are_those_cached_for_other_commands(
    run, files: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("TRANSLUME_CACHE", str(tmp_path / "cache"))
    assert run("train", files / "en-de.toml", "--out", files / "model").exit_code == 0
    network = load(files / "model", device="cpu", dtype="fp32").checkpoint.model
    shapes = [shape for shape in build_engine(network).choice.kinds if not shape.startswith("decoder ")]
    kept = cache_folder() / "engine.json"
    found = json.loads(kept.read_text())
    for kinds in found.values():
        kinds.update(dict.fromkeys(shapes, "fp32"))
    kept.write_text(json.dumps(found))
    report = json.loads(run("show", files / "model", "--engine", "--json").stdout)
    assert report["on_gpus"] == "search on the device"
    shown = report["dtypes"]
    assert {shown["fp32"]["packed"][shape] for shape in shapes} == {"fp32"}
    assert set(shown["fp32"]["packed"]) == set(build_engine(network).choice.kinds)
    assert {kind for kinds in shown["int8"]["microseconds"].values() for kind in kinds} > {"fp32"}


def test_dtype_is_offered_only_where_it_has_an_effect() -> None:
    context = click.Context(main)
    offered = {}
    for verb in main.list_commands(context):
        command = main.get_command(context, verb)
        assert command is not None
        if isinstance(command, click.Group):
            command = command.commands.get("text", command)  # of inspect
        for parameter in command.params:
            if parameter.name == "dtype" and "--dtype" in parameter.opts:
                offered[verb] = list(parameter.type.choices)
    with_engine = {verb for verb, dtypes in offered.items() if dtypes == ["auto", "fp32", "bf16", "int8"]}
    assert with_engine == {"translate", "backtranslate", "generate", "evaluate", "serve"}
    assert all(dtypes == ["auto", "fp32", "bf16"] for verb, dtypes in offered.items() if verb not in with_engine)
    assert {"train", "score", "inspect", "classify", "heads"} <= set(offered)
