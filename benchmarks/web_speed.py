"""Compare an export for the web with transformers.js (`make node`) in Node, and with the int8 engine in Python.

    python benchmarks/web_speed.py MODEL SOURCES [LINES]

Greedy searches start from the same ids, one source at a time, in turns in one process of Node. transformers.js runs the
exports to ONNX in float32 and int8 by onnxruntime-node, which is native code. Prints the size of the download, the time
from the start of loading to the first translation, words of the sources a second (medians of five passes), and how many
texts are equal.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from translume.interchange.export import export
from translume.translator import load
from translume.translator.search import target_limit

MODULES = Path(
    os.environ.get("TRANSLUME_NODE_MODULES") or Path(__file__).resolve().parents[1] / "build" / "node" / "node_modules"
)
NODE = """
import fs from 'node:fs';
import { AutoModelForSeq2SeqLM, Tensor, env } from '@huggingface/transformers';
import { Tokenizer } from './web/tokenizers.js';
import { Translator } from './web/translume.js';

env.localModelPath = './';
env.allowRemoteModels = false;
const { lines, rows, limits, passes } = JSON.parse(fs.readFileSync('given.json'));
const began = performance.now();
const page = await Translator.load(Tokenizer, async (name) => new Response(fs.readFileSync(`web/${name}`)));
page.translate(lines[0]);
const first = performance.now() - began;
const texts = lines.map((line) => page.translate(line).text);
const { prompt } = page.about.directions[0];
const ways = { page: async () => rows.map((ids, place) => page.engine.search(ids, prompt, { limit: limits[place] })) };
ways['page with distributions'] = async () => rows.map((ids, place) => (
  page.engine.inspect(prompt, page.engine.search(ids, prompt, { limit: limits[place] })[0].tokens, 10)));
for (const dtype of ['fp32', 'q8']) {
  const model = await AutoModelForSeq2SeqLM.from_pretrained(dtype, { dtype });
  ways[`transformers.js ${dtype}`] = async () => {
    for (const [place, ids] of rows.entries()) {
      const inputs = new Tensor('int64', BigInt64Array.from(ids.map(BigInt)), [1, ids.length]);
      await model.generate({ inputs, attention_mask: inputs.map(() => 1n), max_new_tokens: limits[place] });
    }
  };
}
const times = {};
for (let pass = 0; pass < passes; pass++) {
  for (const [name, way] of Object.entries(ways)) {
    const start = process.cpuUsage(), wall = performance.now();
    await way();
    const { user, system } = process.cpuUsage(start);
    (times[name] ??= []).push([(performance.now() - wall) / 1e3, (user + system) / 1e6]);
  }
}
fs.writeFileSync('found.json', JSON.stringify({ first, texts, times }));
"""


def main() -> None:
    short = bool(os.environ.get("TRANSLUME_SHORT"))
    if len(sys.argv) < 3 or shutil.which("node") is None or not (MODULES / "@huggingface" / "transformers").is_dir():
        sys.exit(0 if short else __doc__)  # `make bench` has no model
    model, sources = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    translator = load(model, device="cpu", engine="fast", dtype="int8")
    checkpoint = translator.checkpoint
    tokenizer = checkpoint.source_tokenizer
    lines = [line for line in Path(sources).read_text(encoding="utf-8").splitlines() if line.strip()][:count]
    rows = [[*tokenizer.encode(line), tokenizer.specials.eos] for line in lines]
    limits = [target_limit(checkpoint, len(row) - 1, 0, checkpoint.config.decoding) for row in rows]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for target, name, dtype in (("web", "web", "int8"), ("onnx", "fp32", "float32"), ("onnx", "q8", "int8")):
            export(model, target, folder / name, dtype=dtype)
        (folder / "node_modules").symlink_to(MODULES)
        (folder / "run.mjs").write_text(NODE, encoding="utf-8")
        given = {"lines": lines, "rows": rows, "limits": limits, "passes": 5}
        (folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
        subprocess.run(["node", "run.mjs"], cwd=folder, check=True)
        found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
        size = json.loads((folder / "web" / "model.json").read_text(encoding="utf-8"))["bytes"]
    same = sum(translator.translate(line).text == text for line, text in zip(lines, found["texts"], strict=True))
    print(f"download {size / 1e6:.1f} MB; first translation after {found['first'] / 1e3:.2f} s of loading")
    print(f"{same} of {len(lines)} texts are those of the int8 engine in Python")
    words = sum(len(line.split()) for line in lines)
    for name, times in found["times"].items():
        wall, processor = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name:24s} {words / wall:8,.0f} words/s, {words / processor:8,.0f} per second of processor time")


if __name__ == "__main__":
    main()
