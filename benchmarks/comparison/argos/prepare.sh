export XDG_DATA_HOME=$PWD/share
python -c 'import argostranslate.package as p; p.install_from_path("en_de.argosmodel")'
