"""Pictures or sounds into TFRecords: `python -m trainer.records SOURCE OUT`."""
