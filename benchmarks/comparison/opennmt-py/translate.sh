cat > input.txt
onmt_translate -model "$1" -src input.txt -output output.txt -beam_size 5 -length_penalty avg -batch_size 64 \
  -transforms sentencepiece -src_subword_model data/pieces.model -tgt_subword_model data/pieces.model > translate.log
cat output.txt
