"""What a run reports about itself: TensorBoard, time, cost, a trial's metric."""
