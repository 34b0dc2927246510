"""Models of Hugging Face transformers: MarianMTModel and PegasusForConditionalGeneration."""
