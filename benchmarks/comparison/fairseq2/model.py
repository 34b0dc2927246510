from pathlib import Path

from fairseq2.data.tokenizers.sentencepiece import BasicSentencePieceTokenizer, SentencePieceModel
from fairseq2.models.nllb import NllbConfig, create_nllb_model

tokenizer = BasicSentencePieceTokenizer(SentencePieceModel(Path("data/pieces.model"), control_symbols=["<pad>"]))
vocabulary = tokenizer.vocab_info
config = NllbConfig(
    model_dim=128, vocab_size=vocabulary.size, pad_idx=vocabulary.pad_idx, num_encoder_layers=4, num_decoder_layers=4,
    num_encoder_attn_heads=4, num_decoder_attn_heads=4, ffn_inner_dim=256, dropout_p=0.1,
)  # fmt: skip
model = create_nllb_model(config)
