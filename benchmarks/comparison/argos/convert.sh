mkdir -p en_de
ct2-opennmt-py-converter --model_path "$1" --output_dir en_de/model --force
cp metadata.json en_de
cp data/pieces.model en_de/sentencepiece.model
python -m zipfile -c en_de.argosmodel en_de
