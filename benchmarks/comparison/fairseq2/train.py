import random
from pathlib import Path

import torch
from fairseq2.nn.utils.padding import pad_seqs
from model import model, tokenizer, vocabulary

encode = tokenizer.create_encoder()
sides = [Path(f"data/train.{side}").read_text("utf-8").splitlines() for side in ("en", "de")]
pairs = [(encode(source), encode(target)) for source, target in zip(*sides, strict=True)]
pairs.sort(key=lambda pair: max(map(len, pair)))
batches, batch = [], []
for pair in pairs:
    if (len(batch) + 1) * max(map(len, pair)) > 1024:
        batches.append(batch)
        batch = []
    batch.append(pair)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002, betas=(0.9, 0.98))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 300, (300 / (step + 1)) ** 0.5))
Path("model").mkdir(exist_ok=True)
update = 0
while True:
    random.shuffle(batches)
    for batch in batches:
        source, source_layout = pad_seqs([pair[0] for pair in batch], pad_value=vocabulary.pad_idx)
        target, layout = pad_seqs([pair[1][:-1] for pair in batch], pad_value=vocabulary.pad_idx)
        labels, _ = pad_seqs([pair[1][1:] for pair in batch], pad_value=vocabulary.pad_idx)
        mask = labels != vocabulary.pad_idx
        loss = model(source, source_layout, target, layout, labels, label_smoothing=0.1, target_mask=mask)
        (loss / mask.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        update += 1
        if update % 50 == 0:
            print(update, (loss / mask.sum()).item(), flush=True)
            torch.save(model.state_dict(), f"model/step_{update}.pt")
