fairseq-interactive binary --path "$1" --cpu --beam 5 --batch-size 64 --buffer-size 1000 --remove-bpe sentencepiece |
  grep '^D-' | cut -f 3
