export XDG_DATA_HOME=$PWD/share
argospm install en_de.argosmodel
