"""PSMNet: depth from two views, in parts that ``Plugged`` can put attention into."""
