import sys

from transformers import MarianMTModel, MarianTokenizer

tokenizer, model = MarianTokenizer.from_pretrained(sys.argv[1]), MarianMTModel.from_pretrained(sys.argv[1])
lines = sys.stdin.read().splitlines()
order = sorted(range(len(lines)), key=lambda number: -len(lines[number]))
out = {}
for start in range(0, len(order), 64):
    some = order[start : start + 64]
    batch = tokenizer([lines[number] for number in some], return_tensors="pt", padding=True)
    texts = tokenizer.batch_decode(model.generate(**batch, num_beams=5, max_length=128), skip_special_tokens=True)
    out.update(zip(some, texts, strict=True))
for number in range(len(lines)):
    print(out[number])
