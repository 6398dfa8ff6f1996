"""One module per data set or family of data sets, and modules for formats that several share (idx, leaf)."""
