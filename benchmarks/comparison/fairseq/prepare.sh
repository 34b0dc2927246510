fairseq-preprocess --source-lang en --target-lang de --trainpref data/train.pieces --validpref data/valid.pieces \
  --joined-dictionary --destdir binary
