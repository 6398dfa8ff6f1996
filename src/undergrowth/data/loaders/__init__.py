"""One module per data set, and modules for formats that several data sets share (idx, cifar, leaf)."""
