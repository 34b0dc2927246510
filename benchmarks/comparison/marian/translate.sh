pymarian decode -m "$1" -v data/pieces.spm data/pieces.spm --beam-size 5 --normalize 1 --cpu-threads 1 \
  --mini-batch 64 --maxi-batch 100 --maxi-batch-sort src --workspace 1000 --quiet
