"""The result of a search: its table, the best settings as TOML, JSON, and a page."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from translume.atomic import write_file
from translume.evaluation.groups import aligned
from translume.experiments.search_space import describe
from translume.experiments.tuning import BEST, RUNGS, Search
from translume.inspection.pages import html_page

HEAD = ("trial", "settings", "updates", "search", "other seeds")


def report(search: Search, command: str) -> dict[str, Any]:
    """Return what a search has found so far, as values for JSON.

    "best", "ranking": numbers of trials; the best is None if none came to its end.  "value": of a trial by "metric".
    "curve": seconds of training and what "pruned_by" names.  "repeated": values by seed; "mean", "sd": theirs (n − 1).
    """
    return {
        "command": command,
        "metric": search.metric,
        "pruned_by": search.early,
        "larger_is_better": search.larger,
        "pruned_by_larger": search.larger and search.early_sign == 1,
        "training_seconds": search.seconds,
        "seconds": search.spent,
        "space": [str(each) for each in search.space],
        "trials": [_trial(search, number) for number in range(len(search.study.trials))],
        "ranking": search.ranked(),
        "best": search.best(),
        "importance": importance(search),
    }


def _trial(search: Search, number: int) -> dict[str, Any]:
    trial, repeated = search.study.trials[number], search.repeated(number)
    values, failure = list(repeated.values()), trial.user_attrs.get("failure", "")
    times = (share * search.seconds for share in RUNGS)
    return {
        "number": number,
        "state": "failed" if failure else trial.state.name.lower(),
        "failure": failure,
        "chosen": search.chosen(number),
        "parameters": trial.params,
        "updates": search.updates(number),
        "curve": [list(pair) for pair in zip(times, search.curve(number), strict=False)],
        "value": trial.value if trial.state.name == "COMPLETE" else None,
        "repeated": repeated,
        "mean": statistics.fmean(values) if values else None,
        "sd": statistics.stdev(values) if len(values) > 1 else None,
    }


def importance(search: Search) -> dict[str, float]:
    """Return the share of each setting in the variance of the values after the first quarter of a training.

    All trials have these values, but only the best have later ones. The shares sum to one and are estimated by
    PED-ANOVA (Watanabe et al. 2023); empty for fewer than five trials, or if they are equal.
    """
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    trials = [
        each for each in search.study.trials if each.intermediate_values and len(each.params) == len(search.space)
    ]
    if len(trials) < 5 or len({each.intermediate_values[1] for each in trials}) < 2:
        return {}
    early = optuna.create_study(direction="maximize" if search.larger else "minimize")
    for each in trials:
        value = each.intermediate_values[1]
        early.add_trial(optuna.trial.create_trial(params=each.params, distributions=each.distributions, value=value))
    return dict(get_param_importances(early, evaluator=PedAnovaImportanceEvaluator()))


def rows(content: dict[str, Any]) -> list[list[str]]:
    """Return a row of HEAD for the best trials and the first one, without those that did not come to their end."""
    shown = [each for each in content["ranking"] if each == 0 or each in content["ranking"][:BEST]]
    return [_row(content["trials"][number], best=number == content["best"]) for number in shown]


def _row(trial: dict[str, Any], *, best: bool) -> list[str]:
    again = "–" if trial["mean"] is None else f"{trial['mean']:.3f}"
    again += "" if trial["sd"] is None else f" ± {trial['sd']:.3f}"
    settings = describe(trial["chosen"]) or "as given"
    return [f"{trial['number']}{'*' * best}", settings, f"{trial['updates']:,}", f"{trial['value']:.3f}", again]


def notes(content: dict[str, Any]) -> Iterator[str]:
    """Yield what the table means, one paragraph each."""
    states = [each["state"] for each in content["trials"]]
    better = "larger" if content["larger_is_better"] else "smaller"
    yield (
        f"* the best: {content['metric']} on the validation set ({better} is better) after trainings of "
        f"{content['training_seconds']:.0f} s. Trials: {states.count('complete')} trained to the end, "
        f"{states.count('pruned')} pruned, {states.count('failed')} failed, {states.count('running')} unfinished."
    )
    if content["best"] is None:
        return
    best = content["trials"][content["best"]]
    if content["best"] == 0:
        yield "No trial beat the settings as they were given."
    elif best["mean"] is None:
        yield "The best were not repeated with other seeds: the value of the search is the best of many, and too good."
    else:
        yield (
            "The value of the search is the best of many, and so too good on average. Expect the mean over other "
            f"seeds, {best['mean']:.3f}, from a training of this time."
        )


def to_markdown(content: dict[str, Any]) -> str:
    """Return the table and its notes as Markdown that is readable as plain text."""
    return "\n\n".join(["\n".join(aligned(HEAD, rows(content), left=2)), *notes(content)])


def save(search: Search, content: dict[str, Any], name: str) -> None:
    """Write best.toml, if a trial was trained to the end, and tune.json and tune.html.  name: of the given file."""
    if content["best"] is not None:
        changes = [f"# {path} = {value}" for path, value in search.chosen(content["best"]).items()] or ["# nothing"]
        head = (
            f"# Settings of trial {content['best']} of `translume tune {name}`, by trainings of {search.seconds:.0f} s."
        )
        config = search.config(content["best"]).relative_to(Path.cwd()).to_toml(stated=True)
        write_file(search.folder / "best.toml", "\n".join([head, "# Changed:", *changes, "", config]).encode())
    write_file(search.folder / "tune.json", f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode())
    page = {**content, "head": HEAD, "rows": rows(content), "left": 2, "notes": list(notes(content))}
    write_file(search.folder / "tune.html", html_page("tune", page, title=f"Search from {name}").encode())
