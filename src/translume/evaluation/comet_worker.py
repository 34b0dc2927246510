"""Score segments with unbabel-comet. The Python of comet's own environment runs this file, which imports no Translume.

The argument is the file number of a pipe of multiprocessing, whose messages are JSON. The first, {"model", "batch",
"device", "precision"}, is answered with {"version", "path", "references", "needed"}: whether the model reads
references, and whether it must have them. Each other one, {"rows": [[source, text, reference], …]}, is answered with
{"scores": […], "cut": […]}, a value for each row. {"busy": true} comes between, after each batch. An error ends the
process; its last line on standard error says why.
"""

# ruff: noqa: B905  # the environment may have a Python whose zip has no `strict`

import json
import sys
from multiprocessing.connection import Connection
from typing import Any

SORTED_BATCHES = 16
"""Batches whose rows comet sorts by length."""


def scores_of(model: Any, rows: Any, batch: int, report: Any) -> Any:
    """Return the score of each row.  report: called after each batch.

    A regression model compares the embeddings of three texts. If rows share their texts, as in minimum Bayes risk
    decoding, each text is encoded once: n hypotheses of a source need n encodings, not n² (as in `comet-mbr`).
    """
    import torch
    from comet.models import RegressionMetric

    gpus = int(model.device.type == "cuda")
    texts: Any = sorted({text for row in rows for text in row}, key=len)
    scores: Any = []
    shared = isinstance(model, RegressionMetric) and model.requires_references() and len(texts) < 1.5 * len(rows)
    vectors: Any = {}  # [D] of each text
    for begin in range(0, len(texts) if shared else 0, batch):
        part = texts[begin : begin + batch]
        inputs = {name: tensor.to(model.device) for name, tensor in model.encoder.prepare_sample(part).items()}
        with torch.inference_mode():
            vectors.update(zip(part, model.get_sentence_embedding(inputs["input_ids"], inputs["attention_mask"])))
        report()
    size = batch if shared else SORTED_BATCHES * batch
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        if shared:
            with torch.inference_mode():
                sides = (torch.stack([vectors[text] for text in side]) for side in zip(*part))
                scores += model.estimate(*sides)["score"].tolist()
            continue
        part = [dict(zip(("src", "mt", "ref"), row)) for row in part]
        scores += model.predict(part, batch_size=batch, gpus=gpus, progress_bar=False, num_workers=0)["scores"]
        report()
    return scores


def cut(model: Any, rows: Any) -> Any:
    """Return whether each row has texts that the encoder does not read to their ends; a unified model joins them."""
    from comet.models import UnifiedMetric

    encoder, texts = model.encoder, sorted({text for row in rows for text in row})
    longest, lengths = encoder.max_positions, dict(zip(texts, map(len, encoder.tokenizer(texts)["input_ids"])))
    sizes = [[lengths[text] for text in row] for row in rows]  # with two special tokens each
    joins, added = isinstance(model, UnifiedMetric), encoder.size_separator - 2
    return [max(size) > longest - 2 or (joins and sum(size) + added * (len(size) - 1) > longest) for size in sizes]


def main() -> None:
    pipe: Any = Connection(int(sys.argv[1]))

    def answer(values: Any) -> None:
        pipe.send_bytes(json.dumps(values).encode())

    first = json.loads(pipe.recv_bytes())
    import comet
    import torch

    path, device = first["model"], first["device"]
    if path.startswith("hf://"):
        path = comet.download_model(path[len("hf://") :])
    device = {"auto": "cuda" if torch.cuda.is_available() else "cpu"}.get(device, device)
    model = comet.load_from_checkpoint(path).eval()
    model = model.half() if first["precision"] == "fp16" else model  # as `comet-score` does
    needed = model.requires_references()
    reads = "ref" in getattr(model.hparams, "input_segments", ["ref"] * needed)  # XCOMET and UniTE can do without
    answer({"version": comet.__version__, "path": path, "references": reads, "needed": needed})
    while True:  # until the pipe is closed, which is an error
        rows = json.loads(pipe.recv_bytes())["rows"]
        model.to(device)  # Lightning moves it to the CPU after each prediction
        scores = scores_of(model, rows, first["batch"], lambda: answer({"busy": True}))
        answer({"scores": scores, "cut": cut(model, rows)})


if __name__ == "__main__":
    main()
