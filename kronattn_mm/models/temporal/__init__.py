"""R-C3D: temporal action localisation, in the order in which it is to be read.

:mod:`.segments` (intervals and what is done with them), :mod:`.resnet3d`, :mod:`.proposal_head`,
:mod:`.roi_pool`, :mod:`.segment_head`, and :mod:`.r_c3d`, which puts them together.

Inside the model the unit of time is the frame, counted from the start of the window; the end of a
segment is the moment at which the action is over.
"""
