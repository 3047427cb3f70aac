"""Classification heads; mmpretrain is needed."""
