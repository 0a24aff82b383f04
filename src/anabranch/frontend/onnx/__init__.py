"""A file of ONNX -> a module of torch that computes the same, with the file's weights.

`importer` has `from_onnx`; `read` reads the file and nothing beyond its folder, `opset` brings the
nodes of older operator sets to the newest, `operators` has one small function an operator, and
`module` calls them in the file's order. Nothing behind this room knows of ONNX: what is captured
is a module like any other.
"""
