"""A language model continues prompts, and forced decoding reproduces every score."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from shutil import copytree

import pytest
import torch
from click.testing import CliRunner
from tests.errors import raises

from translume.cli import main
from translume.config import Config, DecodingSettings
from translume.errors import SettingsError, TranslationError
from translume.translator import Generation, Generator
from translume.translator.scoring import spans

STRATEGIES = [
    {"strategy": "greedy"},
    {"strategy": "beam", "beam": 3, "nbest": 3},
    {"strategy": "sampling", "samples": 3, "nbest": 3, "seed": 5},
    {"strategy": "sampling", "top_k": 4, "temperature": 1.3},
    {"strategy": "stochastic", "samples": 3, "nbest": 3},
    {"strategy": "diverse", "beam": 4, "groups": 2, "nbest": 2},
]


@pytest.mark.parametrize("changes", STRATEGIES)
@pytest.mark.parametrize("prompt", ["", "aa bb cc", "gg hh and"])
def test_forced_decoding_reproduces_every_score(changes: dict[str, object], prompt: str, generator: Generator) -> None:
    found = generator.generate(prompt, settings=DecodingSettings.model_validate(changes))
    assert len(found.hypotheses) == changes.get("nbest", 1)
    assert found.text == found.hypotheses[0].text
    for hypothesis in found.hypotheses:
        score = generator.score(hypothesis, prompt=prompt)
        assert score.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
        assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=1e-4)
        assert (hypothesis.ids[-1] == generator.tokenizer.specials.eos) == (hypothesis.finished_by == "eos")


@pytest.mark.parametrize("strategy", ["sampling", "greedy"])
def test_a_text_beyond_the_context_is_continued_in_windows_that_score_reproduces(
    strategy: str, generator: Generator
) -> None:
    settings = DecodingSettings.model_validate({"strategy": strategy, "max_length": 41, "min_length": 41, "seed": 2})
    found = generator.generate("aa bb", settings=settings)
    (hypothesis,) = found.hypotheses
    assert len(hypothesis.ids) == 41
    assert generator.context == 11
    score = generator.score(hypothesis, prompt="aa bb")
    assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=1e-4)
    assert found.warnings == ()


def test_rules_hold_across_windows(generator: Generator) -> None:
    """Of the nine words of the model, 27 tokens are a third of all pairs; a window has 11."""
    found = generator.generate("aa bb", strategy="greedy", max_length=27, min_length=27, no_repeat_ngram=2, ban=["dd"])
    ids = found.hypotheses[0].ids
    assert len(ids) == 27
    assert len(set(pairwise(ids))) == 26
    assert "dd" not in found.text.split()
    assert "dd" in generator.generate("aa bb", strategy="greedy", max_length=27).text


def test_unknown_words_are_counted_and_never_written(generator: Generator) -> None:
    found = generator.generate("aa xyz bb", strategy="sampling", temperature=9.0, max_length=31, min_length=31)
    assert generator.tokenizer.specials.unk not in found.hypotheses[0].ids
    assert found.warnings == ("unknown: 1 of the 3 tokens of the prompt are not in the vocabulary",)
    assert generator.perplexity(["aa xyz bb", "aa"]).unknown == 1
    assert generator.perplexity(["aa bb"]).unknown == 0


@pytest.mark.parametrize(
    "changes", [{"strategy": "sampling", "samples": 7, "seed": 3}, {"strategy": "beam", "beam": 5}]
)
@pytest.mark.parametrize("prompt", ["", "aa bb"])
def test_the_text_of_least_risk_is_chosen_among_all(
    changes: dict[str, object], prompt: str, generator: Generator
) -> None:
    settings = DecodingSettings.model_validate({**changes, "max_length": 6, "utility": "chrf"})
    width = 7 if "samples" in changes else 5
    every = generator.generate(prompt, settings=settings.model_copy(update={"nbest": width}))
    assert 2 < len(every.hypotheses) <= width  # equal texts are one
    few = generator.generate(prompt, settings=settings.model_copy(update={"nbest": 2}))
    assert few.hypotheses == every.hypotheses[:2]
    one, _ = generator.generate_all([prompt, "cc"], settings=settings)
    assert one.hypotheses == every.hypotheses[:1]


def test_it_continues_the_alphabet(generator: Generator) -> None:
    text = generator.generate("aa bb cc", strategy="greedy", max_length=3).text
    assert text.split()[0] in ("dd", "and")


def test_a_prompt_gets_the_same_texts_in_any_company(generator: Generator) -> None:
    prompts = ["aa", "", "cc dd ee ff", "bb", "aa bb cc", "hh", "cc dd", ""]
    settings = DecodingSettings(strategy="sampling", seed=3, max_length=9)
    together = list(generator.generate_all(prompts, settings=settings))
    assert [each.prompt for each in together] == prompts
    for prompt, found in zip(prompts, together, strict=True):
        alone = generator.generate(prompt, settings=settings)
        assert alone.text == found.text
        assert alone.hypotheses[0].log_prob == pytest.approx(found.hypotheses[0].log_prob, abs=1e-4)


@pytest.mark.parametrize("changes", [*STRATEGIES, {"strategy": "sampling", "max_length": 37}])
def test_the_parts_of_a_stream_are_the_text(changes: dict[str, object], generator: Generator) -> None:
    settings = DecodingSettings.model_validate(changes)
    parts, found = drained(generator, "aa bb", settings)
    assert "".join(parts) == found.text == generator.generate("aa bb", settings=settings).text
    if changes["strategy"] == "greedy":
        assert len(parts) > 1


def drained(generator: Generator, prompt: str, settings: DecodingSettings) -> tuple[list[str], Generation]:
    parts, steps = [], generator.stream(prompt, settings=settings)
    while True:
        try:
            parts.append(next(steps))
        except StopIteration as stop:
            return parts, stop.value


def test_the_end_of_the_context_is_reported(generator: Generator) -> None:
    found = generator.generate("aa bb cc", settings=DecodingSettings(strategy="greedy", min_length=30))
    assert found.hypotheses[0].finished_by == "length"
    assert found.prompt_tokens == 3
    assert found.warnings == (
        "context_full: the prompt of 3 tokens and 8 after it fill the context of 11; "
        "max_length above that continues a text of strategy 'sampling' or 'greedy'",
    )
    assert found.to_dict()["warnings"][0]["kind"] == "context_full"


def test_a_prompt_longer_than_the_context_is_refused_with_counts(generator: Generator) -> None:
    with pytest.raises(TranslationError) as caught:
        generator.generate("aa bb cc dd ee ff gg hh " * 2)
    assert str(caught.value) == ("the prompt has 17 tokens, expected at most 10: the model reads 11 with BOS")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (DecodingSettings(prefix="x"), "decoding.prefix: found 'x', must be '' for a language model"),
        (DecodingSettings(coverage_penalty=0.5), "decoding.coverage_penalty: found 0.5, must be 0.0 for"),
        (DecodingSettings(ban=("@nowhere",)), "nowhere"),
        (DecodingSettings(utility="comet"), "decoding.utility: found 'comet'; known: chrf, bleu"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(settings: DecodingSettings, message: str, generator: Generator) -> None:
    with pytest.raises(Exception, match=message):
        generator.generate("aa", settings=settings)


def test_a_stride_above_the_context_is_refused(generator: Generator) -> None:
    with pytest.raises(SettingsError) as caught:
        generator.perplexity(["aa"], stride=12)
    assert str(caught.value) == "stride: found 12, expected at most the context of 11 tokens"


def test_texts_without_a_token_are_counted_or_refused(generator: Generator) -> None:
    assert generator.perplexity(["aa", "", "bb"]).empty == 1
    with pytest.raises(TranslationError) as caught:
        generator.perplexity(["", ""])
    assert str(caught.value) == "perplexity: found no text among 2, expected at least one"


def test_windows_score_every_label_once_after_enough_others() -> None:
    assert list(spans(5, 8, 4)) == [(0, 5, 0)]
    assert list(spans(20, 8, 4)) == [(0, 8, 0), (4, 12, 8), (8, 16, 12), (12, 20, 16)]
    assert list(spans(18, 8, 8)) == [(0, 8, 0), (8, 16, 8), (16, 18, 16)]
    assert list(spans(11, 8, 2)) == [(0, 8, 0), (2, 10, 8), (4, 11, 10)]


def test_the_perplexity_of_a_text_is_that_of_its_score(generator: Generator) -> None:
    text = "aa bb cc dd ee ff gg hh aa bb cc"
    for stride in (1, 4, 11):
        score = generator.score(text, stride=stride)
        found = generator.perplexity([text], stride=stride)
        assert found.nats == pytest.approx(-score.log_prob, rel=1e-5)
        assert (found.tokens, found.words, found.characters) == (len(score.tokens), 11, 32)


def test_the_first_window_is_the_model_itself(generator: Generator) -> None:
    """By hand: log p of each token from the network's steps."""
    ids = generator.tokenizer.encode("cc dd ee")
    score = generator.score("cc dd ee")
    state, log_probs, prefix = generator.start(1), [], [generator.tokenizer.specials.bos]
    with torch.no_grad():
        for each in [*ids, generator.tokenizer.specials.eos]:
            belief, state = generator.step(torch.tensor([prefix]), state)
            log_probs.append(float(belief.log_probs()[0, each]))
            prefix.append(each)
    assert score.token_log_probs == pytest.approx(log_probs, abs=1e-5)


def run(arguments: Sequence[object], given: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(map(str, arguments)), input=given)
    return result.exit_code, result.stdout, result.stderr


def test_the_command_continues_a_prompt(folder: Path, generator: Generator) -> None:
    options = ("--strategy", "greedy", "--max-length", 3)
    text = generator.generate("aa bb", strategy="greedy", max_length=3).text
    for arguments in (["aa bb"], ["--prompt", "aa bb"]):
        assert run(["generate", folder, *arguments, *options]) == (0, f"aa bb{text}\n", "")
    code, output, _ = run(["generate", folder, "aa bb", *options, "--json"])
    value = json.loads(output)
    assert (code, value["prompt"], value["text"], value["prompt_tokens"]) == (0, "aa bb", text, 2)
    assert value["hypotheses"][0]["finished_by"] == "length"


def test_the_command_continues_each_line(folder: Path) -> None:
    code, output, _ = run(["generate", folder, "--strategy", "sampling", "--max-length", 2], "aa\n\ncc\n")
    texts = output.split("-----\n")
    assert (code, len(texts)) == (0, 3)
    assert texts[0].startswith("aa")
    assert texts[2].startswith("cc")


def test_a_prompt_that_is_too_long_is_named_after_the_texts_of_those_before_it(folder: Path) -> None:
    code, output, errors = run(["generate", folder, "--max-length", 2, "--json"], "aa\ncc\n" + "bb " * 30 + "\ndd\n")
    assert (code, [json.loads(line)["prompt"] for line in output.splitlines()]) == (1, ["aa", "cc"])
    assert errors == ("Error: line 3: the prompt has 31 tokens, expected at most 10: the model reads 11 with BOS\n")


def test_prompts_in_files_keep_their_line_breaks_and_are_continued_as_alone(
    folder: Path, generator: Generator, tmp_path: Path
) -> None:
    prompts = ["aa\nbb", "aa " * 20, "", "cc"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"p": prompt}) + "\n" for prompt in prompts))
    options = ["--strategy", "greedy", "--max-length", 3, "--output", tmp_path / "out", "--workers", 1]
    code, output, errors = run(["generate", folder, "--input", tmp_path / "a.jsonl", "--column", "p", *options])
    failure = "the prompt has 21 tokens, expected at most 10: the model reads 11 with BOS"
    assert (code, output) == (1, "")
    unknown = f"{tmp_path}/a.jsonl:1: unknown: 1 of the 1 tokens of the prompt are not in the vocabulary\n"
    assert errors.startswith(f"{unknown}warning: {tmp_path}/a.jsonl:2: {failure}; it has no result\n")
    found = [json.loads(line) for line in (tmp_path / "out" / "a.jsonl.jsonl").read_text().splitlines()]
    alone = {
        prompt: generator.generate(prompt, strategy="greedy", max_length=3).text
        for prompt in prompts
        if prompt != prompts[1]
    }
    assert found == [
        {"error": failure} if prompt == prompts[1] else {"prompt": prompt, "text": alone[prompt]} for prompt in prompts
    ]
    table = run(["generate", folder, "--input", tmp_path / "a.jsonl", *options])
    assert table == (1, "", f"Error: {tmp_path}/a.jsonl: a table, expected --column, that of the prompts\n")
    several = run(["generate", folder, "--input", tmp_path / "a", *options[4:], "--nbest", 2])
    assert several[2] == "Error: --nbest: expected --json as well with --input, which has all texts of a prompt\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["aa bb cc dd ee ff gg hh " * 2],
            1,
            "Error: the prompt has 17 tokens, expected at most 10: the model reads 11 with BOS\n",
        ),
        (["aa", "--prompt", "bb"], 2, "Error: PROMPT cannot be combined with --prompt\n"),
        (
            ["aa", "--set", "decoding.alignment=true"],
            1,
            "Error: decoding.alignment: found True, must be False for a language model\n",
        ),
        (["aa", "--set", "decoding.to=de"], 1, "Error: decoding.to: found 'de', must be '' for a language model\n"),
        (
            ["aa", "--set", "data.documents=line"],
            1,
            "Error: --set data.documents=line: this command changes only decoding.*; the model is already trained\n",
        ),
        (
            ["aa", "--top-p", "0.5"],
            1,
            "Error: decoding.top_p: strategy 'beam' does not read it, expected 'sampling'\n",
        ),
    ],
)
def test_misuse_is_one_line(arguments: list[str], code: int, message: str, folder: Path) -> None:
    found, output, errors = run(["generate", folder, *arguments])
    assert (found, output) == (code, "")
    assert errors.endswith(message)
    assert "Traceback" not in errors


def test_evaluate_prints_four_figures_with_signatures(folder: Path, files: Path, generator: Generator) -> None:
    lines = (files / "valid.txt").read_text().splitlines()
    found = generator.perplexity(lines, stride=4)
    code, output, errors = run(["evaluate", folder, files / "valid.txt", "--stride", 4])
    signature = "documents:23|end:yes|context:11|stride:4"
    assert (code, errors) == (0, f"{files}/valid.txt: 1 empty documents were not counted\n")
    assert output.splitlines() == [
        f"perplexity|unit:token|units:{found.tokens}|{signature} = {found.perplexity:.2f}",
        f"perplexity|unit:word|units:{found.words}|{signature} = {found.word_perplexity:.2f}",
        f"bits|unit:byte|units:{found.bytes}|{signature} = {found.bits_per_byte:.4f}",
        f"nats|unit:character|units:{found.characters}|{signature} = {found.nats_per_character:.4f}",
    ]
    code, output, _ = run(["evaluate", folder, files / "valid.txt", "--stride", 4, "--json"])
    assert json.loads(output) == found.to_dict()


def test_recorded_figures_name_the_one_file(folder: Path, files: Path, tmp_path: Path) -> None:
    model = copytree(folder, tmp_path / "model")
    assert run(["evaluate", model, files / "valid.txt", "--record"])[0] == 0
    _, shown, _ = run(["show", model])
    assert f"\nscores on {files}/valid.txt:\n" in shown
    assert "\nvalid.txt: perplexity|unit:token|" in (model / "README.md").read_text()


def test_evaluate_says_how_much_is_unknown(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("aa xyz bb\n")
    done = CliRunner().invoke(main, ["evaluate", str(folder), str(tmp_path / "a.txt")])
    assert done.stderr == (
        f"{tmp_path}/a.txt: 1 of 4 tokens are not in the vocabulary; "
        "figures by word, byte and character look better than they are\n"
    )


def test_prompts_before_an_unreadable_one_are_continued(folder: Path) -> None:
    done = CliRunner().invoke(main, ["generate", str(folder), "--strategy", "greedy"], input=b"aa bb\nx\xff\n")
    assert done.stdout.startswith("aa bb cc")
    assert done.exit_code == 1
    assert "\nError: standard input:2: not UTF-8 (byte 0xff at column 2)" in done.stderr


def test_evaluate_refuses_what_a_language_model_has_not(folder: Path, files: Path) -> None:
    file = files / "valid.txt"
    for arguments, message in (
        ([file, file], f"evaluate: {folder} is a language model: found 2 files, expected one with documents"),
        (
            [file, "--write", "-"],
            "--write cannot be combined with a language model",
        ),
        (
            [file, "--metrics", "bleu"],
            "evaluate: evaluation.metrics has no effect on a language model here",
        ),
        (
            [file, "--set", "decoding.max_tokens=99", "--beam", 3],
            "evaluate: decoding.beam has no effect on a language model here",
        ),
        (
            [file, "--hypotheses", file],
            "--hypotheses cannot be combined with a language model",
        ),
        ([files / "none.txt"], f"{files}/none.txt: no such file"),
    ):
        assert run(["evaluate", folder, *arguments]) == (1, "", f"Error: {message}\n")


STOPS = [
    ["dd"], ["d c"], ["c d"], ["cc dd ee"], [" dd"], ["xx", "ee f", "dd"], ["b cc d", "cc"], ["never"],
    ["e", "ff gg hh"],
]  # fmt: skip


@pytest.mark.parametrize("strings", STOPS, ids="+".join)
@pytest.mark.parametrize("changes", [{"strategy": "greedy"}, *STRATEGIES[1:]])
def test_a_text_is_cut_before_the_first_stop_string(
    strings: list[str], changes: dict[str, object], generator: Generator
) -> None:
    """Strings begin and end within tokens; those of the prompt do not count. Streams send nothing that is cut."""
    settings = DecodingSettings.model_validate({**changes, "max_length": 9, "stop_strings": strings})
    for prompt in ("", "aa bb", "dd ee"):
        found = generator.generate(prompt, settings=settings)
        for each in found.hypotheses:
            spelled = generator.tokenizer.decode([*generator.tokenizer.encode(prompt), *each.ids])
            own = spelled[len(generator.tokenizer.decode(generator.tokenizer.encode(prompt))) :]
            places = [own.find(string) for string in strings if string in own]
            assert each.text == own[: min(places, default=None)]
            assert (each.finished_by == "stop") == bool(places)
            assert each.finished_by != "stop" or each.ids[-1] != generator.tokenizer.specials.eos
            assert each.log_prob == pytest.approx(sum(each.token_log_probs))
        sent = ""
        for part in generator.stream(prompt, settings=settings):
            sent += part
            assert found.text.startswith(sent)
        assert sent == found.text


def test_a_stop_string_ends_the_search_of_its_text_only(generator: Generator) -> None:
    """The token after the string is not searched; a minimum length counts tokens, and the text is cut all the same."""
    stopped = generator.generate("aa bb", strategy="greedy", max_length=31, min_length=0, stop_strings="dd")
    (hypothesis,) = stopped.hypotheses
    assert hypothesis.tokens[-1] == "▁dd"
    later = generator.generate("aa bb", strategy="greedy", max_length=31, min_length=7, stop_strings="dd")
    assert later.text == stopped.text
    assert len(later.hypotheses[0].ids) == 7
    first, second = generator.generate_all(
        ["aa bb", "cc dd"], settings=DecodingSettings(strategy="greedy", max_length=5, stop_strings=("dd",))
    )
    assert first.text == stopped.text
    assert second == generator.generate("cc dd", strategy="greedy", max_length=5, stop_strings=["dd"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop_strings": ["a"] * 17}, "generate: decoding.stop_strings: found 17 texts, expected at most 16"),
        ({"stop_strings": ["a", ""]},
         "generate: decoding.stop_strings: found an empty text, expected one that can end a text"),
        ({"stop": "x"},
         "generate: decoding.stop: found 'x', expected 'optimal' or 'first'; stop_strings has texts that end a text"),
    ],
)  # fmt: skip
def test_stop_strings_that_cannot_be_are_refused(
    changes: dict[str, object], message: str, generator: Generator
) -> None:
    with raises(SettingsError, message):
        generator.generate("aa", **changes)  # type: ignore[arg-type]  # by a user


def test_models_that_read_a_source_refuse_stop_strings() -> None:
    message = "decoding.stop_strings: found ('a',), must be () for a model that reads a source"
    with raises(SettingsError, message):
        Config().check_decoding(DecodingSettings(stop_strings=("a",)))
