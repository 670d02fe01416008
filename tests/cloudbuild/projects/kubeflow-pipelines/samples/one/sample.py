image = "gcr.io/ml-pipeline/trainer:0.1.2"
