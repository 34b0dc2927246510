python -m sockeye.prepare_data -s data/train.pieces.en -t data/train.pieces.de -o prepared --shared-vocab
