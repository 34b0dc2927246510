"""Compare the readers of an export's tokenizer.json: ids of lines in several scripts and of hostile texts.

Each family is imported with random weights and a tokenizer trained on real lines, and exported to ONNX; `bpe` and
`unigram` are tokenizers that Translume trained. The ids of Translume are compared with those of the `tokenizers`
library, of transformers' AutoTokenizer and of transformers.js (`make node`) for the exported folder. With --translate,
transformers.js also translates 20 texts from that folder, and the texts are compared with Translume's greedy search.

    python benchmarks/tokenizer_readers.py [--families t5,bpe] [--lines 2000] [--translate] [--differences 3] [--json]
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from families import BART_FAMILIES, DATA, SHORT, hostile, read_lines, write_bart, write_t5

MODULES = Path(
    os.environ.get("TRANSLUME_NODE_MODULES") or Path(__file__).resolve().parents[1] / "build" / "node" / "node_modules"
)
OURS = ("bpe", "unigram", "unigram-token")
FAMILIES = ("t5", "mt5", "bart", "byt5", "m2m-100", "madlad-400", "nllb-200", "mbart-50", *OURS)
TRANSLATED, LIMIT = 20, 24
"""Number of texts that are translated, and the maximum number of tokens of a translation."""
NODE = """
import fs from 'node:fs';
import { env, AutoModelForSeq2SeqLM, AutoTokenizer, Tensor, pipeline } from '@huggingface/transformers';

env.allowRemoteModels = false;
env.localModelPath = './';
const { texts, translated, limit, source_tag, target_tag } = JSON.parse(fs.readFileSync('given.json'));
const found = { ids: [], texts: [] };
try {
  const tokenizer = await AutoTokenizer.from_pretrained('out');
  for (const text of texts) {
    try {
      found.ids.push(tokenizer(text, { return_tensor: false }).input_ids);
    } catch (error) {
      found.ids.push(String(error));
    }
  }
  if (source_tag !== null) {
    const model = await AutoModelForSeq2SeqLM.from_pretrained('out', { dtype: 'fp32' });
    for (const text of translated) {
      const ids = [source_tag, ...tokenizer(text, { return_tensor: false }).input_ids].map(BigInt);
      const inputs = new Tensor('int64', BigInt64Array.from(ids), [1, ids.length]);
      const options = { max_new_tokens: limit, ...(target_tag === null ? {} : { forced_bos_token_id: target_tag }) };
      const output = await model.generate({ inputs, attention_mask: inputs.map(() => 1n), ...options });
      found.texts.push(tokenizer.batch_decode(output, { skip_special_tokens: true })[0]);
    }
  } else if (translated.length) {
    const translator = await pipeline('translation', 'out', { dtype: 'fp32' });
    for (const text of translated) {
      found.texts.push((await translator(text, { max_new_tokens: limit }))[0].translation_text);
    }
  }
} catch (error) {
  found.error = String(error).split('\\n')[0];
}
fs.writeFileSync('found.json', JSON.stringify(found));
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of real data")
    parser.add_argument("--families", default="byt5,bpe" if SHORT else ",".join(FAMILIES))
    parser.add_argument("--lines", type=int, default=100 if SHORT else 2000)
    parser.add_argument("--translate", action="store_true", help="translate 20 texts by transformers.js, too")
    parser.add_argument("--differences", type=int, default=0, help="how many texts with other ids to print")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = read_lines(options.data, max(options.lines, 2000))
    rows = []
    for family in options.families.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(family, Path(folder), lines, options))
        if not options.json:
            print(" | ".join(str(value) for value in rows[-1].values()), flush=True)
    if options.json:
        print(json.dumps({"rows": rows}))


def write_model(family: str, folder: Path, lines: list[str]) -> Path:
    """Write a model folder of ours for a family."""
    import translume

    if family in OURS:
        write_ours(folder / "ours", family, lines)
    else:
        (write_bart if family in BART_FAMILIES else write_t5)(folder / "theirs", family, lines)
        translume.import_model(folder / "theirs", folder / "ours")
    return folder / "ours"


def write_ours(folder: Path, family: str, lines: list[str]) -> None:
    """Save a model with random weights and a tokenizer that Translume trains."""
    import torch

    from translume.checkpoint import Checkpoint, build_model, save_model
    from translume.config import Config, ModelSettings, TokenizerSettings
    from translume.text import train_tokenizer

    kind, _, unknown = family.partition("-")
    shape: dict[str, Any] = {"kind": kind, "size": 4000, "unknown": unknown or "bytes"}
    tokenizer = train_tokenizer(TokenizerSettings(**shape), lines)
    settings = ModelSettings(
        width=96, feed_forward=160, encoder_layers=3, decoder_layers=3, attention_heads=4, max_positions=1024
    )
    torch.manual_seed(1)
    model = build_model(settings, len(tokenizer), len(tokenizer)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    config = Config(model=settings, tokenizer=tokenizer.settings)
    save_model(folder, Checkpoint(config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer))


def measure(family: str, folder: Path, lines: list[str], options: argparse.Namespace) -> dict[str, str]:
    """Return the counts of equal ids of each reader, "lines + hostile texts", and of equal translations."""
    import tokenizers
    import transformers

    import translume
    from translume.text.imported import HOSTILE

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    translator = translume.load(write_model(family, folder, lines), device="cpu", engine="plain")
    tokenizer = translator.checkpoint.source_tokenizer
    out = folder / "out"
    translume.export(folder / "ours", "onnx", out)
    texts = [*lines[: options.lines], *HOSTILE, *hostile(options.lines // 10)]
    begin = [*tokenizer.languages.values()] if len(tokenizer.languages) == 1 else []
    wanted = [[*begin, *tokenizer.encode(text), tokenizer.specials.eos] for text in texts]

    def counts(name: str, found: list[Any]) -> str:
        differs = [place for place, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1]]
        for place in differs[: options.differences]:
            print(f"  {family}, {name}: {texts[place]!r}\n    {found[place]}\n    {wanted[place]}")
        lost = sum(place < options.lines for place in differs)
        rest = len(texts) - options.lines
        return f"{options.lines - lost}/{options.lines}+{rest - len(differs) + lost}/{rest}"

    library = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    auto = transformers.AutoTokenizer.from_pretrained(str(out))
    row = {
        "family": family,
        "tokenizers": counts("tokenizers", [library.encode(text).ids for text in texts]),
        "transformers": counts("transformers", [auto(text)["input_ids"] for text in texts]),
        "transformers.js": "not installed (make node)",
        "translations": "-",
    }
    if not (MODULES / "@huggingface" / "transformers").is_dir() or shutil.which("node") is None:
        return row
    translated = lines[:TRANSLATED] if options.translate else []
    direction, tags = direction_of(translator)
    found = in_node(out, {"texts": texts, "translated": translated, **tags})
    row["transformers.js"] = found["error"] if "error" in found else counts("transformers.js", found["ids"])
    equal = 0
    for text, theirs in zip(translated, found["texts"], strict=False):
        ours = translator.translate(text, strategy="greedy", max_length=LIMIT, max_length_ratio=99.0, **direction).text
        equal += ours.strip() == theirs.strip()
        if ours.strip() != theirs.strip() and options.differences:
            print(f"  {family}: {text!r}\n    {theirs!r}\n    {ours!r}")
    if translated:
        row["translations"] = f"{equal}/{len(translated)}"
    return row


def direction_of(translator: Any) -> tuple[dict[str, str], dict[str, int | None]]:
    """Return a direction between the first languages of a model, and the ids of its tags with the limit of tokens."""
    languages, where = (
        translator.checkpoint.source_tokenizer.languages,
        translator.checkpoint.config.model.language_tags,
    )
    tags: dict[str, int | None] = {"limit": LIMIT + (where == "target"), "source_tag": None, "target_tag": None}
    if len(languages) < 2:
        return {}, tags
    (source, one), (target, other) = list(languages.items())[:2]
    if where == "source":
        return {"to": target}, {**tags, "source_tag": other}
    return {"from_": source, "to": target}, {**tags, "source_tag": one, "target_tag": other}


def in_node(out: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return the ids of texts by transformers.js from an exported folder, and its translations."""
    folder = out.parent
    (folder / "node_modules").symlink_to(MODULES)
    (folder / "run.mjs").write_text(NODE, encoding="utf-8")
    (folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
    subprocess.run(["node", "run.mjs"], cwd=folder, check=True, timeout=540, stdout=subprocess.DEVNULL)
    return dict(json.loads((folder / "found.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
