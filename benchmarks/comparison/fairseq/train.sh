fairseq-train binary --cpu --num-workers 0 --save-dir checkpoints --save-interval-updates 50 --disable-validation \
  --arch transformer_iwslt_de_en --share-all-embeddings \
  --encoder-layers 4 --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --encoder-attention-heads 4 \
  --decoder-layers 4 --decoder-embed-dim 128 --decoder-ffn-embed-dim 256 --decoder-attention-heads 4 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --weight-decay 0.0001 \
  --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 300 \
  --dropout 0.3 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 1024
