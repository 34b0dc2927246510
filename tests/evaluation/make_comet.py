"""Make tiny random checkpoints with comet's own classes, and scores by comet: `PYTHON make_comet.py FOLDER < ROWS`.

Standard input is a JSON list of [source, text, reference]; FOLDER/tiny/scores.json, qe/scores.json and
unite/scores.json have the scores. The Python is that of comet's environment.
"""

import json
import sys
from pathlib import Path

import pytorch_lightning
import torch
import yaml
from comet.models import RegressionMetric, UnifiedMetric, load_from_checkpoint
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizerFast

folder = Path(sys.argv[1]).absolute()
rows = json.load(sys.stdin)
encoder = folder / "encoder"
tokenizer = Tokenizer(models.Unigram())
tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
trainer = trainers.UnigramTrainer(
    vocab_size=97, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], unk_token="<unk>"
)
tokenizer.train_from_iterator(
    ["a man rides a red bicycle", "ein Mann fährt ein rotes Fahrrad", "zwei Hunde"] * 5, trainer
)
encoder.mkdir(parents=True)
tokenizer.save(str(encoder / "tokenizer.json"))
XLMRobertaTokenizerFast(tokenizer_file=str(encoder / "tokenizer.json")).save_pretrained(encoder)
torch.manual_seed(7)
config = XLMRobertaConfig(
    vocab_size=tokenizer.get_vocab_size(), hidden_size=22, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=37, max_position_embeddings=67, pad_token_id=1, bos_token_id=0, eos_token_id=2,
)  # fmt: skip
XLMRobertaModel(config, add_pooling_layer=False).save_pretrained(encoder)
unified = {"word_level_training": False, "sent_layer": "mix"}
for name, kind, more in (
    ("tiny", RegressionMetric, {}),
    ("qe", UnifiedMetric, {**unified, "input_segments": ["mt", "src"]}),
    ("unite", UnifiedMetric, {**unified, "input_segments": ["mt", "src", "ref"]}),
):
    model = kind(pretrained_model=str(encoder), hidden_sizes=[23, 11], **more)
    for parameter in model.estimator.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    path = folder / name / "checkpoints" / "model.ckpt"
    path.parent.mkdir(parents=True)
    run = pytorch_lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    run.strategy.connect(model)
    run.save_checkpoint(path, weights_only=True)
    (folder / name / "hparams.yaml").write_text(yaml.dump(dict(model.hparams)))
    loaded = load_from_checkpoint(path)
    samples = [dict(zip(("src", "mt", "ref"), row, strict=True)) for row in rows]
    done = loaded.predict(samples, gpus=0, progress_bar=False)
    (folder / name / "scores.json").write_text(json.dumps(done["scores"]))
