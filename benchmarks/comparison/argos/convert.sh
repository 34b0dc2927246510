translume import "$1" imported
mkdir -p en_de
translume export imported ctranslate2 en_de/model
cp metadata.json en_de
cp data/pieces.model en_de/sentencepiece.model
python3 -m zipfile -c en_de.argosmodel en_de
