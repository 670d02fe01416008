"""Pictures into TFRecords: `python -m trainer.records SOURCE OUT`."""
