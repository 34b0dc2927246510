python -m sockeye.train --use-cpu --prepared-data prepared --shared-vocab --weight-tying-type src_trg_softmax \
  --validation-source data/valid.pieces.en --validation-target data/valid.pieces.de --output model \
  --num-layers 4 --transformer-model-size 128 --transformer-attention-heads 4 \
  --transformer-feed-forward-num-hidden 256 --batch-type max-word --batch-size 1024 \
  --initial-learning-rate 0.0346 --learning-rate-scheduler-type inv-sqrt-decay --learning-rate-warmup 300 \
  --optimizer-betas 0.9:0.98 --checkpoint-interval 50 --keep-last-params 50 --max-num-epochs 100
