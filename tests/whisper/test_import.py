"""An imported Whisper gives the numbers and texts of transformers' own."""

import json
import re
import shutil
from pathlib import Path

import pytest
import soundfile
import torch
from tests.whisper.conftest import CODES, LONGEST, POSITIONS, features, sound, write_whisper

import translume
from translume.engine import self_test
from translume.errors import SettingsError, TranslationError
from translume.interchange.huggingface.whisper import _direction
from translume.interchange.importing import import_model
from translume.sources import frame_reader
from translume.text.specials import SpeechTokens
from translume.translator.planning import numbered_lines

UNTIMED = 291
SOUNDS = tuple(sound(samples, seed) for seed, samples in enumerate((9001, 16_000, 320 * POSITIONS)))


@pytest.fixture(scope="module")
def translators(whisper):
    """Plain, and by the engine."""
    return whisper.translator, whisper.translator.compile()


def until_two_times(ids):
    """Ids up to two adjacent times, after which transformers begins another window, also if it writes no times."""
    pairs = [place for place in range(1, len(ids)) if min(ids[place - 1 : place + 1]) > UNTIMED]
    return list(ids[: pairs[0]]) if pairs else list(ids)


def targets_of(whisper, **options):
    """The tokens that transformers generates for `SOUNDS`."""
    every = torch.cat([features(each) for each in SOUNDS])
    end = whisper.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    rows = whisper.model.generate(every, max_length=LONGEST, **options)[:, : LONGEST - 4].tolist()
    return [ids[: ids.index(end) + 1] if end in ids else ids for ids in rows]


def test_the_certificate_says_how_far_the_models_are_apart(whisper):
    certificate = whisper.imported.certificate
    assert (certificate.sentences, whisper.imported.notes) == (4, ())
    assert certificate.difference < 1e-4


@torch.no_grad()
def test_logits_equal_those_of_transformers(whisper):
    checkpoint = whisper.translator.checkpoint
    frames = torch.stack([torch.from_numpy(frame_reader(checkpoint.config.data.source).read(each)) for each in SOUNDS])
    wanted_frames = torch.cat([features(each) for each in SOUNDS])
    torch.testing.assert_close(frames.mT, wanted_frames, rtol=0, atol=1e-5)
    target = torch.randint(0, 280, (3, 13), generator=torch.Generator().manual_seed(7))
    wanted = whisper.model(input_features=wanted_frames, decoder_input_ids=target).logits
    state = checkpoint.model.start(frames, torch.ones(frames.shape[:2], dtype=torch.bool))
    hidden, _ = checkpoint.model.decoder(target, state)
    belief = checkpoint.model.head.next_token(hidden.flatten(0, 1), None).log_probs()
    torch.testing.assert_close(belief, wanted.flatten(0, 1).log_softmax(-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"task": "transcribe"}),
        ({"from_": "de"}, {"language": "de", "task": "transcribe"}),
        ({"to": "haw"}, {"language": "hawaiian", "task": "transcribe"}),
        ({"from_": "zh", "to": "en"}, {"language": "zh", "task": "translate"}),
        ({"from_": "de", "beam": 3}, {"language": "de", "num_beams": 3, "early_stopping": "never"}),
    ],
)
def test_texts_equal_those_of_transformers(whisper, translators, ours, theirs):
    wanted = targets_of(whisper, **theirs)
    wanted = [until_two_times(ids) for ids in wanted]
    assert sum(map(len, wanted)) > LONGEST
    for translator in translators:
        found = list(translator.translate_all(SOUNDS, **ours))
        assert [until_two_times(each.hypotheses[0].ids) for each in found] == wanted, translator
        texts = whisper.tokenizer.batch_decode([each.hypotheses[0].ids for each in found], skip_special_tokens=True)
        assert [each.text for each in found] == [text.strip() for text in texts]


def test_the_engine_agrees_with_the_model_and_its_kernels_search(whisper):
    for dtype in ("fp32", "int8"):
        engine = whisper.translator.compile(dtype).engine
        assert engine.encoder is not None  # by the kernels
        assert self_test(engine, whisper.translator.checkpoint.model).agrees


def test_the_rules_of_generation_are_settings_and_no_text_is_a_special_token(whisper):
    decoding, tokenizer = whisper.translator.config.decoding, whisper.translator.checkpoint.target_tokenizer
    named = dict(zip(tokenizer.vocabulary.pieces, range(len(tokenizer)), strict=True))
    special = [named[f"<|{each}|>"] for each in ("startoftranscript", "translate", "transcribe")]
    assert decoding.suppress == (3, 7, *sorted(special))
    assert decoding.suppress_first == (5, named["<|endoftext|>"])
    assert (decoding.max_length, decoding.strategy) == (LONGEST - 4, "greedy")
    assert dict(tokenizer.languages) == {code: named[f"<|{code}|>"] for code in CODES}
    for text in ("Two dogs, <|en|> <|0.02|>", " e\u0301 👨\u200d👩 \n\x00", "<|endoftext|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert max(tokenizer.encode(text)) < named["<|endoftext|>"]
    assert tokenizer.decode([named["<|0.02|>"], named["<|endoftext|>"], named["<|notimestamps|>"]]) == ""


@pytest.mark.parametrize(
    ("generation", "wanted"),
    [
        ({"language": "german", "task": "translate"}, ("de", "en")),
        ({"language": "<|zh|>", "task": "transcribe"}, ("zh", "")),
        ({"forced_decoder_ids": [[1, None], [2, 286]]}, ("", "en")),
        ({"forced_decoder_ids": [[1, 283], [2, 287], [3, 291]]}, ("de", "")),
    ],
)
def test_language_and_task_of_the_folder_are_those_of_decoding(generation, wanted):
    tokens = SpeechTokens(languages={"en": 282, "de": 283, "zh": 284}, transcribe=287, translate=286, untimed=291)
    found = _direction(generation, tokens)
    assert (found.get("from_", ""), found.get("to", "")) == wanted


def test_a_model_of_english_has_no_language_and_no_task(tmp_path):
    import_model(write_whisper(tmp_path / "theirs", multilingual=False), tmp_path / "ours")
    translator = translume.load(tmp_path / "ours", engine="plain")
    assert translator.config.model.language_tags == "english_speech"
    (plan,) = translator.plans([next(numbered_lines([SOUNDS[0]], frames=True))[0]], translator.config.decoding)
    untimed = translator.checkpoint.target_tokenizer.vocabulary.pieces.index("<|notimestamps|>")
    assert plan.pieces[0].target_tags == (untimed,)
    with pytest.raises(SettingsError, match=r"decoding\.to: found 'de', but the model does not name its languages"):
        translator.translate(SOUNDS[0], to="de")


def test_only_the_language_of_a_recording_or_english_is_written(whisper):
    translator = whisper.translator
    message = (
        "decoding.to: found de→zh, expected 'de' or 'en': the model writes the language of a recording, or English"
    )
    with pytest.raises(SettingsError, match=re.escape(message)):
        translator.translate(SOUNDS[0], from_="de", to="zh")
    with pytest.raises(SettingsError, match=re.escape("decoding.from_: found 'hw'; did you mean 'haw'?")):
        translator.translate(SOUNDS[0], from_="hw")
    with pytest.raises(SettingsError, match=re.escape("decoding.suppress: found 346, expected an id below 346")):
        translator.translate(SOUNDS[0], suppress=(346,))
    message = "decoding.from_: empty, expected the language of the recordings to score (--from)"
    with pytest.raises(SettingsError, match=re.escape(message)):
        translator.score("a.wav", "Two dogs.")


def test_a_blank_line_between_paths_of_recordings_stays_empty(whisper, tmp_path):
    soundfile.write(tmp_path / "a.wav", SOUNDS[0], 16_000)
    found = list(whisper.translator.translate_all([str(tmp_path / "a.wav"), "", " "]))
    assert [bool(each.text) for each in found] == [True, False, False]
    assert [bool(each.language) for each in found] == [True, False, False]


def test_a_recording_of_several_windows_has_no_score(whisper, tmp_path):
    soundfile.write(tmp_path / "a.wav", sound(18_000), 16_000)
    message = f"pair: {tmp_path}/a.wav: 112 frames, expected at most {2 * POSITIONS} for a score"
    with pytest.raises(TranslationError, match=re.escape(message)):
        whisper.translator.score(str(tmp_path / "a.wav"), "Two dogs.", from_="de")


def test_targets_are_scored_in_the_language_of_the_recording(whisper, tmp_path):
    soundfile.write(tmp_path / "a.wav", SOUNDS[1], 16_000, subtype="FLOAT")
    found = whisper.translator.translate(str(tmp_path / "a.wav"), from_="de")
    score = whisper.translator.score(str(tmp_path / "a.wav"), found.hypotheses[0], from_="de")
    assert score.log_prob == pytest.approx(found.hypotheses[0].log_prob, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("suppress_tokens", "1", 'suppress_tokens: found "1", expected a list of ids'),
        ("max_initial_timestamp_index", "x", 'max_initial_timestamp_index: found "x", expected an integer'),
        ("forced_decoder_ids", [1], "forced_decoder_ids: found [1], expected pairs of a position and an id"),
    ],
)
def test_damaged_rules_of_generation_are_refused_by_name(whisper, tmp_path, name, value, message):
    shutil.copytree(whisper.folder, tmp_path / "theirs")
    path = tmp_path / "theirs" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(SettingsError, match=re.escape(f"generation_config.json: {message}")):
        import_model(tmp_path / "theirs", tmp_path / "ours")


def test_a_folder_without_the_tokens_of_tasks_is_refused_by_name(whisper, tmp_path: Path):
    shutil.copytree(whisper.folder, tmp_path / "theirs")
    for path in ("tokenizer.json", "tokenizer_config.json"):
        file = tmp_path / "theirs" / path
        file.write_text(file.read_text().replace("<|transcribe|>", "<|other|>"))
    message = "tokenizer: <|transcribe|> is missing, expected the vocabulary of an imported Whisper"
    with pytest.raises(SettingsError, match=re.escape(message)):
        import_model(tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
