"""What a run reports about itself: TensorBoard, time, a trial's metric."""
