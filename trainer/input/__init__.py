"""From a folder of records to batches on the devices."""
