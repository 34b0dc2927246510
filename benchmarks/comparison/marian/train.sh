pymarian train -c config.yml
