"""Facts about accelerators, CUDA and machines: tables in which each value names its source."""
