"""One file for each data set; a file named after a format (idx, cifar, leaf) is read by several."""
