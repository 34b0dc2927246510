"""Export to a folder of static files: the kernels in WebAssembly, an int8 model, and a page that translates offline."""

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as LibraryTokenizer

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding.strategy import strategy_from
from translume.engine import build_engine
from translume.engine.search import KernelSearchSettings
from translume.errors import SettingsError
from translume.interchange.certificate import (
    Certificate,
    forced_targets,
    require_eos_last,
    require_linear_head,
    require_settings,
)
from translume.interchange.web.model_file import model_file
from translume.kernels.building import LIBRARIES, WEB, CompilerError, compile_web
from translume.kernels.loading import FOLDER
from translume.text import Tokenizer
from translume.text.imported import HOSTILE, library_spaces
from translume.text.segmentation import UNSPACED
from translume.text.specials import BYTES
from translume.text.standard import SPACES, standard_json
from translume.translator.constraints import build_rules
from translume.translator.planning import Tags, directions_of, keeps_letterless, splits_sentences
from translume.translator.search import target_limit

LONGEST: Final = 256
"""Maximum number of tokens of a source and of a target in a browser."""
TOKENIZERS: Final = "@huggingface/tokenizers@0.2.0"
_HERE = Path(__file__).parent
_NOTICE = f"// {TOKENIZERS}, Apache-2.0, https://github.com/huggingface/tokenizers.js\n"
_FIXED = (
    "coverage_penalty", "prefix", "ban", "stop_strings", "ends", "terminology", "placeholders", "utility", "ctc_weight",
    "calibrated", "unsmooth",
)  # fmt: skip
"""Settings of [decoding] that change translations and that the page does not have."""


def write_web(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    """Write the page into the existing empty `folder`, run its code in Node and compare it with the original.

    Raises SettingsError for what the kernels or the page do not have, and without what makes the page: Node with npm,
    and a compiler if the kernels are not compiled to WebAssembly yet. Raises TranslumeError if the page does not run.
    """
    search = _search(checkpoint, dtype)
    network = build_engine(checkpoint.model, "int8").network
    longest = min(LONGEST, checkpoint.config.model.max_positions)
    document, charsmap = _tokenizer(checkpoint.source_tokenizer)
    contents = {
        WEB: web_kernels(),
        "tokenizers.js": _NOTICE.encode() + tokenizers_script(),
        "model.bin": model_file(network, search, longest),
        "tokenizer.json": json.dumps(document, ensure_ascii=False).encode(),
        **{path.name: path.read_bytes() for path in sorted((_HERE / "page").iterdir())},
    }
    about = _about(checkpoint, search, longest, document["model"]) | {"charsmap": charsmap}
    about |= {"files": ["./", "model.json", *contents], "bytes": sum(map(len, contents.values()))}
    digest = hashlib.sha256(b"".join([json.dumps(about).encode(), *contents.values()])).hexdigest()
    contents["model.json"] = json.dumps(about | {"digest": digest}, ensure_ascii=False).encode()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    certificate = _compare(checkpoint, folder, dtype)
    (folder / "config.json").write_text(json.dumps({"translume": certificate.to_dict()}), encoding="utf-8")
    return certificate


def _search(checkpoint: Checkpoint, dtype: str) -> KernelSearchSettings:
    """Return the search of [decoding]. Raises SettingsError, naming what the kernels or the page do not have."""
    decoding, tokenizer = checkpoint.config.decoding, checkpoint.target_tokenizer
    if dtype != "int8":
        raise SettingsError(f"export: found weights as {dtype!r}, expected 'int8' for web")
    require_linear_head(checkpoint, "web")
    require_eos_last(checkpoint, "web")
    require_settings(checkpoint.config.model, {"segments": (0,), "encoder": ({},)}, "web")
    possible = {name: (DecodingSettings.model_fields[name].default,) for name in _FIXED}
    require_settings(decoding, possible | {"strategy": ("greedy", "beam")}, "web")
    rules = build_rules(tokenizer, [False], decoding)
    search = KernelSearchSettings.from_strategy(strategy_from(decoding), rules, tokenizer.specials.eos, len(tokenizer))
    if search is None:
        raise SettingsError("export: found rules in [decoding] that the kernels do not have, for web")
    return search


def _compare(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    """Run the page's code in Node; compare its log-probabilities with the original's, its ids with the library's."""
    forced, tokenizer = forced_targets(checkpoint), checkpoint.source_tokenizer
    texts = [*HOSTILE, *map(tokenizer.decode, forced.sources)]
    pairs = [
        [source[0].tolist(), [*read[0].tolist(), int(labels[0, -1])]]
        for source, read, labels in forced.examples(checkpoint)
    ]
    given = json.dumps({"folder": folder.resolve().as_uri(), "texts": texts, "pairs": pairs})
    ids, log_probs = json.loads(_run("node", str(_HERE / "check.mjs"), given=given))
    library = LibraryTokenizer.from_str(standard_json(tokenizer))
    for text, found in zip(texts, ids, strict=True):
        wanted = library.encode(text, add_special_tokens=False).ids
        if found != wanted:
            raise SettingsError(f"tokenizer: {text!r} has ids {found} in {TOKENIZERS}, expected {wanted}")
    return forced.compare(log_probs, "the page", folder, dtype)


def _about(
    checkpoint: Checkpoint, search: KernelSearchSettings, longest: int, model: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the page reads of a model apart from its weights: see translume.js.  model: of tokenizer.json."""
    source, target, decoding = checkpoint.source_tokenizer, checkpoint.target_tokenizer, checkpoint.config.decoding
    known = directions_of(checkpoint)
    offered = sorted(known.offered or [known.default], key=lambda each: each.target != (decoding.to or each.target))
    pairs = [(each, Tags.from_direction(checkpoint, each)) for each in offered]
    bos = target.specials.bos
    settings, unk, learned = source.settings, source.specials.unk, _is_learned(source)
    unigram = model["type"] == "Unigram"
    normalise = {
        "form": settings.normalization.upper() if settings.normalization != "none" else "",
        "lowercase": settings.lowercase,
        "collapse": settings.whitespace == "collapse",
        "mark": {"character": "", "byte": "", "word": "always"}.get(settings.kind, "spaced"),
        "unspaced": "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in UNSPACED),
        "spaces": SPACES.replace("\\x", "\\u"),
    }
    return {
        "directions": [
            {"source": each.source, "target": each.target, "tags": tags.source, "prompt": [bos, *tags.target]}
            for each, tags in pairs
        ],
        "eos": [source.specials.eos, target.specials.eos],
        "beam": search.width,
        "patience": decoding.patience if decoding.stop == "first" else 0,
        "longest": longest,
        "limits": [target_limit(checkpoint, length, 0, decoding) for length in range(longest + 1)],
        "splits": splits_sentences(checkpoint, decoding.split),
        "keepsLetterless": keeps_letterless(checkpoint, decoding),
        "normalise": normalise if learned else None,
        "unknown": {
            "id": model["unk_id"] if unigram else None,
            "first": source.vocabulary.pieces.index(BYTES[0]) if model.get("byte_fallback") else unk,
            "as": "bytes" if model.get("byte_fallback") else "characters" if learned and unigram else "one",
        },
        "strip": {"x": "all", "x ": "first"}.get(target.without_mark(" x "), ""),
        "pieces": target.pieces(),
        "spellings": [each.decode("latin-1") for each in target.spellings],  # a character for each byte
    }  # fmt: skip


def _is_learned(tokenizer: Tokenizer) -> bool:
    return tokenizer.vocabulary.library is None and tokenizer.vocabulary.sentences is None


def _tokenizer(tokenizer: Tokenizer) -> tuple[dict[str, Any], str]:
    """Return the tokenizer.json without the rules that translume.js applies itself, and those of SentencePiece."""
    document, charsmap = json.loads(standard_json(tokenizer)), ""
    if _is_learned(tokenizer):
        document["normalizer"] = None
    elif tokenizer.vocabulary.sentences is not None:
        steps = document["normalizer"]["normalizers"]
        charsmap = next((each["precompiled_charsmap"] for each in steps if each["type"] == "Precompiled"), "")
        document["normalizer"]["normalizers"] = steps[-len(library_spaces()) :]
    return document, charsmap


def web_kernels() -> bytes:
    """Return the kernels in WebAssembly: those of the wheel or of `make wasm`, or compiled now."""
    packaged = FOLDER / LIBRARIES / WEB
    if packaged.is_file():
        return packaged.read_bytes()
    with tempfile.TemporaryDirectory() as made:
        try:
            compile_web(FOLDER, Path(made, WEB))
        except CompilerError as error:
            raise SettingsError(f"export: {error}") from None
        return Path(made, WEB).read_bytes()


def tokenizers_script() -> bytes:
    """Return the script of @huggingface/tokenizers, which npm checks."""
    with tempfile.TemporaryDirectory() as made:
        _run("npm", "pack", TOKENIZERS, "--prefer-offline", "--ignore-scripts", "--pack-destination", made)
        with tarfile.open(next(Path(made).glob("*.tgz"))) as archive:
            script = archive.extractfile("package/dist/tokenizers.min.mjs")
            assert script is not None
            return script.read()


def _run(name: str, *arguments: str, given: str = "") -> str:
    """Run a command of Node and return its output. Raises SettingsError in one line if it fails."""
    if (command := shutil.which(name)) is None:
        raise SettingsError(
            f"export: web needs Node, and npm for {TOKENIZERS}: found no {name}; see https://nodejs.org"
        )
    done = subprocess.run([command, *arguments], input=given, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SettingsError(f"export: {name}: {next((line for line in lines if 'rror' in line), lines[0]).strip()}")
    return done.stdout
