"""Equal graphs, proposed: a graph is cut into parts (`cell_cuts`, `min_cut`), each part is searched
by `backtracking`, and a `dynamic_programme` puts the best of them together (`stitch`)."""
