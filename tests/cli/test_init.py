"""`init` reads the data and recommends settings."""

import gzip
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from translume.config import Config
from translume.data.pairs import Pair
from translume.experiments.columns import language_of
from translume.experiments.minutes import fit_to_minutes, pairs_for, seconds_for_updates, update_seconds
from translume.experiments.proposals import choose_pairs as choose
from translume.experiments.survey import Side, copied_share, survey
from translume.experiments.table import table


def side(language: str = "en", script: str = "latin", characters: int = 61, **more: float) -> Side:
    words, length = more.get("words", 11.0), more.get("length", 57.0)
    return Side(
        language=language, script=script, characters=characters, words=words, length=length, cased=True, tokenized=False
    )


def chosen(pairs: int, source: Side, target: Side) -> dict[str, object]:
    return {choice.path: choice.value for choice in choose(pairs, source, target)}


@pytest.mark.parametrize("pairs", [100, 5_001, 29_000, 100_000, 500_000, 2_000_000, 10_000_000, 10**8])
def test_recommended_settings_for_any_size_are_valid(pairs: int) -> None:
    overrides = [f"{path}={value!r}" for path, value in chosen(pairs, side(), side("de")).items()]
    overrides = [text.replace("True", "true").replace("False", "false").replace("(", "[") for text in overrides]
    config = Config().change(*(text.replace(")", "]") for text in overrides))
    assert config.tokenizer.size >= 1000


def test_more_data_never_recommends_a_smaller_model_or_more_dropout() -> None:
    rows = table()["rows"]
    for smaller, larger in pairwise(row for row in rows if row["data"] == "text"):
        assert smaller["up_to"] < larger["up_to"]
        assert smaller["width"] <= larger["width"]
        assert smaller["vocabulary"] <= larger["vocabulary"]
        assert smaller["dropout"] >= larger["dropout"]
    for smaller, larger in pairwise(rows):
        assert smaller["data"] != larger["data"] or smaller["up_to"] < larger["up_to"]


def test_each_row_names_recipes_that_exist() -> None:
    recipes = {path.stem for path in (Path(__file__).parents[2] / "recipes").glob("*.toml")}
    assert {recipe for row in table()["rows"] for recipe in row["recipes"]} <= recipes


def chosen_for(pairs: int, minutes: float) -> dict[str, object]:
    choices = fit_to_minutes(choose(pairs_for(pairs, minutes), side(), side("de")), pairs, minutes)
    return {choice.path: choice.value for choice in choices}


@pytest.mark.parametrize("minutes", [1, 7, 31, 240])
@pytest.mark.parametrize("pairs", [1_009, 29_000, 500_009, 10**8])
def test_a_training_of_some_minutes_ends_with_a_rate_of_zero_within_them(pairs: int, minutes: float) -> None:
    given = chosen_for(pairs, minutes)
    shape = {path.rpartition(".")[2]: value for path, value in given.items()} | {"vocabulary": given["tokenizer.size"]}
    updates = given["training.updates"]
    assert updates * update_seconds(shape, given["training.max_tokens"]) <= seconds_for_updates(minutes) < 60 * minutes
    if given != chosen(pairs, side(), side("de")):
        assert given["training.schedule"] == "cosine"
        assert given["training.validate_every"] == updates
        assert 39 <= updates // given["training.save_every"] <= 42
        assert 8 * given["training.warmup_updates"] <= updates
        assert "training.patience" not in given


def test_more_minutes_never_propose_a_smaller_model_smaller_batches_or_less_dropout() -> None:
    for pairs in (1_009, 29_000, 500_009):
        rows = [chosen_for(pairs, minutes) for minutes in (1, 3, 7, 13, 31, 61, 127, 1009, 100_003)]
        for fewer, more in pairwise(rows):
            for name in ("model.width", "model.encoder_layers", "tokenizer.size", "training.max_tokens"):
                assert fewer[name] <= more[name], (pairs, name)
        assert rows[-1] == chosen(pairs, side(), side("de"))


def test_a_training_that_reads_the_data_a_few_times_gets_little_dropout() -> None:
    assert [chosen_for(29_000, minutes)["model.dropout"] for minutes in (1, 6, 31)] == [0.1, 0.1, 0.3]
    assert chosen_for(10**8, 6)["model.dropout"] == 0.1


def test_symbols_that_repeat_a_text_are_its_pieces_and_copied() -> None:
    """The state of a dialogue: its words are few, those of the dialogue are not."""
    text = replace(side(""), texts=2_500, types=2_600, recurring=0.98, scripts=frozenset({"latin"}))
    states = replace(side(""), texts=2_500, types=90, recurring=1.0, cased=False, copied=0.5)
    found = chosen(2_500, text, states)
    assert (found["tokenizer.kind"], "tokenizer.target_kind" in found) == ("bpe", False)
    assert (found["tokenizer.shared"], found["tokenizer.lowercase"]) == (True, True)
    assert (found["model.head.kind"], found["model.positions"]) == ("copy", "rotary")
    assert (found["training.metric"], found["evaluation.metrics"]) == ("exact_match", ("exact_match",))
    assert "tokenizer.lowercase" not in chosen(2_500, replace(text, cased=False), states)
    assert chosen(2_500, text, replace(states, copied=0.2))["tokenizer.target_kind"] == "word"
    few = chosen(2_500, replace(text, types=1_900), states)
    assert (few["tokenizer.kind"], few["model.head.kind"]) == ("word", "copy")


def test_turns_of_dialogues_and_sentences_of_stories_are_segments() -> None:
    """The sign that ends them is in every source, and repeated; other targets and templates are not changed by it."""
    dialogue = survey(["[usr] Thai?", "[usr] Thai? [sys] No! Other? [usr] Yes. [sys] [12]"], "")
    assert (dialogue.separator, dialogue.parts) == ("]", 6)
    text = replace(side(""), texts=2_500, types=1_900, recurring=0.98, scripts=frozenset({"latin"}))
    text = replace(text, separator="]", parts=17)
    states = replace(side(""), texts=2_500, types=90, recurring=1.0, cased=False, copied=0.5)
    found = chosen(2_500, text, states)
    assert (found["model.segments"], found["model.segment_separator"]) == (32, "]")
    assert chosen(2_500, replace(text, parts=16), states)["model.segments"] == 16
    assert chosen(2_500, replace(text, parts=400), states)["model.segments"] == 128
    others = [(text, replace(states, copied=0.2)), (text, side("")), (replace(text, separator=""), states)]
    for source, target in others:
        assert "model.segments" not in chosen(2_500, source, target)
    parts = {choice.path: choice.value for choice in choose(2_500, text, states, parts=2)}
    assert (parts["model.segments"], "model.segment_separator" in parts) == (2, False)


def test_the_encoder_reads_the_sentences_of_stories_if_targets_are_short_answers() -> None:
    words = {"texts": 20_000, "types": 150, "recurring": 1.0, "scripts": frozenset({"latin"})}
    story = replace(side("", words=60.0), **words, separator=".", parts=70, longest_words=490)
    answer = replace(side("", words=1.1, length=6.0), **words, copied=0.6)
    found = chosen(20_000, story, answer)
    assert (found["model.segments"], found["model.segment_pooling"]) == (128, "sum")
    assert ("model.head.kind" in found, found["tokenizer.shared"], found["model.head.tie"]) == (False, True, "all")
    assert (found["model.encoder_layers"], found["model.shared_layers"], found["model.dropout"]) == (6, True, 0.1)
    more = chosen(190_000, story, answer)
    assert (more["model.encoder_layers"], "model.shared_layers" in more, more["model.dropout"]) == (4, False, 0.0)
    assert (chosen(900, story, answer)["training.updates"], found["data.cleaning.too_long"]) == (1_000, "keep_last")
    parts = {choice.path: choice.value for choice in choose(20_000, story, answer, parts=2)}
    assert (parts["model.segments"], "model.segment_pooling" in parts, parts["model.head.kind"]) == (2, False, "copy")
    assert "model.segment_pooling" not in chosen(20_000, replace(story, separator="]"), answer)
    found = chosen(20_000, story, replace(answer, words=2.1))
    assert ("model.segment_pooling" in found, found["model.head.kind"]) == (False, "copy")


@pytest.mark.parametrize(
    ("texts", "separator", "parts"),
    [
        (["a . b .", "a . b . c ."], ".", 4),
        (["a . b .", "a . b . c"], ".", 3),
        (["a . b .", "a ."], "", 1),
        (["a . b .", "a, b, c"], "", 1),
        (["(a ( b", "(a"], "", 1),
        (["x = 1 , y = 2 ; ok ;"] * 2, ";", 3),
        (["", "a . b .", " ", "a . b . c ."], ".", 4),
        ([], "", 1),
    ],
)
def test_a_separator_is_in_every_text_and_on_average_twice(texts: list[str], separator: str, parts: int) -> None:
    found = survey(texts, "")
    assert (found.separator, found.parts) == (separator, parts)


def test_letters_have_many_small_updates_and_no_early_end() -> None:
    """Those of the recipes for pronunciation (targets of symbols) and for inflection (targets of letters)."""
    letters = side("", words=1.0, length=9.0)
    phones = replace(side("", words=8.0), texts=3_600, types=70, recurring=1.0)
    for target, updates in ((letters, 10_000), (phones, 3_000)):
        small, middle, large = (chosen(pairs, letters, target) for pairs in (3_600, 33_000, 60_001))
        assert (small["training.updates"], small["training.max_tokens"]) == (updates, 1024)
        assert (middle["training.updates"], middle["training.max_tokens"]) == (8_000, 2048)
        assert (small["training.schedule"], "training.patience" in middle) == ("cosine", False)
        assert ("training.schedule" in large, large["training.patience"]) == (False, 8)
        assert (small["model.encoder_layers"], small["model.decoder_layers"]) == (3, 2)


def test_texts_that_repeat_their_sources_get_the_models_of_their_recipes() -> None:
    """Translations and states of dialogues do not; summaries alone are searched without repeated trigrams."""
    text, copied = side(""), replace(side(""), copied=0.5)
    found = chosen(40_000, text, copied)
    assert (found["model.encoder_layers"], found["model.feed_forward"], found["model.dropout"]) == (2, 512, 0.2)
    assert (found["model.positions"], found["training.updates"], found["tokenizer.size"]) == ("rotary", 4_000, 4_000)
    assert (found["training.schedule"], "training.patience" in found) == ("cosine", False)
    assert "decoding.no_repeat_ngram" not in found
    found = chosen(2_000, side("", words=30.0), replace(side("", words=10.0), copied=0.5))
    assert (found["training.updates"], found["model.dropout"], found["decoding.no_repeat_ngram"]) == (2_000, 0.3, 3)
    for pairs, target in ((70_000, copied), (40_000, side("de"))):
        assert chosen(pairs, text, target)["model.feed_forward"] != 512


def test_formal_languages_get_the_models_of_their_recipes() -> None:
    """Those of logical-forms.toml, of atis.toml and woz2.toml, and of cogs.toml."""
    for pairs, updates, tokens, dropout in (
        (600, 2_000, 2048, 0.3),
        (4_434, 4_000, 1536, 0.3),
        (24_155, 8_000, 2048, 0.1),
    ):
        found = chosen(pairs, FORMAL, FORMAL)
        assert [found[f"training.{name}"] for name in ("updates", "max_tokens")] == [updates, tokens]
        assert (found["model.dropout"], found["model.positions"]) == (dropout, "rotary")


def test_copied_words_and_numbers_are_counted_in_the_source_of_their_pair() -> None:
    texts = [("call getName ( 12 )", "GetName 12 call()"), ("a b", "getName")]
    assert copied_share(Pair(source=source, target=target, file="", line=1) for source, target in texts) == 2 / 4
    assert copied_share([]) == 0.0


def test_suffixes_of_code_are_not_taken_for_languages(run, tmp_path: Path) -> None:
    (tmp_path / "train.java").write_text("public int getSize() { return size; }\n" * 31)
    (tmp_path / "train.cs").write_text("public virtual int GetSize() { return size; }\n" * 31)
    result = run("init", tmp_path / "train.java", tmp_path / "train.cs")
    data = Config.parse(result.stdout, place="init").data
    assert (data.source_language, data.target_language) == ("", "")


WORD = side(words=1.0, length=8.0)
FORMAL = replace(side(""), texts=20_000, types=700, recurring=1.0)
FORMS = replace(side(""), texts=500, types=180, recurring=1.0)
SUMMARY = replace(side("", words=10.0), copied=0.7)
RUSSIAN = side("", "cyrillic", words=30.0), replace(side("", "cyrillic", words=10.0), copied=0.7)


@pytest.mark.parametrize(
    ("pairs", "source", "target", "values"),
    [
        # The shape of the published tiny Transformer of Multi30k.
        (29_000, side(), side("de"), "width=128 feed_forward=256 attention_heads=4 encoder_layers=4 decoder_layers=4 "
         "dropout=0.3 tokenizer.size=10000 shared=True tie=all schedule=cosine decoding.patience=None"),
        # Training stops early only if enough pairs are held out to see an improvement.
        (5_000, side(), side("de"), "patience=None"),
        (5_001, side(), side("de"), "patience=8"),
        # Different scripts get two vocabularies, large enough for all characters.
        (25_000, side(), side("zh", "han", 2100, words=1.0, length=10.0),
         "shared=False tie=target tokenizer.size=6500 tokenize=zh metric=chrf"),
        (3_600, WORD, WORD, "tokenizer.kind=character metric=exact_match decoding.patience=2"),
        # Formal languages choose the model of COGS: words are tokens, and the vocabulary stays that of the words.
        (20_000, FORMAL, FORMAL, "encoder_layers=2 decoder_layers=2 dropout=0.1 positions=rotary updates=8000 "
         "tokenizer.size=900 schedule=cosine training.patience=None"),
        (20_000, side(), FORMAL, "encoder_layers=2"),
        (400_000, FORMAL, FORMAL, "width=512"),
        # Logical forms that repeat names share a vocabulary and copy.
        (500, FORMS, replace(FORMS, copied=0.25), "shared=True tokenizer.size=500 head.kind=copy tie=all"),
        (500, FORMS, replace(FORMS, copied=0.24), "shared=False head.kind=None tie=target"),
        # Summaries copy and are measured by ROUGE, which counts Latin words only; longer targets are no summaries.
        (2_000, side("", words=30.0), SUMMARY, "head.kind=copy training.metric=rougeL "
         "metrics=('rouge1','rouge2','rougeL') tokenize=None decoding.patience=2 tokenizer.lowercase=True"),
        (60_001, side("", words=30.0), SUMMARY, "training.metric=rougeL tokenizer.lowercase=None"),
        (2_000, side("", words=30.0), replace(SUMMARY, cased=False), "tokenizer.lowercase=None"),
        (2_000, side("", words=29.0), SUMMARY, "head.kind=copy training.metric=bleu"),
        (2_000, *RUSSIAN, "head.kind=copy training.metric=bleu"),
        # Summaries read twice the mean length of their texts, in a power of two of positions.
        (14_000, replace(side("", words=118.0), longest_pieces=900), SUMMARY, "cleaning.max_tokens=248 "
         "too_long=keep_first max_positions=None"),
        (14_000, replace(side("", words=29.0), longest_pieces=900), SUMMARY, "cleaning.max_tokens=2040"),
    ],
)  # fmt: skip
def test_settings_follow_from_the_data(pairs: int, source: Side, target: Side, values: str) -> None:
    """The values are those of settings whose paths end so; None: the setting is not proposed."""
    found = chosen(pairs, source, target)
    for name, value in (each.split("=") for each in values.split()):
        proposed = [str(each) for path, each in found.items() if f".{path}".endswith(f".{name}")]
        assert [each.replace(" ", "") for each in proposed] == ([] if value == "None" else [value]), name


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        ({"longest_pieces": 128}, {"longest_pieces": 30}, {}),
        ({"longest_pieces": 129}, {"longest_pieces": 30}, {"data.cleaning.max_tokens": 504}),
        ({"longest_pieces": 30}, {"longest_pieces": 427}, {"data.cleaning.max_tokens": 1016}),
        ({"longest_pieces": 9000}, {"longest_pieces": 30},
         {"data.cleaning.max_tokens": 2040, "model.max_positions": 2048}),
        ({"longest_pieces": 427, "language": ""}, {"longest_pieces": 30, "language": ""},
         {"data.cleaning.max_tokens": 1016, "data.cleaning.too_long": "keep_first"}),
        ({"longest_pieces": 427}, {"longest_pieces": 30, "language": "en"},
         {"data.cleaning.max_tokens": 1016, "data.cleaning.too_long": "keep_first"}),
    ],
)  # fmt: skip
def test_limits_fit_the_lengths_of_the_texts(
    source: dict[str, object], target: dict[str, object], wanted: dict[str, object]
) -> None:
    found = chosen(2000, replace(side("en"), **source), replace(side("de"), **target))
    limits = ("data.cleaning.max_tokens", "data.cleaning.too_long", "model.max_positions")
    assert {path: value for path, value in found.items() if path in limits} == wanted


def test_lengths_are_counted_in_words_in_pieces_and_in_characters() -> None:
    found = survey(["It_is 14 °C, no?"], "en")
    assert (found.longest_words, found.longest_pieces, found.longest_characters) == (4, 10, 16)


def test_symbols_are_counted_as_words() -> None:
    target = survey(["I_TURN_RIGHT " * 100] * 300, "")
    found = chosen(300, replace(side(""), texts=300, types=9, recurring=1.0), target)
    assert not {"data.cleaning.max_tokens", "data.cleaning.too_long"} & set(found)


def test_abstracts_are_not_dropped_with_what_init_proposes(run, tmp_path: Path) -> None:
    for name, words in (("train.src", 300), ("train.tgt", 20)):
        lines = (" ".join(f"word{chr(97 + (line + word) % 26)}." for word in range(words)) for line in range(60))
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    result = run("init", tmp_path / "train.src", tmp_path / "train.tgt")
    assert result.exit_code == 0, result.stderr
    data = Config.parse(result.stdout, place="init").data
    assert (data.cleaning.max_tokens, data.cleaning.too_long) == (1016, "keep_first")


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("train.en", "en"),
        ("train.lc.norm.tok.de.gz", "de"),
        ("corpus.zh-Hant.zst", "zh-Hant"),
        ("train.txt", ""),
        ("sentences", ""),
        ("train.tok", ""),
        ("train.in", ""),
        ("train.out", ""),
        ("train.csv", ""),
        ("train.dak", "dak"),
    ],
)
def test_languages_are_guessed_from_suffixes(name: str, language: str) -> None:
    assert language_of(Path(name)) == language


def test_a_survey_finds_script_case_and_tokenization() -> None:
    russian = survey(["Привет , мир .", "Как дела ?"], "")
    assert (russian.script, russian.cased, russian.tokenized, russian.unspaced) == ("cyrillic", True, True, False)
    chinese = survey(["你好。", "今天天气很好。"], "")
    assert (chinese.script, chinese.language, chinese.unspaced) == ("han", "zh", True)
    japanese = survey(["漢字漢字漢字とかな"], "")
    assert (japanese.script, japanese.language) == ("hiragana", "ja")


def test_init_prints_toml_that_a_run_reads(run, files: Path) -> None:
    result = run("init", files / "train.en", files / "train.de")
    assert result.exit_code == 0
    assert result.stderr == "121 pairs, latin to latin; 2 % of it held out for validation\n"
    assert result.stdout.startswith("# Settings for 121 pairs, written by `translume init`")
    assert tomllib.loads(result.stdout)["data"] == {
        "source_language": "en",
        "target_language": "de",
        "train_source": str(files / "train.en"),
        "train_target": str(files / "train.de"),
    }
    Config.parse(result.stdout)


def test_init_prints_settings_for_some_minutes(run, files: Path) -> None:
    result = run("init", files / "train.en", files / "train.de", "--minutes", "1.5")
    assert "  # for 1.5 min of one core; " in result.stdout
    assert Config.parse(result.stdout).training.schedule == "cosine"
    many = run("init", files / "train.en", files / "train.de", "--both", "--minutes", "1.5")
    assert "  # for 1.5 min of one core; " in many.stdout


def test_init_finds_validation_files_beside_the_training_files(run, files: Path) -> None:
    for language in ("en", "de"):
        (files / f"val.{language}").write_text("a b\n", encoding="utf-8")
    result = run("init", files / "train.en", files / "train.de")
    assert tomllib.loads(result.stdout)["data"]["valid_target"] == str(files / "val.de")
    assert result.stderr == f"121 pairs, latin to latin; validated on {files}/val.en\n"


def test_validation_files_are_two_of_one_name_compressed_or_not(run, files: Path) -> None:
    (files / "valid.en").write_text("a\n")
    (files / "dev.de").write_text("b\n")
    data = tomllib.loads(run("init", files / "train.en", files / "train.de").stdout)["data"]
    assert not any(name.startswith("valid") for name in data)
    with gzip.open(files / "dev.en.gz", "wt") as file:
        file.write("a\n")
    data = tomllib.loads(run("init", files / "train.en", files / "train.de").stdout)["data"]
    assert (data["valid_source"], data["valid_target"]) == (f"{files}/dev.en.gz", f"{files}/dev.de")


def test_init_for_several_pairs_prints_toml_of_one_model(run, files: Path) -> None:
    (files / "b.en").write_text("a dog runs\n" * 300, encoding="utf-8")
    (files / "b.fr").write_text("un chien court\n" * 300, encoding="utf-8")
    result = run("init", files / "train.en", files / "train.de", "--corpus", files / "b.en", files / "b.fr", "--both")
    config = Config.parse(result.stdout)
    directions = [(each.source_language, each.target_language) for each in config.data.corpus]
    assert directions == [("en", "de"), ("de", "en"), ("en", "fr"), ("fr", "en")]
    assert (config.data.corpus[1].train_source, config.data.sampling_temperature) == ((str(files / "train.de"),), 2.0)
    assert (config.tokenizer.shared, config.model.head.tie, config.model.language_tags) == (True, "all", "target")
    assert config.model.width == 128
    assert result.stderr == ("842 pairs, en to de, de to en, en to fr, fr to en; 2 % of it held out for validation\n")


def test_init_refuses_what_it_cannot_read(run, files: Path) -> None:
    pair = (files / "train.en", files / "train.de")
    (files / "corpus").write_text("a\n", encoding="utf-8")
    for words, message in (
        ((pair[0], "--both"), "--both: expected TRAIN_TARGET as well"),
        ((*pair, "--both", "--columns", "a,b"), "--columns cannot be combined with --both"),
        ((*pair, "--columns", "0,1"), "--columns cannot be combined with TRAIN_TARGET"),
        ((*pair, "--valid-source", "v"), "--valid-source: expected --valid-target as well"),
        ((pair[0], files / "corpus", "--both"),
         f"{files}/corpus: no language in the name, expected a name such as train.en"),
        ((pair[0], pair[0], "--both"), f"{pair[0]}, {pair[0]}: found the same language twice, expected two"),
        ((*pair, "--minutes", "7", "--task", "classification"),
         "--minutes: found data for 'classification', expected pairs of texts"),
        ((pair[0], "--minutes", "7"), "--minutes: found data for 'language_model', expected pairs of texts"),
        (("-", pair[1]), "init: found standard input, expected files, since settings name them"),
    ):  # fmt: skip
        result = run("init", *words)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")


def test_files_without_letters_are_reported(run, tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("12\n", encoding="utf-8")
    said = run("init", tmp_path / "train.en", tmp_path / "train.en").stderr
    assert said == "1 pair, no letters to no letters; too few to hold any out for validation\n"


def test_init_from_a_model_writes_a_small_file_that_fine_tunes_it(run, files: Path) -> None:
    toml = files / "en-de.toml"
    more = "label_smoothing = 0.2\n[decoding]\nbeam = 3\n"
    toml.write_text(toml.read_text(encoding="utf-8") + more, encoding="utf-8")
    assert run("train", toml, "--out", files / "base").exit_code == 0
    (files / "more.fr").write_text((files / "train.de").read_text(encoding="utf-8"), encoding="utf-8")
    result = run("init", "--from", files / "base", files / "train.en", files / "more.fr")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"{files}/more.fr: the name says 'fr', but the target language of {files}/base is 'de'",
        f"121 pairs to fine-tune {files}/base; 2 % of it held out for validation",
    ]
    values = tomllib.loads(result.stdout)
    assert set(values) == {"data", "training"}
    assert values["data"] == {"train_source": str(files / "train.en"), "train_target": str(files / "more.fr")}
    assert values["training"] == {
        "updates": 100,
        "max_tokens": 256,
        "learning_rate": 0.0001,
        "schedule": "cosine",
        "warmup_updates": 10,
        "validate_every": 10,
        "save_every": 10,
        "patience": 5,
        "label_smoothing": 0.2,
    }
    (files / "more.toml").write_text(result.stdout, encoding="utf-8")
    words = ["train", files / "more.toml", "--from", files / "base", "--out", files / "more"]
    result = run(*words, "--set", "training.updates=2", "--set", "training.warmup_updates=1")
    assert (result.exit_code, "warning" in result.stderr) == (0, False)
    settings = Config.read(next((files / "more").glob("config-*.toml")))
    assert (settings.data.target_language, settings.decoding.beam, settings.model.width) == ("de", 3, 12)


def fine_tuned(run, base: Path, *words: Path | str) -> dict[str, Any]:
    """Return [data] that `init` proposes for fine-tuning a model on files, with which a training runs to its end."""
    result = run("init", "--from", base, *words)
    proposed = result.stdout
    assert "an empty side" not in result.stderr, "blank lines between documents are no pairs"
    toml = base.parent / "more.toml"
    toml.write_text(proposed, encoding="utf-8")
    result = run("train", toml, "--from", base, "--out", base.parent / "tuned", "--set", "training.updates=1")
    assert result.exit_code == 0, result.stderr
    return dict(tomllib.loads(proposed)["data"])


def test_init_from_a_model_of_several_languages_names_the_direction(run, files: Path) -> None:
    toml = files / "en-de.toml"
    settings = toml.read_text(encoding="utf-8").replace("[data]", "[[data.corpus]]")
    toml.write_text(settings, encoding="utf-8")
    words = ("--set", "model.language_tags=source", "--set", "training.updates=1")
    assert run("train", toml, "--out", files / "base", *words).exit_code == 0
    data = fine_tuned(run, files / "base", files / "train.en", files / "train.de")
    assert (data["source_language"], data["target_language"]) == ("en", "de")
    (files / "more.fr").write_text((files / "train.de").read_text(encoding="utf-8"), encoding="utf-8")
    result = run("init", "--from", files / "base", files / "train.en", files / "more.fr")
    note = f"add source_language and target_language to [data]: {files}/base has tags of en, de"
    assert result.stderr.splitlines()[0] == note


@pytest.mark.parametrize(
    ("names", "found"), [(["talk.tsv", "--columns", "1,2"], {"document_column": 0}),
    (["train.en", "train.de"], {"documents": "blank_line"})],
)  # fmt: skip
def test_init_from_a_model_with_context_says_where_documents_end(run, files: Path, names, found) -> None:
    sides = [(files / name).read_text(encoding="utf-8").splitlines() for name in ("train.en", "train.de")]
    rows = [f"{number // 5}\t{one}\t{other}\n" for number, (one, other) in enumerate(zip(*sides, strict=True))]
    (files / "talk.tsv").write_text("".join(rows), encoding="utf-8")
    for name, side in zip(("train.en", "train.de"), sides, strict=True):
        (files / name).write_text("\n".join([*side[:-1], "", side[-1], ""]), encoding="utf-8")
    toml = files / "en-de.toml"
    model = toml.read_text(encoding="utf-8").partition("[tokenizer]")
    data = '[data]\ntrain = "talk.tsv"\ncolumns = [1, 2]\ndocument_column = 0\ncontext = {source = 1}\n'
    toml.write_text(data + "".join(model[1:]), encoding="utf-8")
    assert run("train", toml, "--out", files / "base", "--set", "training.updates=1").exit_code == 0
    data = fine_tuned(run, files / "base", *(files / name if "." in name else name for name in names))
    assert found.items() <= data.items()


def test_init_from_a_model_has_the_task_of_the_model(run, files: Path) -> None:
    assert run("train", files / "en-de.toml", "--out", files / "base", "--set", "training.updates=1").exit_code == 0
    result = run("init", files / "train.en", files / "train.de", "--from", files / "base", "--task", "classification")
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: --task: found 'classification', but {files}/base has 'sequence'\n",
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [("en-de.toml", ""), ("marian.yml", "; `translume docs from_marian` lists the settings of Marian")],
)
def test_a_file_of_settings_is_not_taken_for_training_data(run, files: Path, name: str, hint: str) -> None:
    (files / name).write_text("type: transformer\n", encoding="utf-8")
    result = run("init", files / name)
    message = f"Error: init: found {files / name}, a file of settings, expected training data{hint}\n"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)


def test_settings_of_marian_are_refused_with_the_page_that_translates_them(run, files: Path) -> None:
    (files / "marian.yml").write_text("type: transformer\n", encoding="utf-8")
    result = run("train", files / "marian.yml")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {files}/marian.yml: not TOML: ")
    assert result.stderr.endswith("; `translume docs from_marian` lists the settings of Marian\n")
