"""Times of segments: the rule, the next window, and long recordings, compared with transformers."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from click.testing import CliRunner
from tests.whisper.conftest import LONGEST, features, sound, write_whisper

import translume
from translume.belief import Logits
from translume.cli import main
from translume.decoding import RuleContext, TimesInPairs
from translume.documents.transcripts import transcript
from translume.engine.engine import Engine
from translume.errors import SettingsError, TranslationError
from translume.interchange.importing import import_model
from translume.model import Transformer
from translume.translator import Segment, Translation
from translume.translator.speech import spans_of

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="translume")


EOS, UNTIMED, FIRST, SIZE = 7, 11, 12, 23


def allowed_here(rule, tokens, logits):
    """Which tokens may follow."""
    context = RuleContext(
        eos=EOS, size=SIZE, step=len(tokens), sentences=torch.tensor([0]), limits=torch.tensor([LONGEST])
    )
    belief = Logits(logits[None])
    bias = rule(torch.tensor([[0, *tokens]]), context)
    scores = bias.add_to(belief.log_probs())
    more = rule.after(belief, bias)
    return (scores if more is None else more.add_to(scores))[0] > -torch.inf


@pytest.mark.parametrize("latest", [None, 3])
def test_times_follow_as_in_transformers(latest):
    config = transformers.GenerationConfig(
        no_timestamps_token_id=UNTIMED, eos_token_id=EOS, max_initial_timestamp_index=latest
    )
    theirs = transformers.WhisperTimeStampLogitsProcessor(config, begin_index=1)
    rule = TimesInPairs(first=FIRST, untimed=UNTIMED, latest=None if latest is None else FIRST + latest)
    generator = torch.Generator().manual_seed(3)
    for _ in range(13):
        tokens: list[int] = []
        while len(tokens) < 13 and (not tokens or tokens[-1] != EOS):
            logits = torch.randn(SIZE, generator=generator) * 2
            wanted = theirs(torch.tensor([[0, *tokens]]), logits[None])[0] > -torch.inf
            assert torch.equal(allowed_here(rule, tokens, logits), wanted), tokens
            tokens.append(int(torch.multinomial(wanted.float(), 1, generator=generator)))


def test_the_next_window_begins_as_in_transformers():
    theirs = transformers.WhisperForConditionalGeneration._retrieve_segment
    generator = np.random.default_rng(5)
    for _ in range(97):
        ids = generator.choice([3, 4, FIRST, FIRST + 1, FIRST + 5, SIZE - 1], generator.integers(1, 9)).tolist()
        begin, length = int(generator.integers(0, 50)), int(generator.integers(2, 99))
        segments, moved = theirs(
            seek_sequence=torch.tensor(ids), seek_outputs=[{}], time_offset=torch.tensor([begin * 0.01]).double(),
            timestamp_begin=FIRST, seek_num_frames=torch.tensor([length]), time_precision=0.02,
            time_precision_features=0.01, input_stride=2, prev_idx=0, idx=0, return_token_timestamps=False,
            decoder_input_ids=torch.zeros(1, 3),
        )  # fmt: skip
        spans, found = spans_of(ids, FIRST, begin, length)
        assert found == int(moved), ids
        assert [ids[each.tokens] for each in spans] == [each["tokens"].tolist() for each in segments], ids
        for ours, other in zip(spans, segments, strict=True):
            assert ours.start == pytest.approx(100 * float(other["start"]), abs=1e-3)
            assert ours.end == pytest.approx(100 * float(other["end"]), abs=1e-3)


def test_a_segment_that_is_not_finished_is_heard_again():
    ids = [FIRST, 1, FIRST + 4, FIRST + 6, 2, FIRST + 9, FIRST + 9, 3]
    spans, moved = spans_of(ids, FIRST, 100, 40)
    assert [(each.start, each.end, ids[each.tokens]) for each in spans] == [(100, 108, ids[:3]), (112, 118, ids[3:7])]
    assert moved == 18


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({"to": "en"}, {"task": "translate"}), ({"from_": "de", "beam": 3}, {"language": "de", "num_beams": 3})],
)
def test_long_recordings_equal_those_of_transformers(whisper, ours, theirs):
    samples = sound(60_001, 7)
    beam = {"early_stopping": "never"} if "num_beams" in theirs else {}
    wanted = whisper.model.generate(
        features(samples, whole=True), max_new_tokens=19, return_timestamps=True, return_segments=True, **theirs, **beam
    )
    times = [(float(each["start"]), float(each["end"])) for each in wanted["segments"][0]]
    assert len(times) > 2
    for translator in (whisper.translator, whisper.translator.compile()):
        found = translator.translate(samples, max_length=19, **ours)
        assert list(found.hypotheses[0].ids) == wanted["sequences"][0].tolist()
        assert [pytest.approx((each.start, each.end)) for each in found.segments] == times
        assert found.text == whisper.tokenizer.decode(wanted["sequences"][0], skip_special_tokens=True).strip()


def test_windows_of_several_recordings_are_searched_together_with_the_same_result(whisper):
    sounds = [sound(40_009, 11), sound(9001, 12), sound(20_011, 13), np.zeros(5003, np.float32)]
    together = list(whisper.translator.translate_all(sounds, max_length=7))
    for samples, found in zip(sounds, together, strict=True):
        alone = whisper.translator.translate(samples, max_length=7)
        assert (found.text, found.segments, found.language) == (alone.text, alone.segments, alone.language)
    assert [bool(each.segments) for each in together] == [True, False, True, False]
    assert together[3].hypotheses == ()  # nothing but silence


@pytest.mark.parametrize("options", [{}, {"beam": 3}, {"beam": 3, "coverage_penalty": 0.2}, {"to": "en"}])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_window_is_encoded_once_though_its_language_is_detected(whisper, monkeypatch, compiled, options):
    translator = whisper.translator.compile() if compiled else whisper.translator
    recordings = [sound(40_009, 11), sound(9001, 12), sound(9001, 14), np.zeros(5003, np.float32)]
    encoded = []

    def counted(real):
        def start(steps, source, mask):
            encoded.append(len(source))
            return real(steps, source, mask)

        return start

    for kind in (Transformer, Engine):
        for name in ("start", "start_with_attention"):
            monkeypatch.setattr(kind, name, counted(getattr(kind, name)))
    detected = list(translator.translate_all(recordings, max_length=7, **options))
    windows = sum(encoded)
    encoded.clear()
    for samples, found in zip(recordings, detected, strict=True):
        if found.language:
            named = translator.translate(samples, max_length=7, **{"from_": found.language, **options})
            assert [each.ids for each in found.hypotheses] == [each.ids for each in named.hypotheses]
            assert [each.log_prob for each in found.hypotheses] == pytest.approx(
                [each.log_prob for each in named.hypotheses], rel=1e-5
            )
    assert windows == sum(encoded) > 3


SAID = Translation(
    source="talk.wav",
    text="Hello. A --> b",
    segments=(Segment(start=0.0, end=1.5, text="Hello."), Segment(start=3661.02, end=3662.0, text="A --> b")),
    language="en",
)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("txt", "Hello.\nA --> b\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,500\nHello.\n\n2\n01:01:01,020 --> 01:01:02,000\nA -> b\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello.\n\n01:01:01.020 --> 01:01:02.000\nA -> b\n"),
    ],
)
def test_a_transcript_has_the_form_of_its_format(form, wanted):
    assert transcript(SAID, form) == wanted


def test_json_has_segments_and_the_language():
    found = json.loads(transcript(SAID, "json"))
    assert found["segments"][1] == {"start": 3661.02, "end": 3662.0, "text": "A --> b"}
    assert (found["language"], found["text"]) == ("en", SAID.text)


def test_subtitles_are_read_back_as_the_same_segments():
    from translume.documents.subtitles import Subtitles

    for form in ("srt", "vtt"):
        read = Subtitles.from_bytes(transcript(SAID, form).encode())
        assert [each.text.strip() for each in read.segments] == ["Hello.", "A -> b"]


@pytest.mark.parametrize("kind", ["wav", "mp3"])
def test_the_command_writes_subtitles_of_a_recording(whisper, tmp_path, kind):
    path = tmp_path / f"talk.{kind}"
    soundfile.write(path, sound(40_009) / 2, 16_000)
    shown = run("translate", whisper.ours, path, "--format", "srt", "--max-length", 7, "--engine", "plain")
    wanted = transcript(whisper.translator.translate(str(path), max_length=7), "srt")
    assert (shown.exit_code, shown.stdout) == (0, wanted)
    text = run("translate", whisper.ours, path, "--max-length", 7, "--engine", "plain")
    assert text.stdout.splitlines() == [each for each in wanted.splitlines() if " --> " not in each][1::3]


def test_segments_come_when_their_window_is_done(whisper, monkeypatch):
    from translume.translator import speech

    searches = []
    prepare = speech.prepare_search
    monkeypatch.setattr(speech, "prepare_search", lambda *given: searches.append(1) or prepare(*given))
    recording = sound(40_009)
    segments = whisper.translator.segments(recording, max_length=7)
    first = next(segments)
    begun = len(searches)
    rest = list(segments)
    whole = whisper.translator.translate(recording, max_length=7, timestamps=True)
    assert (first, *rest) == whole.segments
    assert begun < len(searches) / 2  # `translate` searched as many windows again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "srt"), "Error: --format: found no FILE, expected that of a recording"),
        (("made.wav", "--format", "vtt", "--nbest", "2"),
         "Error: --nbest cannot be combined with made.wav, which is one source"),
        (("talk.wav",), "Error: talk.wav: no such file"),
    ],
)  # fmt: skip
def test_what_is_no_recording_is_refused(whisper, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soundfile.write("made.wav", sound(101), 16_000)
    shown = run("translate", whisper.ours, *arguments, "--engine", "plain")
    assert (shown.exit_code, shown.stderr.strip()) == (1, message)


def test_an_imported_model_reads_the_paths_of_a_manifest(whisper, tmp_path):
    soundfile.write(tmp_path / "talk.wav", sound(9000), 16_000)
    (tmp_path / "talks.tsv").write_text("talk.wav\tWhat is said.\nmissing.wav\tNothing.\n")
    found = run("translate", whisper.ours, tmp_path / "talks.tsv", "--from", "en", "--threads", "1")
    assert found.stdout == f"{whisper.translator.translate(tmp_path / 'talk.wav', from_='en')}\n"
    assert found.stderr.endswith(f"Error: line 2: {tmp_path / 'missing.wav'}: no such file\n")


def test_constraints_are_not_for_recordings(whisper):
    with pytest.raises(TranslationError, match=re.escape("line 1: found constraints, expected none for a recording")):
        list(whisper.translator.translate_all([sound(9001)], constraints=[["dogs"]]))


def test_times_are_only_for_recordings(whisper):
    from translume.checkpoint import Checkpoint, build_model
    from translume.config import Config
    from translume.translator import Translator

    tokenizer = whisper.translator.checkpoint.target_tokenizer
    config = Config.build({"model": {"width": 4, "attention_heads": 1, "feed_forward": 3}})
    model = build_model(config.model, len(tokenizer), len(tokenizer)).eval()
    of_text = Translator(Checkpoint(config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer))
    message = "decoding.timestamps: found true, must be false with data.source = 'text'"
    with pytest.raises(SettingsError, match=re.escape(message)):
        of_text.translate("Two dogs.", timestamps=True)
    with pytest.raises(SettingsError, match=re.escape(message)):
        next(of_text.segments("Two dogs."))


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """Return a recording of several minutes that espeak-ng reads from the tour."""
    program = shutil.which("espeak-ng")
    if program is None:
        pytest.skip("espeak-ng is not installed: apt-get install espeak-ng")
    path = tmp_path_factory.mktemp("speech") / "tour.wav"
    text = (Path(__file__).parents[2] / "docs" / "tour.md").read_text(encoding="utf-8")[:2300]
    subprocess.run([program, "-w", str(path), text], check=True)
    return path


@pytest.fixture(scope="module")
def long_window_model(tmp_path_factory):
    """Return a model folder of a small Whisper with windows of 30 seconds and random weights."""
    folder = tmp_path_factory.mktemp("long")
    import_model(write_whisper(folder / "theirs", positions=1500), folder / "ours")
    return folder / "ours"


def test_a_recording_of_minutes_is_transcribed_window_by_window_with_increasing_times(speech, long_window_model):
    seconds = soundfile.info(speech).duration
    assert seconds > 3 * 30
    translator = translume.load(long_window_model, threads=1)
    found = translator.translate(speech, from_="en", timestamps=True, max_length=13)
    segments = json.loads(transcript(found, "json"))["segments"]
    assert len(segments) >= seconds // 30
    begins = [each["start"] for each in segments]
    assert begins == sorted(begins)
    assert all(each["start"] <= each["end"] for each in segments)
    assert begins[0] < 30
    assert begins[-1] > 2 * 30
    assert segments[-1]["end"] <= seconds + 30
    options = ("--from", "en", "--max-length", "13", "--threads", "1", "--format", "srt")
    streamed = run("translate", long_window_model, speech, *options)
    assert streamed.exit_code == 0, streamed.output
    for text, point in ((streamed.stdout, ","), (transcript(found, "vtt"), ".")):
        times = re.findall(rf"(\d+):(\d\d):(\d\d)[{point}](\d{{3}}) --> ", text)
        assert [
            3600 * int(hours) + 60 * int(minutes) + int(whole) + int(rest) / 1000
            for hours, minutes, whole, rest in times
        ] == pytest.approx(begins, abs=0.002)


MEMORY = """
import resource, sys
import torch
from translume.config.sources import WhisperSettings
from translume.sources.audio import WhisperReader

reader = WhisperReader(WhisperSettings(kind="whisper"))
reader.read(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
frames = reader.read(sys.argv[2])
print(len(frames), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_two_hours_of_recording_take_at_most_one_and_a_half_gigabytes(tmp_path):
    part = 16  # of two hours, which take as much more memory
    minute = np.random.default_rng(7).integers(-3000, 3000, 16_000 * 60).astype(np.int16)
    soundfile.write(tmp_path / "short.wav", minute, 16_000)
    with soundfile.SoundFile(tmp_path / "long.wav", "w", 16_000, 1, "PCM_16") as file:
        for _ in range(120 // part):
            file.write(minute)
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "short.wav"), str(tmp_path / "long.wav")]
    frames, grown = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    assert frames == 120 // part * 6000
    assert part * grown < 1.5 * 2**30
