"""Logits, texts and times of whisper-tiny and whisper-base shapes, and seconds to transcribe 60 s of sound.

All programs have the same random weights: Translume's engine and faster-whisper, which is CTranslate2, in int8 and
fp32, and transformers in fp32, since it has no int8 on a CPU. First the outputs are compared: log-probabilities of a
forced target with those of transformers, then texts, then times of segments. Then two windows of 30 s, one after the
other, are transcribed to 100 tokens each, without times. Sound is read, features are computed, and both windows are
encoded and searched. Programs take turns; the table has the median, the least and the largest seconds of all rounds,
and the median of processor seconds. faster-whisper is measured if it is installed: `pip install faster-whisper`.

    python benchmarks/whisper.py [--shapes tiny,base] [--threads 1] [--beam 1] [--rounds 5] [--folder KEPT]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
SHAPES = {
    "tiny": {"d_model": 384, "layers": 4, "heads": 6},
    "base": {"d_model": 512, "layers": 6, "heads": 8},
    "short": {"d_model": 64, "layers": 1, "heads": 2},
}
TOKENS, TIMED_TOKENS = (5, 12) if SHORT else (100, 60)
RATE, SECONDS = 16_000, 30
DEVIATION = 0.05
"""Standard deviation of the weights: with the usual 0.02, targets repeat one token."""
SPECIAL = list(range(50_257, 51_865))
"""Special tokens and times, of which random weights would write many."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="short" if SHORT else "tiny,base")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 5)
    parser.add_argument("--folder", type=Path, help="where the models are kept")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    for shape in options.shapes.split(","):
        programs = Programs(folder / shape, SHAPES[shape], options.threads, options.beam)
        print(f"whisper-{shape}, beam {options.beam}, {options.threads} threads", flush=True)
        programs.compare_logits()
        programs.compare_texts()
        programs.compare_times()
        programs.measure(options.rounds)


class Programs:
    """All programs with the weights of one shape, kept in a folder."""

    def __init__(self, folder: Path, shape: dict[str, int], threads: int, beam: int) -> None:
        import soundfile
        import torch
        import transformers

        import translume

        torch.set_num_threads(threads)
        self.folder, self.beam = folder, beam
        if not (folder / "theirs").exists():
            write_whisper(folder / "theirs", **shape)
        if not (folder / "ours").exists():
            translume.import_model(folder / "theirs", folder / "ours")
        self.paths = [folder / f"{number}.wav" for number in range(2)]
        for number, path in enumerate(self.paths):
            soundfile.write(path, sound(number), RATE)
        self.ours = {
            dtype: translume.load(folder / "ours", device="cpu", dtype=dtype, threads=threads)
            for dtype in ("int8", "fp32")
        }
        self.plain = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "theirs").eval()
        self.extractor = transformers.WhisperFeatureExtractor()
        self.peers = {dtype: peer for dtype in ("int8", "float32") if (peer := faster_whisper(folder, threads, dtype))}

    def compare_logits(self) -> None:
        """Print the largest difference of log-probabilities to transformers, and of those of int8 to fp32."""
        import torch

        generator = torch.Generator().manual_seed(3)
        target = torch.randint(300, 50_000, (TOKENS,), generator=generator)
        prompt = torch.tensor([50_258, 50_259, 50_359, 50_363])
        given = torch.cat([prompt, target])[None]
        found: dict[str, list[float]] = {"fp32 against transformers": [], "int8 against fp32": []}
        for path in self.paths:
            with torch.inference_mode():
                theirs = self.plain(self.features(path), decoder_input_ids=given).logits[0].log_softmax(-1)
            own = {dtype: self.log_probs(dtype, path, given) for dtype in self.ours}
            found["fp32 against transformers"].append((own["fp32"] - theirs).abs().max().item())
            found["int8 against fp32"].append((own["int8"] - own["fp32"]).abs().max().item())
        for name, differences in found.items():
            print(f"  largest difference of a log-probability, {name}: {max(differences):.1e}", flush=True)

    def log_probs(self, dtype: str, path: Path, given: Any) -> Any:
        """Return the log-probabilities [t, V] after each given token [1, t], step by step by the engine."""
        import torch

        translator = self.ours[dtype]
        (plan,) = translator.plans([_line(path)], translator.config.decoding)
        stepper = translator.models.stepper(attentive=False)
        frames = torch.from_numpy(plan.pieces[0].frames)[None]
        with torch.inference_mode():
            state, rows = stepper.start(frames, torch.ones(frames.shape[:2], dtype=torch.bool)), []
            for end in range(1, given.size(1) + 1):
                belief, state = stepper.step(given[:, :end], state)
                rows.append(belief.log_probs()[0].float())
        return torch.stack(rows)

    def compare_texts(self) -> None:
        """Print how many tokens of both windows are equal to those of transformers, up to the first other one."""
        expected = [self.generate(path) for path in self.paths]
        for dtype in self.ours:
            self.print_equal(f"Translume {dtype}", [self.transcribe(dtype, path) for path in self.paths], expected)
        for dtype, peer in self.peers.items():
            self.print_equal(f"faster-whisper {dtype}", [self.peer(peer, path) for path in self.paths], expected)

    def print_equal(self, name: str, found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> None:
        equal = [
            sum(1 for _ in takewhile(lambda each: each[0] == each[1], zip(*pair, strict=False)))
            for pair in zip(found, expected, strict=True)
        ]
        kinds = len(set(expected[0]))
        print(
            f"  {name}: first {' and '.join(map(str, equal))} of {TOKENS} tokens equal transformers' ({kinds} kinds)",
            flush=True,
        )

    def compare_times(self) -> None:
        """Print how many segments of a minute of sound have the texts and times of transformers."""
        import soundfile
        import torch

        samples = np.concatenate([soundfile.read(path, dtype="float32")[0] for path in self.paths])
        inputs = self.extractor(
            samples, sampling_rate=RATE, return_tensors="pt", truncation=False, padding="longest",
            return_attention_mask=True,
        )  # fmt: skip
        config = self.plain.generation_config
        suppressed, config.suppress_tokens = config.suppress_tokens, None
        try:
            with torch.inference_mode():
                result = self.plain.generate(
                    inputs.input_features, attention_mask=inputs.attention_mask, language="en", task="transcribe",
                    return_timestamps=True, return_segments=True, max_new_tokens=TIMED_TOKENS,
                )  # fmt: skip
        finally:
            config.suppress_tokens = suppressed
        theirs = [(round(float(each["start"]), 2), round(float(each["end"]), 2)) for each in result["segments"][0]]
        for dtype, translator in self.ours.items():
            found = translator.translate(
                samples, from_="en", timestamps=True, max_length=TIMED_TOKENS, suppress=(), suppress_first=()
            )
            own = [(each.start, each.end) for each in found.segments]
            same = sum(one == other for one, other in zip(own, theirs, strict=False))
            print(f"  Translume {dtype}: {same} of {len(theirs)} segments have transformers' times", flush=True)

    def measure(self, rounds: int) -> None:
        """Print the seconds of each program."""
        calls: dict[str, Callable[[Path], object]] = {}
        for dtype in self.ours:
            calls[f"Translume {dtype}"] = partial(self.transcribe, dtype)
        for dtype, peer in self.peers.items():
            calls[f"faster-whisper {dtype}"] = partial(self.peer, peer)
        calls["transformers fp32"] = self.generate
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        processor: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                begun = time.perf_counter(), time.process_time()
                for path in self.paths:
                    call(path)
                seconds[name].append(time.perf_counter() - begun[0])
                processor[name].append(time.process_time() - begun[1])
        for name, found in seconds.items():
            print(
                f"  {name}: {statistics.median(found):.2f} s ({min(found):.2f} to {max(found):.2f}), "
                f"processor {statistics.median(processor[name]):.2f} s",
                flush=True,
            )

    def features(self, path: Path) -> Any:
        import soundfile

        samples, _ = soundfile.read(path, dtype="float32")
        return self.extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features

    def transcribe(self, dtype: str, path: Path) -> list[int]:
        """Return the tokens that Translume writes for a window."""
        search = {"beam": self.beam} if self.beam > 1 else {}
        found = self.ours[dtype].translate(str(path), from_="en", min_length=TOKENS, max_length=TOKENS, **search)
        return list(found.hypotheses[0].ids)

    def generate(self, path: Path) -> list[int]:
        """Return the tokens that transformers writes for a window."""
        import torch

        with torch.inference_mode():
            found = self.plain.generate(
                self.features(path), language="en", task="transcribe", num_beams=self.beam, min_new_tokens=TOKENS,
                max_new_tokens=TOKENS,
            )  # fmt: skip
        return list(found[0].tolist())

    def peer(self, peer: Any, path: Path) -> list[int]:
        """Return the tokens that faster-whisper writes for a window."""
        segments, _ = peer.transcribe(
            str(path), language="en", beam_size=self.beam, temperature=0.0,
            max_new_tokens=2 * TOKENS - 1,  # CTranslate2 ends after half of the prompt's and these tokens
            without_timestamps=True, suppress_tokens=SPECIAL, suppress_blank=False, no_speech_threshold=None,
            log_prob_threshold=None, compression_ratio_threshold=None, condition_on_previous_text=False,
        )  # fmt: skip
        found: list[int] = next(iter(segments)).tokens
        assert abs(len(found) - TOKENS) < 2, len(found)
        return found


def _line(path: Path) -> Any:
    from translume.translator.planning import Line

    return Line(number=0, text=str(path))


def faster_whisper(folder: Path, threads: int, dtype: str) -> Any:
    """Return the model for faster-whisper, converted if needed; None if it is not installed."""
    try:
        from faster_whisper import WhisperModel
    except ModuleNotFoundError:
        print("faster-whisper is not installed")
        return None
    from ctranslate2.converters import TransformersConverter

    if not (folder / "ct2" / dtype).exists():
        names = ["tokenizer.json", "preprocessor_config.json"]
        converter = TransformersConverter(str(folder / "theirs"), copy_files=names)
        converter.convert(str(folder / "ct2" / dtype), quantization=dtype)
    return WhisperModel(str(folder / "ct2" / dtype), device="cpu", compute_type=dtype, cpu_threads=threads)


def sound(number: int) -> np.ndarray:
    """Return 30 s of syllables: harmonics of a moving pitch, with pauses."""
    time_of = np.arange(RATE * SECONDS) / RATE
    pitch = 120 + 40 * np.sin(2 * np.pi * (0.7 + number / 5) * time_of)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 20))
    return (0.1 * voice * np.clip(np.sin(2 * np.pi * 3.1 * time_of), 0, 1)).astype(np.float32)


def write_whisper(folder: Path, *, d_model: int, layers: int, heads: int) -> None:
    """Save a Whisper of several languages with random weights and the ids of the published ones."""
    import torch
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers import WhisperTokenizer as Theirs
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *(f"Ġw{number}" for number in range(50_257 - len(letters)))]
    tokenizer = Theirs(vocab={piece: id_ for id_, piece in enumerate(pieces)}, merges=[])
    codes = list(LANGUAGES)[:99]
    names = ("startoftranscript", *codes, "translate", "transcribe", "startoflm", "startofprev", "nospeech")
    special = [f"<|{name}|>" for name in (*names, "notimestamps")]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    times = [f"<|{number * 0.02:.2f}|>" for number in range(1501)]
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in times])
    ids = tokenizer.get_vocab()
    marks = {"pad_token_id": 50257, "bos_token_id": 50257, "eos_token_id": 50257, "decoder_start_token_id": 50258}
    torch.manual_seed(1)
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=51_865, d_model=d_model, encoder_layers=layers, decoder_layers=layers,
            encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * d_model,
            decoder_ffn_dim=4 * d_model, begin_suppress_tokens=None, init_std=DEVIATION, **marks,
        )
    )  # fmt: skip
    model.generation_config = GenerationConfig(
        is_multilingual=True, no_timestamps_token_id=ids["<|notimestamps|>"], max_length=448,
        suppress_tokens=SPECIAL[1:], max_initial_timestamp_index=50,
        lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in codes},
        task_to_id={name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}, **marks,
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == len(tokenizer)


if __name__ == "__main__":
    main()
