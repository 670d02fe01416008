"""From a target's files to a proven, pushed image."""
