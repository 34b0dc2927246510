"""Seconds to transcribe 60 s of sound by the shapes of whisper-tiny and whisper-base with random weights.

Two windows of 30 s, one after the other, with 100 target tokens each and without times: Translume's engine in int8 and
fp32, faster-whisper, which is CTranslate2, in int8, and transformers in fp32, since it has no int8 on a CPU, all with
the same weights. Sound is read, features are computed, and both windows are encoded and searched. Best of some rounds,
in turns. faster-whisper is measured if it is installed: `pip install --target DIR --no-deps faster-whisper av`, and
PYTHONPATH=DIR.

    python benchmarks/whisper.py [--shapes tiny,base] [--threads 1] [--beam 1] [--rounds 3] [--folder KEPT]
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
SHAPES = {
    "tiny": {"d_model": 384, "layers": 4, "heads": 6},
    "base": {"d_model": 512, "layers": 6, "heads": 8},
    "short": {"d_model": 64, "layers": 1, "heads": 2},
}
TOKENS = 5 if SHORT else 100
RATE, SECONDS = 16_000, 30
TIMES = list(range(50_364, 51_865))
"""Tokens of times, of which random weights would write many; transformers ends a window at two of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="short" if SHORT else "tiny,base")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 3)
    parser.add_argument("--folder", type=Path, help="where the models are kept")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    for shape in options.shapes.split(","):
        best = seconds(folder / shape, shape, options.threads, options.beam, options.rounds)
        for name, found in best.items():
            print(f"whisper-{shape}, beam {options.beam}, threads {options.threads}: {name} {found:.2f} s", flush=True)


def seconds(folder: Path, shape: str, threads: int, beam: int, rounds: int) -> dict[str, float]:
    """Return the seconds of each program: the least of `rounds`, in turns."""
    import soundfile
    import torch
    import transformers

    import translume

    torch.set_num_threads(threads)
    if not (folder / "theirs").exists():
        write_whisper(folder / "theirs", **SHAPES[shape])
    if not (folder / "ours").exists():
        translume.import_model(folder / "theirs", folder / "ours")
    paths = [folder / f"{number}.wav" for number in range(2)]
    for number, path in enumerate(paths):
        soundfile.write(path, sound(number), RATE)
    calls: dict[str, Callable[[], object]] = {}
    search = {"beam": beam} if beam > 1 else {}
    for dtype in ("int8", "fp32"):
        model = translume.load_translator(folder / "ours", device="cpu", dtype=dtype, threads=threads)

        def ours(model: translume.Translator = model) -> None:
            for path in paths:
                model.translate(str(path), from_="en", min_length=TOKENS, max_length=TOKENS, **search)

        calls[f"Translume {dtype}"] = ours
    peer = faster_whisper(folder, threads)
    if peer is not None:
        longest = 2 * TOKENS - 1  # CTranslate2 ends after half of the prompt's and these tokens

        def theirs() -> None:
            for path in paths:
                segments, _ = peer.transcribe(
                    str(path), language="en", beam_size=beam, temperature=0.0, max_new_tokens=longest,
                    without_timestamps=True, suppress_tokens=[50_257, *TIMES],
                    suppress_blank=False, no_speech_threshold=None,
                    log_prob_threshold=None, compression_ratio_threshold=None, condition_on_previous_text=False,
                )  # fmt: skip
                found = list(segments)
                assert abs(len(found[0].tokens) - TOKENS) < 2, len(found[0].tokens)

        calls["faster-whisper int8"] = theirs
    plain = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "theirs").eval()
    extractor = transformers.WhisperFeatureExtractor()

    def generate() -> None:
        for path in paths:
            samples, _ = soundfile.read(path, dtype="float32")
            features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
            plain.generate(
                features, language="en", task="transcribe", num_beams=beam, min_new_tokens=TOKENS, max_new_tokens=TOKENS
            )

    calls["transformers fp32"] = generate
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            begun = time.perf_counter()
            with torch.inference_mode():
                call()
            best[name] = min(best[name], time.perf_counter() - begun)
    return best


def faster_whisper(folder: Path, threads: int) -> "object | None":
    """Return the model for faster-whisper, converted if needed; None if it is not installed."""
    try:
        from faster_whisper import WhisperModel
    except ModuleNotFoundError:
        print("faster-whisper is not installed")
        return None
    from ctranslate2.converters import TransformersConverter

    if not (folder / "ct2").exists():
        names = ["tokenizer.json", "preprocessor_config.json"]
        converter = TransformersConverter(str(folder / "theirs"), copy_files=names)
        converter.convert(str(folder / "ct2"), quantization="int8")
    return WhisperModel(str(folder / "ct2"), device="cpu", compute_type="int8", cpu_threads=threads)


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
            decoder_ffn_dim=4 * d_model, begin_suppress_tokens=None, **marks,
        )
    )  # fmt: skip
    model.generation_config = GenerationConfig(
        is_multilingual=True, no_timestamps_token_id=ids["<|notimestamps|>"], max_length=448, suppress_tokens=TIMES,
        max_initial_timestamp_index=50, lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in codes},
        task_to_id={name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}, **marks,
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == len(tokenizer)


if __name__ == "__main__":
    main()
