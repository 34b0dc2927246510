import sys

import ctranslate2
import sentencepiece

pieces = sentencepiece.SentencePieceProcessor(model_file="data/pieces.model")
translator = ctranslate2.Translator(sys.argv[1], device="cpu", inter_threads=1, intra_threads=1)
lines = [pieces.encode(line, out_type=str) for line in sys.stdin.read().split("\n")[:-1]]
for result in translator.translate_batch(lines, beam_size=5, max_batch_size=64):
    print(pieces.decode(result.hypotheses[0]))
