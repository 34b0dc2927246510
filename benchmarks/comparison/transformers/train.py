import json
from pathlib import Path

from datasets import load_dataset
from transformers import DataCollatorForSeq2Seq, MarianConfig, MarianMTModel, MarianTokenizer

from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments  # isort: skip

pieces = [line.split("\t")[0] for line in Path("data/pieces.vocab").read_text(encoding="utf-8").splitlines()]
Path("vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate([*pieces, "<pad>"])}))
tokenizer = MarianTokenizer("data/pieces.model", "data/pieces.model", "vocab.json", source_lang="en", target_lang="de")
texts = load_dataset("text", data_files={"en": "data/train.en", "de": "data/train.de"})
pairs = texts["en"].rename_column("text", "en").add_column("de", texts["de"]["text"])
pairs = pairs.map(
    lambda rows: tokenizer(rows["en"], text_target=rows["de"], max_length=128, truncation=True),
    batched=True,
    remove_columns=["en", "de"],
)
pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
model = MarianMTModel(
    MarianConfig(
        vocab_size=len(tokenizer), d_model=128, encoder_layers=4, decoder_layers=4, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, dropout=0.1, scale_embedding=True,
        pad_token_id=pad, eos_token_id=eos, decoder_start_token_id=pad, forced_eos_token_id=eos, max_length=128,
    )
)  # fmt: skip
arguments = Seq2SeqTrainingArguments(
    "model", use_cpu=True, per_device_train_batch_size=64, learning_rate=0.002, lr_scheduler_type="inverse_sqrt",
    warmup_steps=300, adam_beta2=0.98, label_smoothing_factor=0.1, num_train_epochs=100, save_steps=50,
    logging_steps=20, train_sampling_strategy="group_by_length", report_to="none", dataloader_num_workers=0,
)  # fmt: skip
Seq2SeqTrainer(
    model=model,
    args=arguments,
    train_dataset=pairs,
    processing_class=tokenizer,
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
).train()
