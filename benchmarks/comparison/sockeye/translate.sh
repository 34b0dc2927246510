python -m sockeye.translate --use-cpu --models model --checkpoints "$1" --beam-size 5 --batch-size 64
