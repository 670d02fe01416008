"""What a run tells about itself: TensorBoard, time, cost, a trial's metric."""
