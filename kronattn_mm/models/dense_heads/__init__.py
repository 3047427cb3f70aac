"""Detection heads; mmdet is needed."""
