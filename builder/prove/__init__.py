"""Whether an image works on its accelerator, shown without one."""
