export XDG_DATA_HOME=$PWD/share ARGOS_BEAM_SIZE=5
argos-translate --from-lang en --to-lang de
