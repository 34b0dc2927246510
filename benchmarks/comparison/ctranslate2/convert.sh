translume import "$1" imported
translume export imported ctranslate2 model
