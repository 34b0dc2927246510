import sys

import torch
from fairseq2.generation.beam_search.generator import BeamSearchSeq2SeqGenerator
from fairseq2.nn.utils.padding import pad_seqs
from model import model, tokenizer, vocabulary

model.load_state_dict(torch.load(sys.argv[1]))
model.eval()
encode, decode = tokenizer.create_encoder(), tokenizer.create_decoder(skip_special_tokens=True)
generator = BeamSearchSeq2SeqGenerator(model, vocabulary, beam_size=5)
lines = [encode(line) for line in sys.stdin.read().splitlines()]
order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
out = {}
for start in range(0, len(lines), 64):
    some = order[start : start + 64]
    source, layout = pad_seqs([lines[number] for number in some], pad_value=vocabulary.pad_idx)
    prompt, prompt_layout = pad_seqs([torch.tensor([vocabulary.bos_idx])] * len(some))
    with torch.inference_mode():
        found = generator(source, layout, prompt, prompt_layout)
    out.update({number: decode(best[0].seq) for number, best in zip(some, found.hypotheses, strict=True)})
for number in range(len(lines)):
    print(out[number])
