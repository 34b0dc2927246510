"""The result of a search: its table, the best settings as TOML, JSON, and a page."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from translume.atomic import write_file
from translume.experiments.search_space import describe
from translume.experiments.sweep_table import aligned
from translume.experiments.tuning import BEST, RUNGS, Search
from translume.inspection.pages import html_page


def report(search: Search, command: str) -> dict[str, Any]:
    """Return what a search has found so far, as values for JSON.

    "best" and "ranking": numbers of trials.  "repeated": values by seed, and their mean and standard deviation (n − 1).
    "curve": of a trial, the seconds of training and the value.
    """
    study, ranking = search.study, search.ranked()
    trials = []
    for each in study.trials:
        times = [share * search.seconds for share in RUNGS]
        trials.append(
            {
                "number": each.number,
                "state": "failed" if each.user_attrs.get("failure") else each.state.name.lower(),
                "chosen": search.chosen(each.number),
                "parameters": each.params,
                "curve": [list(pair) for pair in zip(times, each.intermediate_values.values(), strict=False)],
                "updates": each.user_attrs.get("updates"),
                "failure": each.user_attrs.get("failure", ""),
                "repeated": _spread(search.repeated(each.number)),
            }
        )
    return {
        "command": command,
        "metric": search.metric,
        "larger_is_better": search.larger,
        "training_seconds": search.seconds,
        "seconds": search.spent,
        "space": [str(each) for each in search.space],
        "trials": trials,
        "ranking": ranking,
        "best": search.best() if ranking else None,
        "importance": importance(search),
    }


def _spread(values: dict[int, float]) -> dict[str, Any]:
    found = list(values.values())
    mean = statistics.fmean(found) if found else None
    return {"values": values, "mean": mean, "sd": statistics.stdev(found) if len(found) > 1 else None}


def importance(search: Search) -> dict[str, float]:
    """Return the share of each setting in the variance of the values after the first quarter of a training.

    All trials have these values, but only the best have later ones. The shares sum to one and are estimated by
    PED-ANOVA (Watanabe et al. 2023); empty for fewer than five trials.
    """
    import optuna

    trials = [
        each for each in search.study.trials if each.intermediate_values and len(each.params) == len(search.space)
    ]
    if len(trials) < 5 or len({each.intermediate_values[1] for each in trials}) < 2:
        return {}
    early = optuna.create_study(direction="maximize" if search.larger else "minimize")
    for each in trials:
        value = each.intermediate_values[1]
        early.add_trial(optuna.trial.create_trial(params=each.params, distributions=each.distributions, value=value))
    return dict(optuna.importance.get_param_importances(early))


def rows(found: dict[str, Any]) -> list[list[str]]:
    """Return a row for each of the best trials and for the base: its settings, values and repetitions."""
    shown = dict.fromkeys([found["best"], *found["ranking"][:BEST], 0])
    return [_row(found["trials"][number], found) for number in shown if number in found["ranking"]]


HEAD = ("trial", "settings", "updates", "search", "other seeds")


def _row(trial: dict[str, Any], found: dict[str, Any]) -> list[str]:
    repeated = trial["repeated"]
    again = "–" if repeated["mean"] is None else f"{repeated['mean']:.3f}"
    again += "" if repeated["sd"] is None else f" ± {repeated['sd']:.3f}"
    mark = "*" if trial["number"] == found["best"] else ""
    settings = describe(trial["chosen"]) or "as given"
    return [f"{trial['number']}{mark}", settings, f"{trial['updates']:,}", f"{trial['curve'][-1][1]:.3f}", again]


def notes(found: dict[str, Any]) -> Iterator[str]:
    """Yield what the table means, one paragraph each."""
    counts = {
        state: sum(each["state"] == state for each in found["trials"]) for state in ("complete", "pruned", "failed")
    }
    yield (
        f"* the best. {found['metric']} on the validation set, {'larger' if found['larger_is_better'] else 'smaller'} "
        f"is better, after trainings of {found['training_seconds']:.0f} s; {counts['complete']} trials were trained to "
        f"the end, {counts['pruned']} pruned, {counts['failed']} failed."
    )
    if found["best"] is None:
        return
    best, repeated = found["trials"][found["best"]], found["trials"][found["best"]]["repeated"]
    if found["best"] == 0:
        yield "No trial beat the settings as they were given."
    elif repeated["mean"] is None:
        yield "The best were not repeated with other seeds: the value of the search is the best of many, and too good."
    else:
        lost = abs(best["curve"][-1][1] - repeated["mean"])
        seeds = len(repeated["values"])
        yield (
            f"The value of the search is the best of many, and so too good on average; that of {seeds} other "
            f"seed{'s' * (seeds != 1)}, which differs by {lost:.3f}, is the one to expect."
        )
    first = found["trials"][0]
    if found["best"] and first["curve"]:
        yield f"Trial 0 has the settings as given: {found['metric']} {first['curve'][-1][1]:.3f} after the same time."


def to_markdown(found: dict[str, Any]) -> str:
    """Return the table and its notes as Markdown that is readable as plain text."""
    return "\n\n".join(["\n".join(aligned(HEAD, rows(found), left=2)), *notes(found)])


def save(search: Search, found: dict[str, Any], name: str) -> None:
    """Write best.toml, if a trial was trained to the end, and tune.md, tune.json and tune.html."""
    folder, title = search.folder, f"Search from {name}"
    if found["best"] is not None:
        write_file(folder / "best.toml", best_toml(search, found["best"], name).encode())
    write_file(folder / "tune.json", f"{json.dumps(found, indent=1, ensure_ascii=False)}\n".encode())
    write_file(folder / "tune.md", f"# {title}\n\n    {found['command']}\n\n{to_markdown(found)}\n".encode())
    page = {**found, "head": HEAD, "rows": rows(found), "left": 2, "notes": list(notes(found))}
    write_file(folder / "tune.html", html_page("tune", page, title=title).encode())


def best_toml(search: Search, trial: int, name: str) -> str:
    """Return the settings of a trial, for a training of the length that the given settings state."""
    changes = [f"# {path} = {value}" for path, value in search.chosen(trial).items()] or ["# nothing"]
    head = f"# Settings of trial {trial} of `translume tune {name}`, by trainings of {search.seconds:.0f} s. Changed:"
    return "\n".join([head, *changes, "", search.config(trial).relative_to(Path.cwd()).to_toml(stated=True)])
